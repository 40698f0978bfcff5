//! Why a value was refused, or a text could not be read.

use super::{MAX_BYTES, MAX_DEPTH};

/// Why a value cannot be stored as JSON. Every variant carries the path of the offending value, like
/// `$.order.note[3]`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A number that JSON cannot write.
    #[error(
        "the number at `{path}` is infinite or not a number: JSON would store `null` in its place; store an `Option`, \
         or a string"
    )]
    NotFinite {
        /// Where it is.
        path: String,
    },
    /// A NUL character in a string.
    #[error(
        "the text at `{path}` contains a NUL character: PostgreSQL's `jsonb` cannot hold it; remove it, or store the \
         bytes as hex or base64"
    )]
    Nul {
        /// Where the string is.
        path: String,
    },
    /// A NUL character in the key of an object.
    #[error(
        "a key of the object at `{path}` contains a NUL character: PostgreSQL's `jsonb` cannot hold it; remove it"
    )]
    NulInKey {
        /// Where the object is.
        path: String,
    },
    /// Arrays and objects nested more deeply than [`MAX_DEPTH`].
    #[error(
        "the value is nested more than {MAX_DEPTH} levels deep at `{path}`: readers of JSON stop at such depths; \
         store it flat, as a list with the index of each parent"
    )]
    TooDeep {
        /// The first array or object that is too deep.
        path: String,
    },
    /// A text longer than [`MAX_BYTES`].
    #[error(
        "the value is larger than {MAX_BYTES} bytes of JSON, passed at `{path}`: every replay would read it again; \
         store it in a table or an object store and keep its key here"
    )]
    TooLarge {
        /// Where the limit was passed.
        path: String,
    },
    /// A key that is no string, number, boolean or unit variant.
    #[error(
        "a key of the map at `{path}` is not a string: JSON has no other keys; serialize the map as a list of pairs, \
         or give the key a string form"
    )]
    Key {
        /// Where the map is.
        path: String,
    },
    /// An integer beyond 64 bits, from a 128-bit type or from ready-made JSON (`RawValue`).
    #[error(
        "the integer at `{path}` needs more than 64 bits: a reader of JSON rounds it to a float; store it as a string"
    )]
    WideInteger {
        /// Where it is.
        path: String,
    },
    /// A number in ready-made JSON (`RawValue`) that no float has: with more than 17 digits, or between two floats.
    #[error(
        "a float cannot keep all digits of the number at `{path}`: a reader of JSON rounds it; store it as a string"
    )]
    LongNumber {
        /// The path of the number.
        path: String,
    },
    /// Ready-made JSON (`RawValue`) that does not read back.
    #[error(
        "the ready-made JSON at `{path}` would not read back: it has half of a surrogate pair, or a number out of the \
         range of floats or of PostgreSQL's `numeric`; correct its source, or store it as a string"
    )]
    Fragment {
        /// Where it is.
        path: String,
    },
    /// The `Serialize` or `Display` implementation of a type failed.
    #[error(
        "the value at `{path}` does not serialize: {reason}; correct the value or its `Serialize` implementation"
    )]
    Failed {
        /// Where it is.
        path: String,
        /// What the implementation said.
        reason: String,
    },
}

/// Why a stored text cannot be read. Of its content, at most the beginning of serde's own message is shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The text is not JSON, or beyond what a reader accepts.
    #[error(
        "the text does not read as JSON: {reason}; it was cut, or not written by this library; compare the stored row"
    )]
    Malformed {
        /// What the parser said, with line and column.
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
        /// Where it is, like `$.order.note[3]`.
        path: String,
        /// What was found and what was expected.
        reason: String,
    },
    /// An argument that was not recorded, of a type that `null` does not fit.
    #[error(
        "argument `{name}` is missing: the input was recorded without it and `null` does not stand for it ({reason}); \
         make it an `Option`, or start the job under a new name"
    )]
    Missing {
        /// The name of the parameter.
        name: String,
        /// What was expected.
        reason: String,
    },
}
