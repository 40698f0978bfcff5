//! Checkers of the guarantees. Each reads a history recorded outside the database, and the final
//! rows. It returns what contradicts the guarantee; an empty answer means that the guarantee held.
//!
//! ```text
//! bodies  ──start, end──▶ Place (a file, appended) ─┐
//! clients ──intent, ok──▶ Calls, Sent, Pause       ─┼─▶ checker ─▶ violations
//! triggers of the test database only ──▶ Facts     ─┘
//! ```
//!
//! The checkers must not know how the engine works. They compare times of bodies with times of the
//! database, so both need the same clock: the tests run on the server's machine.

pub mod attempts;
pub mod calls;
pub mod cancels;
pub mod deadlines;
pub mod excuses;
pub mod facts;
pub mod fleet;
pub mod graphs;
pub mod jobs;
pub mod joins;
pub mod output;
pub mod ownership;
pub mod pauses;
pub mod permits;
pub mod place;
pub mod points;
pub mod progress;
pub mod sagas;
pub mod scenes;
pub mod shapes;
pub mod signals;
pub mod slices;
pub mod steps;
pub mod terminal;

pub use excuses::Excuses;
pub use facts::Facts;
pub use fleet::Fleet;
pub use place::{Event, Place, What};

/// Contradictions of a guarantee, as sentences.
pub type Violations = Vec<String>;
