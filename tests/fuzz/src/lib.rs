//! Properties of the pure parts that hold for every input. `tests/quick.rs` checks a few thousand
//! inputs, `targets` as many as the time allows.

// A macro crate exports only macros, so its modules are compiled here a second time.
#[path = "../../../runledger-macros/src/attributes.rs"]
mod attributes;
#[path = "../../../runledger-macros/src/define.rs"]
mod define;
#[path = "../../../runledger-macros/src/expand/mod.rs"]
mod expand;
#[path = "../../../runledger-macros/src/fallback.rs"]
mod fallback;
#[path = "../../../runledger-macros/src/lint/mod.rs"]
mod lint;
#[path = "../../../runledger-macros/src/model/mod.rs"]
#[expect(clippy::large_enum_variant, reason = "tokens that know their places are larger than the compiler's")]
mod model;
#[path = "../../../runledger-macros/src/parse.rs"]
#[expect(clippy::large_enum_variant, reason = "tokens that know their places are larger than the compiler's")]
mod parse;
#[path = "../../../runledger-macros/src/problems.rs"]
mod problems;
#[path = "../../../runledger-macros/src/suggest.rs"]
mod suggest;

mod bytes;
mod durations;
pub mod jsonb;
mod macros;
mod names;
mod options;
mod payload;
mod records;
mod sealed;
mod value;

pub use durations::durations;
pub use names::names;
pub use options::options;
pub use payload::payload;
pub use records::records;
pub use sealed::sealed;

/// The check of one input. Panics if a property does not hold.
pub type Check = fn(&[u8]);

/// The fuzz targets, by name.
pub const TARGETS: [(&str, Check); 6] = [
    ("durations", durations),
    ("names", names),
    ("options", options),
    ("payload", payload),
    ("records", records),
    ("sealed", sealed),
];
