//! The guarantees, checked from outside while workers are paused, killed and cut off. Each scenario is a schedule, not
//! chance: what it waits for is a line of the history or a row, and it ends only when every run has.

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

/// The program that is a worker.
const WORKER: &str = env!("CARGO_BIN_EXE_check_worker");

/// The program that plays a scene.
const SCENE: &str = env!("CARGO_BIN_EXE_scene");
