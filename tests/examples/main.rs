//! The programs in `examples/`, run like their readers run them: as processes, on databases of
//! their own.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on panics, in its helpers too")]

mod catalogue;
mod crashes;
mod help;
mod order;
mod program;
mod quickstart;
mod workflows;
