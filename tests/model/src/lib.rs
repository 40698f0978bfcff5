//! The ownership protocol as a model whose every state is visited, and the engine's statements in every order in which they can meet.

pub mod ownership;
pub mod permutations;
pub mod statements;
