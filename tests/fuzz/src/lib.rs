//! What holds for every input of the pure parts, whatever bytes it is made of. `tests/quick.rs` asks a few thousand inputs, `targets` as many as there is
//! time for.

// A library of macros exports nothing but macros, so its modules are compiled here once more.
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

/// The check of one input. It panics where something does not hold.
pub type Check = fn(&[u8]);

/// What is fuzzed, by name.
pub const TARGETS: [(&str, Check); 6] = [
    ("durations", durations),
    ("names", names),
    ("options", options),
    ("payload", payload),
    ("records", records),
    ("sealed", sealed),
];
