//! Decodes text to values in one pass. A second pass finds the path of a mismatch.

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;
use serde_json::{Deserializer, Error as JsonError};

use super::error::DecodeError;
use super::path;

/// Decodes the value in `text`. Does not catch a panic of a `Deserialize`.
///
/// # Errors
/// [`DecodeError::Malformed`] if the text is not JSON, [`DecodeError::Mismatch`] with the path of
/// the value that does not fit `T`.
pub fn decode<T: DeserializeOwned>(text: &str) -> Result<T, DecodeError> {
    serde_json::from_str(text).map_err(|error| locate::<T>("$", text, &error))
}

/// The fields of an object. They are located once, and each is decoded to its own type.
#[derive(Debug)]
pub struct Fields {
    by_name: BTreeMap<String, Box<RawValue>>,
}

impl Fields {
    /// Locates the fields of the object in `text`. If a field occurs twice, the last one counts.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`] if the text is not JSON, [`DecodeError::Mismatch`] if it is not
    /// an object.
    pub fn parse(text: &str) -> Result<Self, DecodeError> {
        let by_name = serde_json::from_str(text).map_err(|error| {
            if error.is_data() {
                DecodeError::Mismatch { path: "$".to_owned(), reason: reason(&error) }
            } else {
                DecodeError::Malformed { reason: error.to_string() }
            }
        })?;
        Ok(Self { by_name })
    }

    /// Whether the field exists.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Decodes the field `name`. A missing field reads as `null`, so a later version can add a
    /// parameter as an `Option`.
    ///
    /// # Errors
    /// [`DecodeError::Missing`] if the field is missing and `null` does not fit, otherwise as
    /// [`decode`].
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<T, DecodeError> {
        let Some(field) = self.by_name.get(name) else {
            return serde_json::from_str("null")
                .map_err(|error| DecodeError::Missing { name: name.to_owned(), reason: reason(&error) });
        };
        let text = field.get();
        serde_json::from_str(text).map_err(|error| {
            let mut root = "$".to_owned();
            path::push_key(&mut root, name);
            locate::<T>(&root, text, &error)
        })
    }
}

fn locate<T: DeserializeOwned>(root: &str, text: &str, error: &JsonError) -> DecodeError {
    // A key that does not fit its type also has the category of a syntax error.
    let is_json = || serde_json::from_str::<IgnoredAny>(text).is_ok();
    if !error.is_data() && !is_json() {
        return DecodeError::Malformed { reason: error.to_string() };
    }
    let path = match serde_path_to_error::deserialize::<_, T>(&mut Deserializer::from_str(text)) {
        Ok(_) => root.to_owned(),
        Err(error) => path::render(root, error.path()),
    };
    DecodeError::Mismatch { path, reason: reason(error) }
}

/// The message of serde without the position, because the path is more precise. Long messages are
/// cut.
fn reason(error: &JsonError) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    let text = text.strip_suffix(&position).unwrap_or(&text);
    match text.char_indices().nth(MAX_REASON) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or(text)),
    }
}

/// The longest kept message of serde, in characters. Serde quotes strings in full, and they are
/// user data.
const MAX_REASON: usize = 200;

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::Value;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Order {
        id: u64,
        notes: Vec<String>,
    }

    #[test]
    fn mismatch_names_its_path_and_expected_type() {
        let error = decode::<Vec<Order>>(r#"[{"id":1,"notes":["a",2]}]"#).unwrap_err();
        let DecodeError::Mismatch { path, reason } = &error else { panic!("{error}") };
        assert_eq!(path, "$[0].notes[1]");
        assert_eq!(reason, "invalid type: integer `2`, expected a string");
        assert!(
            error.to_string().starts_with("the value at `$[0].notes[1]` does not fit its type: invalid type")
        );
    }

    #[test]
    fn invalid_map_key_is_mismatch_at_its_object() {
        let error = decode::<Vec<BTreeMap<u32, bool>>>(r#"[{"tenant-7":true}]"#).unwrap_err();
        let DecodeError::Mismatch { path, .. } = &error else { panic!("{error}") };
        assert!(path.starts_with("$[0]"), "{error}");
    }

    #[test]
    fn missing_field_is_reported_at_its_object() {
        let error = decode::<Order>(r#"{"id":1}"#).unwrap_err();
        assert_eq!(error, DecodeError::Mismatch { path: "$".into(), reason: "missing field `notes`".into() });
    }

    #[test]
    fn truncated_or_continued_text_is_malformed() {
        for text in ["", "[1", "1 2", "{\"id\":"] {
            assert!(matches!(decode::<Value>(text), Err(DecodeError::Malformed { .. })), "{text}");
        }
    }

    #[test]
    fn long_payload_is_not_repeated_in_error() {
        let text = format!("[\"{}\"]", "é".repeat(5000));
        let error = decode::<Vec<u8>>(&text).unwrap_err();
        assert!(error.to_string().chars().count() < 500, "{error}");
    }

    #[test]
    fn fields_are_decoded_independently() {
        let fields =
            Fields::parse(r#"{"order":{"id":7,"notes":[]},"qty":"many","\u006eote":"a","\u0000":1}"#)
                .unwrap();
        assert_eq!(fields.get::<Order>("order").unwrap(), Order { id: 7, notes: vec![] });
        assert_eq!(fields.get::<String>("note").unwrap(), "a");
        assert_eq!(["qty", "note", "cents"].map(|name| fields.has(name)), [true, true, false]);
        let error = fields.get::<u32>("qty").unwrap_err();
        assert!(matches!(&error, DecodeError::Mismatch { path, .. } if path == "$.qty"), "{error}");
    }

    #[test]
    fn mismatch_inside_field_has_path_from_root() {
        let fields = Fields::parse(r#"{"order":{"id":7,"notes":[null]}}"#).unwrap();
        let error = fields.get::<Order>("order").unwrap_err();
        assert!(
            matches!(&error, DecodeError::Mismatch { path, .. } if path == "$.order.notes[0]"),
            "{error}"
        );
    }

    #[test]
    fn absent_field_is_none_or_missing_error() {
        let fields = Fields::parse("{}").unwrap();
        assert_eq!(fields.get::<Option<u32>>("qty").unwrap(), None);
        let error = fields.get::<u32>("qty").unwrap_err();
        assert!(error.to_string().starts_with("argument `qty` is missing: "), "{error}");
        assert!(error.to_string().contains("(invalid type: null, expected u32)"), "{error}");
    }

    #[test]
    fn arguments_other_than_object_are_refused() {
        for text in ["[1]", "null", "\"a\""] {
            assert!(
                matches!(Fields::parse(text), Err(DecodeError::Mismatch { path, .. }) if path == "$"),
                "{text}"
            );
        }
        assert!(matches!(Fields::parse("{"), Err(DecodeError::Malformed { .. })));
    }
}
