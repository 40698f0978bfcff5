//! Decides without a server which texts PostgreSQL's `jsonb` accepts. `tests/it/payload.rs`
//! compares it with a server.

/// The most decimals of a `numeric` (`NUMERIC_DSCALE_MAX`).
const MOST_DECIMALS: i64 = 16_383;

/// The most digits before the decimal point.
const MOST_DIGITS: i64 = 131_072;

/// The largest accepted exponent (`INT_MAX / 2`, exclusive).
const LARGEST_EXPONENT: i64 = i32::MAX as i64 / 2;

/// Whether `jsonb` accepts this text: RFC 8259, without NUL in strings, without unpaired
/// surrogates, and with numbers that fit a `numeric`.
#[must_use]
pub fn reads(text: &str) -> bool {
    let mut reader = Reader(text.as_bytes());
    reader.value().is_some() && reader.space().0.is_empty()
}

/// The unread text. A method returns `None` if the grammar does not match.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn space(&mut self) -> &mut Self {
        let is_space = |byte: &&u8| b" \t\n\r".contains(byte);
        self.0 = &self.0[self.0.iter().take_while(is_space).count()..];
        self
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[byte])?;
        Some(())
    }

    fn next(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    fn value(&mut self) -> Option<()> {
        match *self.space().0.first()? {
            b'{' => self.list(b'{', b'}', |reader| {
                reader.space().text()?;
                reader.space().take(b':')?;
                reader.value()
            }),
            b'[' => self.list(b'[', b']', Self::value),
            b'"' => self.text(),
            b'-' | b'0'..=b'9' => self.number(),
            _ => ["null", "true", "false"].iter().find_map(|word| {
                self.0 = self.0.strip_prefix(word.as_bytes())?;
                Some(())
            }),
        }
    }

    fn list(&mut self, open: u8, close: u8, item: fn(&mut Self) -> Option<()>) -> Option<()> {
        self.take(open)?;
        if self.space().take(close).is_some() {
            return Some(());
        }
        loop {
            item(self)?;
            match self.space().next()? {
                b',' => {}
                other => return (other == close).then_some(()),
            }
        }
    }

    fn text(&mut self) -> Option<()> {
        self.take(b'"')?;
        loop {
            match self.next()? {
                b'"' => return Some(()),
                b'\\' => self.escape()?,
                0..=0x1f => return None,
                _ => {}
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        match self.next()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => match self.hex()? {
                0 | 0xdc00..=0xdfff => None,
                0xd800..=0xdbff => {
                    self.take(b'\\')?;
                    self.take(b'u')?;
                    (0xdc00..=0xdfff).contains(&self.hex()?).then_some(())
                }
                _ => Some(()),
            },
            _ => None,
        }
    }

    fn hex(&mut self) -> Option<u32> {
        (0..4).try_fold(0, |number, _| Some(number * 16 + char::from(self.next()?).to_digit(16)?))
    }

    fn digits(&mut self) -> &[u8] {
        let length = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.0.split_at(length);
        self.0 = rest;
        digits
    }

    fn number(&mut self) -> Option<()> {
        let _ = self.take(b'-');
        let whole = self.digits();
        if whole.is_empty() || (whole.len() > 1 && whole[0] == b'0') {
            return None;
        }
        // The position of the first significant digit, counted to the left from the decimal point.
        let mut place = (whole != b"0").then_some(i64::try_from(whole.len()).ok()?);
        let mut decimals = 0;
        if self.take(b'.').is_some() {
            let behind = self.digits();
            decimals = i64::try_from(behind.len()).ok().filter(|length| *length > 0)?;
            let zeros = behind.iter().position(|digit| *digit != b'0');
            place = place.or(zeros.and_then(|zeros| Some(-i64::try_from(zeros).ok()?)));
        }
        let exponent = self.exponent()?;
        let holds = exponent.abs() < LARGEST_EXPONENT
            && decimals - exponent <= MOST_DECIMALS
            && place.is_none_or(|place| place + exponent <= MOST_DIGITS);
        holds.then_some(())
    }

    fn exponent(&mut self) -> Option<i64> {
        if self.take(b'e').or_else(|| self.take(b'E')).is_none() {
            return Some(0);
        }
        let is_negative = self.take(b'-').is_some();
        if !is_negative {
            let _ = self.take(b'+');
        }
        let digits = self.digits();
        let size = digits.iter().fold(0_i64, |number, digit| {
            number.saturating_mul(10).saturating_add(i64::from(digit - b'0')).min(LARGEST_EXPONENT)
        });
        (!digits.is_empty()).then_some(if is_negative { -size } else { size })
    }
}
