//! Failpoints for tests of the engine. Before a write, after it, or with its acknowledgement lost,
//! the write fails, the process dies, or the writer waits.
//!
//! One failpoint is armed at a time, and it triggers once. See docs/decisions/0007-failpoints.md. A
//! worker on its own thread may have its own faults (`scope`).

#[cfg(feature = "testing")]
pub(crate) mod scope;

use std::future::Future;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// When a failpoint triggers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Nothing has been sent.
    Before,
    /// The write is executed and acknowledged.
    After,
    /// The write is executed, and its caller sees a lost connection.
    Lost,
}

/// The action of a failpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A connection is lost. With `Before`, it is this write's connection. With `Lost`, it is this
    /// write's connection too, but after the write. With `After`, it is the connection of the
    /// process's next write.
    Error,
    /// The process dies without unwinding, at once. With `Lost`, it dies before its next write, in
    /// the middle of its recovery.
    Abort,
    /// The writer waits for [`release`]. With `Lost`, it then fails.
    Wait,
}

/// A heartbeat never follows from another write, so it does not count as the next write.
const HEARTBEAT: &str = "heartbeat";

#[derive(Debug)]
struct State {
    armed: Option<(String, Moment, Action)>,
    /// What happens at the next write of the process.
    next: Option<Action>,
    n_hits: u32,
}

static STATE: Mutex<State> = Mutex::new(State { armed: None, next: None, n_hits: 0 });
static RELEASED: Notify = Notify::const_new();

/// Arms a failpoint. Its name is the name of a statement or of a commit.
pub fn arm(point: &str, moment: Moment, action: Action) {
    state().armed = Some((point.to_owned(), moment, action));
}

/// How many failpoints have triggered in this process.
#[must_use]
pub fn n_hits() -> u32 {
    state().n_hits
}

/// Releases the writer that waits, or the next writer that will wait.
pub fn release() {
    RELEASED.notify_one();
}

/// Executes a write under its name.
pub(crate) async fn pass<T: 'static>(
    point: &str,
    write: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    #[cfg(feature = "testing")]
    if let Some(scope) = scope::current() {
        return scope.pass(point, write).await;
    }
    match due(point) {
        None => {}
        Some(Action::Error) => return Err(lost()),
        Some(Action::Abort) => std::process::abort(),
        Some(Action::Wait) => RELEASED.notified().await,
    }
    let done = write.await?;
    match hit(point, Moment::After) {
        None => {}
        Some(Action::Error) => state().next = Some(Action::Error),
        Some(Action::Abort) => std::process::abort(),
        Some(Action::Wait) => RELEASED.notified().await,
    }
    match hit(point, Moment::Lost) {
        None => return Ok(done),
        Some(Action::Error) => {}
        Some(Action::Abort) => state().next = Some(Action::Abort),
        Some(Action::Wait) => RELEASED.notified().await,
    }
    Err(lost())
}

/// What happens to a write before it is sent.
fn due(point: &str) -> Option<Action> {
    let next = if point == HEARTBEAT { None } else { state().next.take() };
    next.or_else(|| hit(point, Moment::Before))
}

/// Triggers the failpoint that is armed here.
fn hit(point: &str, moment: Moment) -> Option<Action> {
    let mut state = state();
    let (_, _, action) = state.armed.take_if(|armed| armed.0 == point && armed.1 == moment)?;
    state.n_hits += 1;
    Some(action)
}

fn state() -> MutexGuard<'static, State> {
    // Nothing panics while it holds the lock.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sqlx error of a lost connection.
fn lost() -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::ConnectionReset, "a failpoint"))
}
