//! A worker that can die: a thread with its own runtime. Nothing of it remains when the thread
//! ends.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::super::Plan;
use crate::engine::test_hooks::{Role, TestHooks};
use crate::store::failpoints::scope::Scope;
use crate::{ClientError, Db, Timings, Worker};

/// Enough for the claimer, one writer, maintenance, a body in a transaction, and short queries.
const CONNECTIONS: u32 = 5;

/// Long, because the test declares a worker dead itself. No heartbeat reply tells the worker that
/// it is dead, so only its fence stops its writes.
const TIMINGS: Timings =
    Timings::new(Duration::from_secs(300), Duration::from_secs(600), Duration::from_secs(1200));

/// How long a stopped worker waits for a running body: longer than any body that does not hang.
const DRAIN: Duration = Duration::from_secs(10);

/// A worker as the test sees it.
pub(super) struct Process {
    pub(super) worker_id: i64,
    pub(super) scope: Arc<Scope>,
    stop: oneshot::Sender<()>,
    gone: oneshot::Receiver<()>,
}

impl Process {
    /// Starts a worker and returns once it claims runs.
    pub(super) async fn start(
        plan: &Arc<Plan>,
        options: &PgConnectOptions,
        scene: &Arc<TestHooks>,
        scope: Arc<Scope>,
        role: Role,
    ) -> Result<Self, ClientError> {
        let (started, starting) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let (going, gone) = oneshot::channel();
        let (plan, options, scene, its) =
            (Arc::clone(plan), options.clone(), Arc::clone(scene), Arc::clone(&scope));
        let live = move || {
            let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
            its.enter();
            runtime.block_on(async {
                let db = plan.sealed(Db::lazily(options, CONNECTIONS));
                match start(&plan, &db, &scene, role).await {
                    Ok(worker) => {
                        // The test may have ended.
                        let _ = started.send(Ok(worker.id()));
                        tokio::select! {
                            biased;
                            () = its.death() => {}
                            told = stopped => if told.is_ok() {
                                tokio::select! {
                                    () = its.death() => {}
                                    () = worker.stop() => {}
                                }
                            },
                        }
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                }
            });
            // Drops every task at its current await, and its connection with it.
            runtime.shutdown_background();
            let _ = going.send(());
        };
        let thread = std::thread::Builder::new().name("runledger-worker".to_owned()).spawn(live);
        thread
            .map_err(|error| ClientError::Config(format!("a worker's thread cannot be started: {error}")))?;
        match starting.await {
            Ok(Ok(worker_id)) => Ok(Self { worker_id, scope, stop, gone }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ClientError::Config("a worker's thread has panicked".to_owned())),
        }
    }

    /// Waits until nothing of a dead worker is left.
    pub(super) async fn gone(&mut self) {
        // An error means that the thread panicked, so it has ended too.
        let _ = (&mut self.gone).await;
    }

    /// Lets its attempts end, and waits for the worker.
    pub(super) async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.gone.await;
    }

    /// Ends the worker abruptly, as a death does.
    pub(super) fn kill(self) {
        drop(self.stop);
    }
}

async fn start(plan: &Plan, db: &Db, scene: &Arc<TestHooks>, role: Role) -> Result<Worker, ClientError> {
    Box::pin(plan.app(db, scene, role)?.timings(TIMINGS).drain(DRAIN).start()).await
}
