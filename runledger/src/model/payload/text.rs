//! A payload as text: before encryption, and as a column stores it.

use std::fmt;
use std::ops::Deref;

use serde::Serialize;

use super::secret::noting;
use crate::model::json::{self, EncodeError, ErasedValue};

/// A payload as JSON text before encryption. Its `Debug` shows only the length.
#[derive(Clone, PartialEq, Eq)]
pub struct Plain {
    text: String,
    has_secret: bool,
}

impl Plain {
    /// Encodes a value.
    ///
    /// # Errors
    /// Same as [`json::encode`].
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, EncodeError> {
        Self::noted(|| json::encode(value))
    }

    /// Encodes an object with these fields.
    ///
    /// # Errors
    /// Same as [`json::encode_object`].
    pub fn of_object(fields: &[(&str, &dyn ErasedValue)]) -> Result<Self, EncodeError> {
        Self::noted(|| json::encode_object(fields))
    }

    /// JSON text that the engine generated or has read. It contains no secret that is new to the
    /// database.
    #[must_use]
    pub fn ready(text: String) -> Self {
        Self { text, has_secret: false }
    }

    /// Text that was encrypted at its source, and must be encrypted again.
    #[must_use]
    pub(super) fn hidden(text: String) -> Self {
        Self { text, has_secret: true }
    }

    /// The same payload inside a larger text.
    #[must_use]
    pub fn within(&self, text: String) -> Self {
        Self { text, has_secret: self.has_secret }
    }

    /// Whether the payload contains a [`Secret`](super::Secret).
    #[must_use]
    pub fn has_secret(&self) -> bool {
        self.has_secret
    }

    /// Returns the text.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    fn noted(encode: impl FnOnce() -> Result<String, EncodeError>) -> Result<Self, EncodeError> {
        let (text, has_secret) = noting(encode);
        Ok(Self { text: text?, has_secret })
    }
}

impl Deref for Plain {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.text.len())
    }
}

/// A payload as a column stores it: encrypted, or plain if it was stored without a codec. Its
/// `Debug` shows only the length.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Stored(pub(super) String);

impl Stored {
    /// Wraps the text of a column.
    #[must_use]
    pub fn read(text: String) -> Self {
        Self(text)
    }

    /// The text for a column.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The length of the text in bytes.
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}
