//! The one way to spawn: every task is named, owned and joined.

use std::future::Future;

use tokio::sync::watch;
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
pub(crate) async fn apart<F>(name: &'static str, work: F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match spawn(name, work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Spawns one of the tasks that live and end together.
#[cfg(feature = "worker")]
pub(crate) fn spawn_on(
    crew: &mut JoinSet<()>,
    name: &'static str,
    future: impl Future<Output = ()> + Send + 'static,
) {
    tracing::trace!(task = name, "spawned");
    crew.spawn(future);
}

/// Returns when a flag is raised, or nobody is left to raise it.
pub(crate) async fn raised(flag: &mut watch::Receiver<bool>) {
    // The guard of the value must not live on: whoever selects on this is sent between threads.
    let _ = flag.wait_for(|raised| *raised).await.is_ok();
}
