//! Converts values to the stored JSON text and back. Refuses values that would not survive the
//! round trip.
//!
//! The text is stored in `json` columns, which keep every byte. Queries of operators cast it to
//! `jsonb`, which is stricter. Encoding therefore refuses what `json`, `jsonb` or the later
//! decoding would lose. This module does not know SQL, or the meaning of a value.
//!
//! ```text
//! value ── Checked (floats) ── serde_json ── Guard (depth, NUL, integers) ── Sink (size) ──> text
//!                        on a refusal: the path is that of the end of the text so far
//! text ── serde_json ──> value          on a refusal: once more, tracking the path
//! text ── Tree ──> canonical text, first difference
//! ```

mod canonical;
mod checked;
mod decode;
mod encode;
mod error;
mod guard;
mod path;
mod tree;

#[cfg(test)]
mod properties;

pub use canonical::{canonical, fingerprint, first_difference};
pub use decode::{Fields, decode};
pub use encode::{ErasedValue, encode, encode_object};
pub use error::{DecodeError, EncodeError};
pub use path::at as path_at;

/// The longest text that is written, in bytes: 16 MiB. Each kind of payload has a lower limit: see
/// [`Limits`](crate::Limits).
pub const MAX_BYTES: usize = 16 << 20;

/// The maximum nesting of arrays and objects; `[[1]]` has depth 2. Half of what `serde_json` reads
/// (128), so a stored value still decodes inside an envelope.
pub const MAX_DEPTH: usize = 64;
