//! Failpoints, for tests of the engine: before a write, after it, and with its acknowledgement lost, the write fails, the process dies, or both wait.
//!
//! One is armed at a time, and goes off once. See docs/decisions/0007-failpoints.md. A worker on a thread of its own may have faults of its own
//! (`scope`).

#[cfg(feature = "testing")]
pub(crate) mod scope;

use std::future::Future;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Where a write is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Nothing has been sent.
    Before,
    /// It is carried out, and acknowledged.
    After,
    /// It is carried out, and its caller hears of a lost connection.
    Lost,
}

/// What happens there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A connection is lost: before it, this write's; with its acknowledgement, this write's, too late; after it, that of the next write of the process.
    Error,
    /// The process dies, without unwinding: at once, and with the acknowledgement lost before its next write, in the middle of its recovery.
    Abort,
    /// The writer waits for [`release`]; with the acknowledgement lost it fails then.
    Wait,
}

/// A heartbeat is no consequence of another write.
const HEARTBEAT: &str = "heartbeat";

#[derive(Debug)]
struct State {
    armed: Option<(String, Moment, Action)>,
    /// What meets the next write of the process.
    next: Option<Action>,
    n_hits: u32,
}

static STATE: Mutex<State> = Mutex::new(State { armed: None, next: None, n_hits: 0 });
static RELEASED: Notify = Notify::const_new();

/// Arms a point: that of a statement by its name, that of a commit by its own.
pub fn arm(point: &str, moment: Moment, action: Action) {
    state().armed = Some((point.to_owned(), moment, action));
}

/// How many have gone off in this process.
#[must_use]
pub fn n_hits() -> u32 {
    state().n_hits
}

/// Lets the writer go on that waits, or the next one that will.
pub fn release() {
    RELEASED.notify_one();
}

/// Carries out a write under its name.
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

/// What meets a write before it is sent.
fn due(point: &str) -> Option<Action> {
    let next = if point == HEARTBEAT { None } else { state().next.take() };
    next.or_else(|| hit(point, Moment::Before))
}

/// Sets off what is armed here.
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

/// What sqlx says of a connection that is lost.
fn lost() -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::ConnectionReset, "a failpoint"))
}
