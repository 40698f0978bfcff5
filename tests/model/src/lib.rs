//! The ownership protocol as a model with an exhaustive search, and the engine's statements in
//! every possible interleaving.

pub mod ownership;
pub mod permutations;
pub mod statements;
