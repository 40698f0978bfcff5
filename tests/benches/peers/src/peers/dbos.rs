//! `dbos`: stores workflows in `dbos.workflow_status` and steps in `dbos.operation_outputs`. A job
//! is a workflow without steps.

use std::{
    future::{Future, pending},
    time::Duration,
};

use dbos::{Config, DBOS, Enqueue, QueueConflict, QueueOptions, StartOptions, WorkflowRef};
use serde_json::Value;
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    Result,
    body::{self, Payload},
    database::{Completed, Database, Tables},
    figure::Figure,
    measure::clients,
    peer::Peer,
};

/// The middle step, and the number of steps before and after it.
const HELD: &str = "hold";
const HALF: u64 = 5;
const QUEUE: &str = "jobs";
/// `Config::max_connections` is 10 by default. Of 5, 10, 16 and 32, 16 ran the most workflows.
const CONNECTIONS: u64 = 16;
/// "How often this queue is polled when it is quiet", by default each second
/// (`QueueOptions::polling_interval`).
const POLLING: Duration = Duration::from_millis(10);
/// A queue's worker starts at one second and shortens the interval by a tenth per poll
/// (`src/dequeue.rs`). It reaches the set interval in about ten seconds.
const POLLING_SETTLES: Duration = Duration::from_secs(15);

pub struct Dbos {
    /// Enqueues and serves no queue: "a process that enqueues and never runs anything"
    /// (`Config::listen_queues`).
    outside: Application,
    url: String,
    figure: Figure,
}

/// A launched instance with the registered workflows.
#[derive(Clone)]
struct Application {
    instance: DBOS,
    job: WorkflowRef<Payload, ()>,
    steps: WorkflowRef<u64, Value>,
    held: WorkflowRef<u64, ()>,
}

impl Application {
    async fn launch(url: &str, connections: u64, listen: Option<Vec<String>>) -> Result<Self> {
        let instance = DBOS::new(Config {
            // Without a version the launch fails (`Config::app_version`).
            app_version: Some("1".to_owned()),
            max_connections: u32::try_from(connections)?,
            listen_queues: listen,
            ..Config::new("runledger-peers", url)
        });
        let job = instance.register_workflow("job", |job: Payload| async move {
            body::started(&job);
            dbos::Result::Ok(())
        })?;
        let steps = instance.register_workflow("steps", |steps: u64| async move {
            let mut last = Value::Null;
            for index in 0..steps {
                last = dbos::step("step", || async { dbos::Result::Ok(body::step(index)) }).await?;
            }
            dbos::Result::Ok(last)
        })?;
        let held = instance.register_workflow("held", |half: u64| async move {
            for index in 0..half {
                dbos::step("before", || async { dbos::Result::Ok(body::step(index)) }).await?;
            }
            dbos::step(HELD, || async {
                body::held().await;
                dbos::Result::Ok(())
            })
            .await?;
            for index in 0..half {
                dbos::step("after", || async { dbos::Result::Ok(body::step(index)) }).await?;
            }
            dbos::Result::Ok(())
        })?;
        instance.launch().await?;
        Ok(Self { instance, job, steps, held })
    }
}

impl Peer for Dbos {
    const NAME: &'static str = "dbos";
    const FIGURES: &'static [Figure] = &[
        Figure::Enqueue { jobs: 20_000, clients: 32 },
        Figure::Drain { jobs: 5_000, concurrency: 0 },
        Figure::Idle { seconds: 30 },
        Figure::Costs { jobs: 1_000, concurrency: 0 },
        Figure::StepCosts { workflows: 500, steps: 10, concurrency: 32 },
        Figure::Memory { workflows: 512 },
        Figure::Recovery { workflows: 256, restart: 1 },
        Figure::Workflows { workflows: 2_000, steps: 10, concurrency: 32 },
        Figure::Step { steps: 2_000 },
        Figure::Latency { rate: 0, seconds: 10, concurrency: 0, queued: false, local: 0 },
        Figure::Latency { rate: 0, seconds: 10, concurrency: 0, queued: true, local: 0 },
    ];
    const TABLES: Tables = Tables {
        stored: "select count(*) from dbos.workflow_status",
        unfinished: "select exists (select from dbos.workflow_status where status <> 'SUCCESS')",
        completed: Completed::Marked("select count(*) from dbos.workflow_status where status = 'SUCCESS'"),
        steps: Some("select count(*) from dbos.operation_outputs where output is not null and error is null"),
        finish: None,
        resumed: Some(
            "select (select max(started_at_epoch_ms) from dbos.operation_outputs where function_name = 'hold'),
                 (select max(updated_at) from dbos.workflow_status)",
        ),
    };

    async fn open(url: &str, figure: Figure) -> Result<Self> {
        // Never fewer: with one connection, its own maintenance and a single client wait for each
        // other.
        let clients = if let Figure::Enqueue { clients, .. } = figure { clients } else { 0 };
        let connections = clients.max(CONNECTIONS);
        let outside = Application::launch(url, connections, Some(Vec::new())).await?;
        let defaults = QueueOptions::default();
        let polling_interval =
            if let Figure::Idle { .. } = figure { defaults.polling_interval } else { POLLING };
        let options = QueueOptions { polling_interval, worker_concurrency: limit(figure)?, ..defaults };
        outside.instance.register_queue(QUEUE, options, QueueConflict::AlwaysUpdate).await?;
        Ok(Self { outside, url: url.to_owned(), figure })
    }

    fn notes(&self) -> String {
        match self.figure {
            Figure::Latency { queued: false, .. } => {
                "started in the process that runs it, without a queue".to_owned()
            }
            Figure::Latency { .. } | Figure::Idle { .. } => {
                format!("a queue polled each {POLLING:?}, since {POLLING_SETTLES:?}")
            }
            Figure::Memory { .. } => "five recorded steps and in the sixth; a queue".to_owned(),
            Figure::Recovery { .. } => {
                "a queue; by default a process is the executor `local`, and its launch puts what that left back"
                    .to_owned()
            }
            Figure::Drain { .. } | Figure::Costs { .. } => {
                "a queue; without a limit all of it is claimed at the first poll".to_owned()
            }
            Figure::Enqueue { .. } => "onto a queue that no process serves".to_owned(),
            _ => format!("started in the process that runs them, {CONNECTIONS} connections"),
        }
    }

    async fn enqueue(&self, job: Payload) -> Result<()> {
        let queue = match self.figure {
            Figure::Latency { queued: false, .. } => None,
            _ => Some(Enqueue::new(QUEUE)),
        };
        self.outside.job.start_with(job, StartOptions { queue, ..StartOptions::default() }).await?;
        Ok(())
    }

    fn enqueue_batch(&self, _jobs: Vec<Payload>) -> Option<impl Future<Output = Result<()>>> {
        None::<std::future::Ready<Result<()>>>
    }

    async fn enqueue_held(&self, n: u64, database: &mut Database) -> Result<()> {
        let application = self.outside.clone();
        clients(n, CONNECTIONS, move |_| {
            let application = application.clone();
            async move {
                let options = StartOptions { queue: Some(Enqueue::new(QUEUE)), ..StartOptions::default() };
                application.held.start_with(HALF, options).await?;
                Ok(())
            }
        })
        .await?;
        database.until("select count(*) from dbos.operation_outputs", n * HALF).await
    }

    async fn work(&self, _concurrency: u64) -> Result<JoinHandle<Result<()>>> {
        let worker = Application::launch(&self.url, CONNECTIONS, None).await?;
        if let Figure::Latency { queued: true, .. } = self.figure {
            sleep(POLLING_SETTLES).await;
        }
        Ok(tokio::spawn(async move {
            pending::<()>().await;
            worker.instance.shutdown().await;
            Ok(())
        }))
    }

    async fn workflows(
        &self,
        workflows: u64,
        steps: u64,
        concurrency: u64,
    ) -> Result<JoinHandle<Result<()>>> {
        let application = self.outside.clone();
        Ok(tokio::spawn(async move {
            clients(workflows, concurrency, move |_| {
                let application = application.clone();
                async move {
                    application.steps.run(steps).await?;
                    Ok(())
                }
            })
            .await?;
            pending().await
        }))
    }
}

/// `QueueOptions::worker_concurrency`: "How many of this queue's workflows may run at once in
/// **this** process". 0 means no limit and is the default here: with a limit a poll claims only as
/// many as have room, and a drain took twice as long.
fn limit(figure: Figure) -> Result<Option<i32>> {
    match figure {
        Figure::Drain { concurrency, .. } | Figure::Latency { concurrency, .. } if concurrency > 0 => {
            Ok(Some(i32::try_from(concurrency)?))
        }
        _ => Ok(None),
    }
}
