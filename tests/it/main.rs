//! The behaviours of the engine, each as a test named by its sentence.

mod payload;
mod registry;
mod embedded;
mod smoke;
mod transitions;
mod two_processes;
