//! The failure hook: application code that runs after a failed run is committed. It cannot change
//! the outcome.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::connection::code_context::CodeContext;
use crate::connection::panic::{Caught, contained};
use crate::definition::failed::FailedRun;

/// How long a hook may run. The run keeps its slot during that time.
pub(crate) const LONGEST: Duration = Duration::from_secs(30);

type Told = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The hook of an app for failed runs.
#[derive(Clone)]
pub(crate) struct FailureHook(Arc<dyn Fn(FailedRun) -> Told + Send + Sync>);

impl FailureHook {
    pub(crate) fn new<F, Fut>(hook: F) -> Self
    where
        F: Fn(FailedRun) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Self(Arc::new(move |failed| Box::pin(hook(failed))))
    }

    /// Calls the hook for a run. Returns within [`LONGEST`], unless the hook blocks its thread.
    pub(crate) async fn tell(&self, failed: FailedRun) {
        let (run_id, job) = (failed.run_id, failed.job.clone());
        let told = match contained(|| (self.0)(failed)) {
            Err(panic) => Err(panic),
            Ok(told) => {
                let mut caught = Caught::new(CodeContext::Other, told);
                match timeout(LONGEST, &mut caught).await {
                    Ok(told) => told,
                    Err(_) => {
                        tracing::error!(%run_id, job, "the failure hook did not end within {LONGEST:?} and was dropped");
                        caught.discard().map_or(Ok(()), Err)
                    }
                }
            }
        };
        if let Err(failure) = told {
            // Do not log the panic message: it may contain the run's failure, which may be
            // encrypted. The program's own panic hook has already received it.
            let location = failure.location.as_deref().unwrap_or_default();
            tracing::error!(%run_id, job, location, "the failure hook panicked");
        }
    }
}

impl fmt::Debug for FailureHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FailureHook")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::run::failure::{Failure, FailureKind};

    fn failed() -> FailedRun {
        FailedRun {
            run_id: uuid::Uuid::nil(),
            job: "charge".to_owned(),
            version: 1,
            tenant: String::new(),
            input: "{}".to_owned(),
            failure: Failure::new(FailureKind::Error, "no"),
            attempts: 1,
            progress: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_hook_is_abandoned_after_time_limit() {
        let began = tokio::time::Instant::now();
        FailureHook::new(|_| std::future::pending()).tell(failed()).await;
        assert_eq!(began.elapsed(), LONGEST);
    }

    #[tokio::test]
    async fn panicking_hook_is_survived_before_and_in_its_future() {
        FailureHook::new(|_| -> std::future::Ready<()> { panic!("before its future") }).tell(failed()).await;
        FailureHook::new(|_| async { panic!("in its future") }).tell(failed()).await;
    }
}
