//! Definitions that must compile without a warning under the strictest lints, without the prelude,
//! and without imports on which generated code could depend.
#![deny(warnings, missing_docs, clippy::pedantic, clippy::nursery, unused_qualifications, unreachable_pub)]
#![deny(missing_debug_implementations, missing_copy_implementations, elided_lifetimes_in_paths)]
#![no_implicit_prelude]

#[expect(
    unused_extern_crates,
    reason = "the library under a second name, which generated code must not meet"
)]
extern crate runledger as not_its_name;

pub mod charge;
pub mod facades;
pub mod hostile;
pub mod payloads;
pub mod replays;

pub use crate::charge::charge;
pub use crate::payloads::{reserve as hold, scan};
