//! The one way to spawn: every task is named, owned and joined.

use std::future::Future;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
#[cfg(feature = "worker")]
use tokio::task::JoinSet;

/// Spawns a task. `name` tells it in traces.
pub(crate) fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tracing::trace!(task = name, "spawned");
    tokio::spawn(future)
}

/// Carries out work to its end, whether whoever waits for it polls, is dropped or does not: what such work holds is not held for as long as a program likes.
/// The work is told when nobody waits for it any more.
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

/// Tells work that is carried out apart whether anybody waits for it.
#[derive(Debug)]
pub(crate) struct Abandoned(oneshot::Sender<()>);

impl Abandoned {
    /// What a future gives; none where nobody waits for the work any more, before it has given that.
    pub(crate) async fn or<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.0.closed() => None,
            output = future => Some(output),
        }
    }
}

/// Spawns one of the tasks that live and end together.
#[cfg(feature = "worker")]
pub(crate) fn spawn_on(
    tasks: &mut JoinSet<()>,
    name: &'static str,
    future: impl Future<Output = ()> + Send + 'static,
) {
    tracing::trace!(task = name, "spawned");
    tasks.spawn(future);
}

/// Returns when a flag is raised, or nobody is left to raise it.
pub(crate) async fn raised(flag: &mut watch::Receiver<bool>) {
    // The guard of the value must not live on: whoever selects on this is sent between threads.
    let _ = flag.wait_for(|raised| *raised).await.is_ok();
}
