//! The only way to spawn: every task is named, owned and joined.

use std::future::Future;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// Spawns a task. Traces show its `name`.
pub(crate) fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tracing::trace!(task = name, "spawned");
    tokio::spawn(future)
}

/// Spawns work that runs to its end even if its caller is dropped or stops polling. So the
/// resources of the work do not stay locked for as long as the caller likes. The work learns
/// through [`Abandoned`] when its caller is gone.
pub(crate) async fn spawn_detached<F>(name: &'static str, work: impl FnOnce(Abandoned) -> F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let (let_go, _waiting) = oneshot::channel();
    match spawn(name, work(Abandoned(let_go))).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Tells detached work whether its caller still waits.
#[derive(Debug)]
pub(crate) struct Abandoned(oneshot::Sender<()>);

impl Abandoned {
    /// The output of `future`. `None` if the caller is gone first.
    pub(crate) async fn or<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.0.closed() => None,
            output = future => Some(output),
        }
    }
}

/// Spawns a task into a set whose tasks live and end together.
#[cfg(feature = "worker")]
pub(crate) fn spawn_on(
    tasks: &mut tokio::task::JoinSet<()>,
    name: &'static str,
    future: impl Future<Output = ()> + Send + 'static,
) {
    tracing::trace!(task = name, "spawned");
    tasks.spawn(future);
}

/// Returns when the flag is raised, or when its sender is gone.
pub(crate) async fn raised(flag: &mut watch::Receiver<bool>) {
    // Drops the guard of the value: callers that select on this future move between threads.
    let _ = flag.wait_for(|raised| *raised).await.is_ok();
}
