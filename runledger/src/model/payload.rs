//! Payloads between the program and the database: what a value is as text, how large it may be, and how it is sealed.
//!
//! ```text
//! value ── Plain::of ──> Plain ── Sealer::seal (size, secrets, codec) ──> Stored ──> a column
//! a column ──> Stored ── Sealer::open ──> text ── json::decode ──> value
//! ```
//!
//! Statements take a [`Stored`] and give one, and nothing but a [`Sealer`] makes one of a [`Plain`]: so no payload reaches the database beside it.

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
