//! This project's engine with default settings.

use std::ops::Range;

use runledger::prelude::{App, Db, job};
use runledger::{Graph, Worker, enqueue_all};
use uuid::Uuid;

use crate::Result;
use crate::engine::{Engine, NOTE, Planned, Store, Tables};

#[job]
async fn noted(user_id: u64, note: &str) -> runledger::Result<()> {
    let _ = (user_id, note);
    Ok(())
}

pub struct Ours {
    url: String,
    db: Db,
}

impl Store for Ours {
    const RUNS: &'static str = "select count(*) from runledger.run";
    // Every run without a parent is a graph: measurements with graphs submit nothing else.
    const GRAPHS: &'static str = "select count(*) from runledger.run where parent_id is null";

    async fn open(url: &str) -> Result<Self> {
        Ok(Self { url: url.to_owned(), db: Db::connect(url).await? })
    }

    async fn enqueue(&self, n: u64) -> Result<()> {
        noted(n, NOTE).enqueue(&self.db).await?;
        Ok(())
    }

    async fn enqueue_all(&self, runs: Range<u64>) -> Result<()> {
        enqueue_all(runs.map(|n| noted(n, NOTE)), &self.db).await?;
        Ok(())
    }

    async fn submit(&self, nodes: &[Planned]) -> Result<Uuid> {
        let mut graph = Graph::new("planned");
        for (n, planned) in (0..).zip(nodes) {
            let node = graph.node(planned.name.as_str(), noted(n, NOTE));
            for need in &planned.needs {
                graph.after(node, need.clone());
            }
        }
        Ok(graph.enqueue(&self.db).await?.id())
    }
}

impl Engine for Ours {
    const TABLES: Tables = Tables {
        ended: "select state = 'completed' from runledger.outcome where run_id = $1",
        count_ended: "select count(*), count(*) filter (where outcome.state = 'completed') from runledger.outcome join runledger.run using (run_id) \
                      where run.parent_id is null",
        failed_nodes: "select count(*) from runledger.outcome join runledger.run using (run_id) where run.parent_id is not null and outcome.state = 'failed'",
        repeated: "select coalesce(sum(greatest(attempt - 1, 0)), 0)::bigint from runledger.outcome join runledger.run using (run_id) \
                   where run.parent_id is not null",
    };

    type Worker = Worker;

    async fn work(&self) -> Result<Worker> {
        Ok(App::new(Db::connect(&self.url).await?).start().await?)
    }

    async fn stop(worker: Worker) -> Result<()> {
        worker.stop().await;
        Ok(())
    }
}
