//! Values as the JSON text that is stored, and back: whatever would not survive the round trip is refused.
//!
//! The text lives in `json` columns, which keep it byte for byte, and people's queries cast it to `jsonb`, which is
//! stricter. Encoding therefore refuses what either of them, or the later decoding, would lose. It knows nothing of
//! SQL and of what a value means.
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

/// The longest text that is written, in bytes: 16 MiB. What is stored has limits of its own below it, by what it is: see
/// [`Limits`](crate::Limits).
pub const MAX_BYTES: usize = 16 << 20;

/// How deeply arrays and objects may be nested; `[[1]]` has depth 2. Half of what `serde_json` reads back (128), so
/// that a stored value still decodes inside an envelope.
pub const MAX_DEPTH: usize = 64;
