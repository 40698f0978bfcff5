//! Encodes values to text in one pass. On a refusal, the text so far gives the path of the refused
//! value.

use std::io::Write;

use serde::Serialize;
use serde::ser::Error as _;
use serde_json::Error as JsonError;
use serde_json::error::Category;

use super::checked::Checked;
use super::error::EncodeError;
use super::guard::{Guard, Refusal, Rules, Sink};
use super::path;

/// Encodes `value` as JSON text. Takes 1.2 to 1.5 times as long as `serde_json::to_string`.
///
/// Cannot detect what a type loses before it is serialized: `serde_json::Value` turns a NaN into
/// `null` when it is built.
///
/// # Errors
/// [`EncodeError`], with the path of the first value that storage would not preserve.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<String, EncodeError> {
    run(|pass| pass.value(value))
}

/// Encodes an object with these fields in this order: the arguments of a job by parameter name. The
/// object counts as one level of [`MAX_DEPTH`](super::MAX_DEPTH). The names must differ, like those
/// of parameters.
///
/// # Errors
/// Same as [`encode`].
pub fn encode_object(fields: &[(&str, &dyn ErasedValue)]) -> Result<String, EncodeError> {
    run(|pass| {
        pass.rules.enter().map_err(JsonError::custom)?;
        pass.punctuation(b"{")?;
        for (index, (name, value)) in fields.iter().enumerate() {
            if index > 0 {
                pass.punctuation(b",")?;
            }
            pass.value(*name)?;
            pass.punctuation(b":")?;
            value.write_to(pass)?;
        }
        pass.punctuation(b"}")
    })
}

/// A value without its type, so one slice can contain arguments of different types. Every
/// `Serialize` implements it.
pub trait ErasedValue {
    /// Appends the text of the value.
    ///
    /// # Errors
    /// The value was refused, or its `Serialize` failed.
    fn write_to(&self, pass: &mut Pass<'_>) -> Result<(), JsonError>;
}

impl<T: Serialize + ?Sized> ErasedValue for T {
    fn write_to(&self, pass: &mut Pass<'_>) -> Result<(), JsonError> {
        pass.value(self)
    }
}

/// A text in progress.
#[derive(Debug)]
pub struct Pass<'r> {
    sink: Sink<'r>,
    rules: &'r Rules,
}

impl Pass<'_> {
    #[inline]
    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), JsonError> {
        let mut json = serde_json::Serializer::with_formatter(&mut self.sink, Guard(self.rules));
        value.serialize(Checked { to: &mut json, rules: self.rules })
    }

    fn punctuation(&mut self, text: &[u8]) -> Result<(), JsonError> {
        self.sink.write_all(text).map_err(JsonError::custom)
    }
}

#[inline]
fn run(write: impl FnOnce(&mut Pass<'_>) -> Result<(), JsonError>) -> Result<String, EncodeError> {
    let rules = Rules::default();
    let mut pass = Pass { sink: Sink::new(&rules), rules: &rules };
    let result = write(&mut pass);
    finish(result, pass.sink.into_bytes(), rules.refusal())
}

fn finish(
    result: Result<(), JsonError>,
    bytes: Vec<u8>,
    refusal: Option<Refusal>,
) -> Result<String, EncodeError> {
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => return Err(EncodeError::Failed { path: "$".to_owned(), reason: error.to_string() }),
    };
    match (result, refusal) {
        (Ok(()), None) => Ok(text),
        (Err(error), _) => Err(explain(refusal, &error, path::of_end(&text))),
        // A `Serialize` ignored the error and continued to write, so the end of the text is not the
        // place of the error.
        (Ok(()), Some(_)) => {
            Err(explain(refusal, &JsonError::custom("an error was passed over"), "$".to_owned()))
        }
    }
}

fn explain(refusal: Option<Refusal>, error: &JsonError, path: String) -> EncodeError {
    match refusal {
        Some(Refusal::NotFinite) => EncodeError::NotFinite { path },
        Some(Refusal::Nul) => EncodeError::Nul { path },
        Some(Refusal::NulInKey) => EncodeError::NulInKey { path },
        Some(Refusal::TooDeep) => EncodeError::TooDeep { path },
        Some(Refusal::TooLarge) => EncodeError::TooLarge { path },
        Some(Refusal::WideInteger) => EncodeError::WideInteger { path },
        Some(Refusal::LongNumber) => EncodeError::LongNumber { path },
        Some(Refusal::Fragment) => EncodeError::Fragment { path },
        Some(Refusal::Display) | None => match error.classify() {
            // Only a key can cause a syntax error of the serializer.
            Category::Syntax => EncodeError::Key { path },
            Category::Io | Category::Data | Category::Eof => {
                EncodeError::Failed { path, reason: error.to_string() }
            }
        },
    }
}

#[cfg(test)]
mod tests;
