//! Payloads between the program and the database: their text, their size limits and their
//! encryption.
//!
//! ```text
//! value ── Plain::of ──> Plain ── Sealer::seal (size, secrets, codec) ──> Stored ──> a column
//! a column ──> Stored ── Sealer::open ──> text ── json::decode ──> value
//! ```
//!
//! Statements take and return a [`Stored`]. Only a [`Sealer`] can turn a [`Plain`] into a
//! [`Stored`], so no payload reaches the database without it.

mod codec;
mod error;
mod failure;
mod limits;
mod sealer;
mod secret;
mod text;

#[cfg(test)]
mod tests;

pub(crate) use codec::PUBLISHED;
pub use codec::{Codec, CodecError, PayloadKind, Place, Sealed};
pub use error::PayloadError;
pub use limits::Limits;
pub use sealer::Sealer;
pub use secret::Secret;
pub use text::{Plain, Stored};
