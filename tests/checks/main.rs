//! The guarantees, checked from outside while workers are paused, killed and cut off. Each scenario
//! is a fixed schedule: it waits for lines of the history and for rows, and ends once every run
//! has.

mod crashes;
mod endings;
mod enqueue;
mod failovers;
mod families;
mod isolation;
mod lost_messages;
mod points;
mod versions;
mod zombies;

const WORKER: &str = env!("CARGO_BIN_EXE_check_worker");
const SCENE: &str = env!("CARGO_BIN_EXE_scene");
