//! A payload as text: before it is sealed, and as it stands in a column.

use std::fmt;
use std::ops::Deref;

use serde::Serialize;

use super::secret::noting;
use crate::model::json::{self, EncodeError, ErasedValue};

/// A payload as JSON text that is not sealed yet. Its `Debug` shows how long it is, and nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Plain {
    text: String,
    has_secret: bool,
}

impl Plain {
    /// The text of a value.
    ///
    /// # Errors
    /// As [`json::encode`].
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, EncodeError> {
        Self::noted(|| json::encode(value))
    }

    /// The object with these fields.
    ///
    /// # Errors
    /// As [`json::encode_object`].
    pub fn of_object(fields: &[(&str, &dyn ErasedValue)]) -> Result<Self, EncodeError> {
        Self::noted(|| json::encode_object(fields))
    }

    /// JSON text that the engine has made, or has read before: no secret is in it that the database does not have.
    #[must_use]
    pub fn ready(text: String) -> Self {
        Self { text, has_secret: false }
    }

    /// Text that was sealed where it was read, and is to be where it is written.
    #[must_use]
    pub(super) fn hidden(text: String) -> Self {
        Self { text, has_secret: true }
    }

    /// The same payload within another one's text.
    #[must_use]
    pub fn within(&self, text: String) -> Self {
        Self { text, has_secret: self.has_secret }
    }

    /// Whether a [`Secret`](super::Secret) is part of it.
    #[must_use]
    pub fn has_secret(&self) -> bool {
        self.has_secret
    }

    /// The text.
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

/// A payload as it stands in a column: sealed, or plain where it was stored without a codec. Its `Debug` shows how long it is.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Stored(pub(super) String);

impl Stored {
    /// What a column has.
    #[must_use]
    pub fn read(text: String) -> Self {
        Self(text)
    }

    /// The text, as it goes into a column.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The bytes of the text.
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
