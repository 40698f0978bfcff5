//! The job that concludes a graph. When the last node has ended, a worker claims the graph's run
//! like any other. Its outcome follows from the outcomes of the nodes.

use std::time::Duration;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;

use crate::connection::db::Db;
use crate::connection::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::definition::invocation::{Finished, Invocation};
use crate::definition::{Definition, Location, RunFuture};
use crate::model::graph::GRAPH;
use crate::model::json::Fields;
use crate::model::payload::{PayloadKind, Place, Plain, Sealer};
use crate::model::replay::recorded::place_of_error;
use crate::model::run::failure::{Failure, FailureKind, Retry};
use crate::model::run::state::RunState;
use crate::store::error::{Class, class};
use crate::store::graph::{self, NodeEnd};

/// How many nodes an error names.
const MAX_NAMED: usize = 5;

/// The job that concludes graphs. Every worker serves it.
pub(crate) static CONCLUDE: Definition = Definition::job(GRAPH, run, HERE).max_attempts(u32::MAX);

const HERE: Location = Location::new(file!(), line!(), column!(), module_path!());

fn run(invocation: Invocation) -> RunFuture {
    Box::pin(async move {
        if let Err(finished) = invocation.begin() {
            return finished;
        }
        let result = conclude(&invocation).await;
        Finished { result, tx: None, undone: None }
    })
}

async fn conclude(invocation: &Invocation) -> Result<Plain, (Failure, Retry)> {
    let result: Option<String> =
        Fields::parse(&invocation.input)
            .and_then(|request| request.get("result"))
            .map_err(|error| (Failure::from_chain(FailureKind::Decode, &error), Retry::Never))?;
    let (db, run_id) = (&invocation.attempt.db, invocation.attempt.fence.run_id);
    let ends = async { graph::ends(&mut *wait_for_connection(db).await?, run_id, result.as_deref()).await };
    let ends = with_timeout(STATEMENT_LIMIT, ends)
        .await
        .map_err(|error| (Failure::from_chain(FailureKind::Error, &error), Retry::Policy))?;
    end(ends, result.as_deref(), db.sealer()).map_err(|failure| (failure, Retry::Never))
}

/// The pause after a failed connection attempt.
const AGAIN: Duration = Duration::from_millis(200);

/// Retries until a connection is free: when many graphs end at once, each waits for the pool, and
/// an error would cost an attempt. The caller limits the wait.
async fn wait_for_connection(db: &Db) -> Result<PoolConnection<Postgres>, sqlx::Error> {
    loop {
        match db.acquire().await {
            Err(error) if class(&error) == Class::Transient => tokio::time::sleep(AGAIN).await,
            acquired => return acquired,
        }
    }
}

/// The output of the result node, or null for a graph without one. Fails if the result node did not
/// complete. Without a result node, fails if a node that no other node needs did not complete.
fn end(mut ends: Vec<NodeEnd>, result: Option<&str>, sealer: &Sealer) -> Result<Plain, Failure> {
    let its_result = result.and_then(|name| ends.iter().position(|end| end.node == name));
    if let Some(at) = its_result
        && let Some(output) = completed(&mut ends[at])
    {
        let place = Place::new(ends[at].run_id, PayloadKind::Output, "");
        let open = sealer.take_over(&place, output);
        return open.map_err(|error| error.to_failure());
    }
    if let Some(name) = result.filter(|_| its_result.is_none()) {
        let message = format!(
            "the result of the graph is gone: its node `{name}` has ended, and left no row that says how"
        );
        return Err(Failure::new(FailureKind::Error, message));
    }
    let is_wanted = |end: &NodeEnd| match result {
        Some(name) => end.node == name,
        None => !end.is_needed && !end.is_skipped(),
    };
    if !ends.iter().any(is_wanted) {
        return Ok(Plain::ready("null".to_owned()));
    }
    // Failed nodes are the cause. Cancelled nodes only followed.
    let (failed, cancelled): (Vec<&NodeEnd>, Vec<&NodeEnd>) =
        ends.iter().filter(|end| !end.is_skipped()).partition(|end| end.state == RunState::Failed);
    let skipped: Vec<&NodeEnd> = ends.iter().filter(|end| end.is_skipped()).collect();
    let named = [&failed, &cancelled, &skipped].into_iter().find(|ends| !ends.is_empty()).unwrap_or(&skipped);
    let said = named.iter().take(MAX_NAMED).map(|end| {
        let failure =
            end.error.as_ref().map(|error| sealer.show_failure(&place_of_error(end.run_id, ""), error));
        let why = failure.map_or_else(|| end.state.to_string(), |failure| failure.to_string());
        format!("`{}`: {why}", end.node)
    });
    let mut causes: Vec<String> = said.collect();
    if named.len() > MAX_NAMED {
        causes.push(format!("{} others", named.len() - MAX_NAMED));
    }
    let counted = [(failed.len(), "failed"), (cancelled.len(), "cancelled"), (skipped.len(), "skipped")];
    let counted: Vec<String> =
        counted.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    let message = format!("nodes of the graph did not complete: {}", counted.join(", "));
    let kind = if failed.is_empty() { FailureKind::Cancelled } else { FailureKind::Error };
    Err(Failure { causes, ..Failure::new(kind, message) })
}

fn completed(end: &mut NodeEnd) -> Option<crate::model::payload::Stored> {
    if end.state == RunState::Completed { end.output.take() } else { None }
}
