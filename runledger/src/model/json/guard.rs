//! The rules that apply to the written text: its size, its depth, NUL characters, wide integers and
//! ready-made JSON.

use std::cell::Cell;
use std::{io, iter};

use serde_json::ser::{CharEscape, CompactFormatter, Formatter};

use super::tree::{Fault, Tree};
use super::{MAX_BYTES, MAX_DEPTH};

/// The reason why the encoding stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    NotFinite,
    Nul,
    NulInKey,
    TooDeep,
    TooLarge,
    WideInteger,
    LongNumber,
    Fragment,
    Display,
}

/// The state of one encoding. A refusal stays even if a user's `Serialize` ignores the error. The
/// last refusal counts, because the text ends there.
#[derive(Debug, Default)]
pub(super) struct Rules {
    refusal: Cell<Option<Refusal>>,
    depth: Cell<usize>,
    in_key: Cell<bool>,
}

impl Rules {
    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.refusal.get()
    }

    #[cold]
    pub(super) fn refuse(&self, refusal: Refusal) -> io::Error {
        self.refusal.set(Some(refusal));
        io::ErrorKind::InvalidData.into()
    }

    #[inline]
    pub(super) fn enter(&self) -> io::Result<()> {
        let depth = self.depth.get() + 1;
        if depth > MAX_DEPTH {
            return Err(self.refuse(Refusal::TooDeep));
        }
        self.depth.set(depth);
        Ok(())
    }

    #[inline]
    pub(super) fn leave(&self) {
        self.depth.set(self.depth.get().saturating_sub(1));
    }

    /// Runs `write`, which writes the key of a map. Keys of structs come from the program and need
    /// no check.
    #[inline]
    pub(super) fn in_key<T>(&self, write: impl FnOnce() -> T) -> T {
        self.in_key.set(true);
        let result = write();
        self.in_key.set(false);
        result
    }

    fn nul(&self) -> io::Error {
        self.refuse(if self.in_key.get() { Refusal::NulInKey } else { Refusal::Nul })
    }

    fn check_fragment(&self, fragment: &str) -> io::Result<()> {
        let room = MAX_DEPTH.saturating_sub(self.depth.get());
        let refusal = match Tree::parse_with_hidden(fragment, room) {
            Ok((tree, hidden)) => match iter::once(&tree).chain(&hidden).find_map(tree_refusal) {
                None => return Ok(()),
                Some(refusal) => refusal,
            },
            Err(Fault::TooDeep) => Refusal::TooDeep,
            Err(Fault::Malformed(_)) => Refusal::Fragment,
        };
        Err(self.refuse(refusal))
    }
}

/// The bytes written so far, at most [`MAX_BYTES`].
#[derive(Debug)]
pub(super) struct Sink<'r> {
    bytes: Vec<u8>,
    rules: &'r Rules,
}

/// Same as in `serde_json::to_string`. The arguments of most jobs fit.
const FIRST_CAPACITY: usize = 128;

impl<'r> Sink<'r> {
    pub(super) fn new(rules: &'r Rules) -> Self {
        Self { bytes: Vec::with_capacity(FIRST_CAPACITY), rules }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    #[cold]
    fn grow_and_write(&mut self, part: &[u8]) -> io::Result<()> {
        let needed = self.bytes.len().saturating_add(part.len());
        if needed > MAX_BYTES {
            return Err(self.rules.refuse(Refusal::TooLarge));
        }
        let capacity = needed.max(self.bytes.capacity().saturating_mul(2)).min(MAX_BYTES);
        self.bytes.reserve_exact(capacity - self.bytes.len());
        self.bytes.extend_from_slice(part);
        Ok(())
    }
}

impl io::Write for Sink<'_> {
    #[inline]
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.write_all(part)?;
        Ok(part.len())
    }

    #[inline]
    fn write_all(&mut self, part: &[u8]) -> io::Result<()> {
        // Checks the limit only when the buffer must grow, and it never grows above the limit. This
        // code runs for every bracket.
        if part.len() > self.bytes.capacity() - self.bytes.len() {
            return self.grow_and_write(part);
        }
        self.bytes.extend_from_slice(part);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The compact format with the checks of the rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard<'r>(pub(super) &'r Rules);

impl Formatter for Guard<'_> {
    #[inline]
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.enter()?;
        CompactFormatter.begin_array(writer)
    }

    #[inline]
    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.leave();
        CompactFormatter.end_array(writer)
    }

    #[inline]
    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.enter()?;
        CompactFormatter.begin_object(writer)
    }

    #[inline]
    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.leave();
        CompactFormatter.end_object(writer)
    }

    #[inline]
    fn write_char_escape<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        if matches!(escape, CharEscape::AsciiControl(0)) {
            return Err(self.0.nul());
        }
        CompactFormatter.write_char_escape(writer, escape)
    }

    // A key is read back from its digits, so only values have a limit: `flatten`, untagged enums
    // and `Value` read a wider integer as a float.
    fn write_i128<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: i128) -> io::Result<()> {
        let is_wide = i64::try_from(value).is_err() && u64::try_from(value).is_err();
        if is_wide && !self.0.in_key.get() {
            return Err(self.0.refuse(Refusal::WideInteger));
        }
        CompactFormatter.write_i128(writer, value)
    }

    fn write_u128<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: u128) -> io::Result<()> {
        if u64::try_from(value).is_err() && !self.0.in_key.get() {
            return Err(self.0.refuse(Refusal::WideInteger));
        }
        CompactFormatter.write_u128(writer, value)
    }

    // Numbers of `serde_json` in programs that enable its feature `arbitrary_precision`.
    fn write_number_str<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: &str) -> io::Result<()> {
        if let Some(refusal) = number_refusal(value).filter(|_| !self.0.in_key.get()) {
            return Err(self.0.refuse(refusal));
        }
        CompactFormatter.write_number_str(writer, value)
    }

    fn write_raw_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if fragment.len() > MAX_BYTES {
            return Err(self.0.refuse(Refusal::TooLarge));
        }
        self.0.check_fragment(fragment)?;
        CompactFormatter.write_raw_fragment(writer, fragment)
    }
}

fn tree_refusal(tree: &Tree<'_>) -> Option<Refusal> {
    match tree {
        Tree::Literal(literal) => number_refusal(literal),
        Tree::Text(text) => text.contains('\0').then_some(Refusal::Nul),
        Tree::Array(items) => items.iter().find_map(tree_refusal),
        Tree::Object(fields) => fields.iter().find_map(|(key, value)| {
            if key.contains('\0') { Some(Refusal::NulInKey) } else { tree_refusal(value) }
        }),
    }
}

/// The reason to refuse a number: readers would round it, or cannot represent it.
fn number_refusal(literal: &str) -> Option<Refusal> {
    if !literal.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
        return None;
    }
    if !literal.contains(['.', 'e', 'E']) {
        let is_wide = literal.parse::<i64>().is_err() && literal.parse::<u64>().is_err();
        return is_wide.then_some(Refusal::WideInteger);
    }
    if is_out_of_range(literal) {
        return Some(Refusal::Fragment);
    }
    is_rounded(literal).then_some(Refusal::LongNumber)
}

/// This many digits distinguish every pair of floats. Programs write floats with at most this many.
const FLOAT_DIGITS: usize = 17;

/// Whether the literal is neither the shortest form of its float, nor the float rounded to as many
/// digits as the literal. A number such as `0.10000000000000001` differs from its float, but some
/// programs write the float so.
fn is_rounded(literal: &str) -> bool {
    let Some(written) = Decimal::of(literal) else { return true };
    let n_behind = match written.digits.len() {
        0 => return false,
        n @ 1..=FLOAT_DIGITS => n - 1,
        _ => return true,
    };
    let Ok(float) = literal.parse::<f64>() else { return true };
    let forms = [format!("{float:e}"), format!("{float:.n_behind$e}")];
    !forms.iter().any(|form| Decimal::of(form).as_ref() == Some(&written))
}

/// The value of a literal: `0.digits` times ten to the power, without the sign, and without zeros
/// at both ends.
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    digits: String,
    power: i64,
}

impl Decimal {
    fn of(literal: &str) -> Option<Self> {
        let (mantissa, exponent) = literal.split_once(['e', 'E']).unwrap_or((literal, "0"));
        let mantissa = mantissa.trim_start_matches('-');
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        let n_leading = all.len() - all.trim_start_matches('0').len();
        let n_whole = i64::try_from(whole.len()).ok()? - i64::try_from(n_leading).ok()?;
        let power = exponent.parse::<i64>().ok()?.checked_add(n_whole)?;
        Some(Self { digits: all.trim_matches('0').to_owned(), power })
    }
}

/// The maximum number of decimals of a `numeric`, and so of a number in `jsonb`: PostgreSQL's
/// `NUMERIC_DSCALE_MAX`.
const MAX_DECIMALS: i64 = 16_383;

/// An exponent of a `numeric` must stay below this, in both directions.
const EXPONENT_LIMIT: i64 = i32::MAX as i64 / 2;

/// Whether a float cannot distinguish this number from infinity or zero, or a `numeric` cannot
/// store its digits.
fn is_out_of_range(literal: &str) -> bool {
    let (digits, exponent) = literal.split_once(['e', 'E']).unwrap_or((literal, "0"));
    let is_zero = !digits.contains(|digit: char| matches!(digit, '1'..='9'));
    let is_lost =
        literal.parse::<f64>().is_ok_and(|number| number.is_infinite() || (number == 0.0 && !is_zero));
    let decimals = digits.split_once('.').map_or(0, |(_, behind)| behind.len());
    let held = exponent.parse().ok().filter(|exponent: &i64| exponent.abs() < EXPONENT_LIMIT);
    is_lost || held.is_none_or(|exponent| i64::try_from(decimals).is_ok_and(|n| n - exponent > MAX_DECIMALS))
}
