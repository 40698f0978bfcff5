//! Derives choices from the bytes of an input. After its end every choice is the first one, so
//! every input is valid.

/// The rest of an input.
#[derive(Debug)]
pub(crate) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    pub(crate) fn below(&mut self, limit: u8) -> u8 {
        self.byte() % limit.max(1)
    }

    pub(crate) fn is_true(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub(crate) fn wide(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    pub(crate) fn widest(&mut self) -> u128 {
        u128::from(self.wide()) << 64 | u128::from(self.wide())
    }

    /// Takes up to 255 of the next bytes as text.
    pub(crate) fn text(&mut self) -> String {
        let length = usize::from(self.byte()).min(self.0.len());
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8_lossy(text).into_owned()
    }
}
