//! Errors of encoding and decoding.

use super::{MAX_BYTES, MAX_DEPTH};

/// The reason why a value cannot be stored as JSON. Every variant has the path of the value, such
/// as `$.order.note[3]`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// JSON cannot represent the number.
    #[error(
        "the number at `{path}` is infinite or not a number: JSON would store `null` in its place; store an `Option`, \
         or a string"
    )]
    NotFinite {
        /// The path of the number.
        path: String,
    },
    /// A string contains a NUL character.
    #[error(
        "the text at `{path}` contains a NUL character: PostgreSQL's `jsonb` cannot hold it; remove it, or store the \
         bytes as hex or base64"
    )]
    Nul {
        /// The path of the string.
        path: String,
    },
    /// The key of an object contains a NUL character.
    #[error(
        "a key of the object at `{path}` contains a NUL character: PostgreSQL's `jsonb` cannot hold it; remove it"
    )]
    NulInKey {
        /// The path of the object.
        path: String,
    },
    /// Arrays and objects are nested more deeply than [`MAX_DEPTH`].
    #[error(
        "the value is nested more than {MAX_DEPTH} levels deep at `{path}`: readers of JSON stop at such depths; \
         store it flat, as a list with the index of each parent"
    )]
    TooDeep {
        /// The path of the first array or object that is too deep.
        path: String,
    },
    /// The text is longer than [`MAX_BYTES`].
    #[error(
        "the value is larger than {MAX_BYTES} bytes of JSON, passed at `{path}`: every replay would read it again; \
         store it in a table or an object store and keep its key here"
    )]
    TooLarge {
        /// The path at which the text exceeded the limit.
        path: String,
    },
    /// A key is not a string, number, boolean or unit variant.
    #[error(
        "a key of the map at `{path}` is not a string: JSON has no other keys; serialize the map as a list of pairs, \
         or give the key a string form"
    )]
    Key {
        /// The path of the map.
        path: String,
    },
    /// An integer exceeds 64 bits. It comes from a 128-bit type or from ready-made JSON
    /// (`RawValue`).
    #[error(
        "the integer at `{path}` needs more than 64 bits: a reader of JSON rounds it to a float; store it as a string"
    )]
    WideInteger {
        /// The path of the integer.
        path: String,
    },
    /// No float equals a number in ready-made JSON (`RawValue`): it has more than 17 digits, or
    /// lies between two floats.
    #[error(
        "a float cannot keep all digits of the number at `{path}`: a reader of JSON rounds it; store it as a string"
    )]
    LongNumber {
        /// The path of the number.
        path: String,
    },
    /// Ready-made JSON (`RawValue`) cannot be read back.
    #[error(
        "the ready-made JSON at `{path}` would not read back: it has half of a surrogate pair, or a number out of the \
         range of floats or of PostgreSQL's `numeric`; correct its source, or store it as a string"
    )]
    Fragment {
        /// The path of the JSON.
        path: String,
    },
    /// The `Serialize` or `Display` implementation of a type failed.
    #[error(
        "the value at `{path}` does not serialize: {reason}; correct the value or its `Serialize` implementation"
    )]
    Failed {
        /// The path of the value.
        path: String,
        /// The message of the implementation.
        reason: String,
    },
}

/// The reason why a stored text cannot be read. Shows at most the beginning of serde's own message,
/// which may quote the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The text is not JSON, or exceeds what a reader accepts.
    #[error(
        "the text does not read as JSON: {reason}; it was cut, or not written by this library; compare the stored row"
    )]
    Malformed {
        /// The parser's message, with line and column.
        reason: String,
    },
    /// The text is nested more deeply than [`MAX_DEPTH`].
    #[error(
        "the text is nested more than {MAX_DEPTH} levels deep: no value of this library is; store it flat"
    )]
    TooDeep,
    /// The JSON does not fit the type.
    #[error(
        "the value at `{path}` does not fit its type: {reason}; the type changed since it was stored, or another \
         program wrote it; accept the stored form too (`#[serde(default)]`, `#[serde(alias)]`, an untagged enum)"
    )]
    Mismatch {
        /// The path of the value, such as `$.order.note[3]`.
        path: String,
        /// The actual and the expected value.
        reason: String,
    },
    /// The record lacks an argument, and `null` does not fit its type.
    #[error(
        "argument `{name}` is missing: the input was recorded without it and `null` does not stand for it ({reason}); \
         make it an `Option`, or start the job under a new name"
    )]
    Missing {
        /// The name of the parameter.
        name: String,
        /// The expected value.
        reason: String,
    },
}
