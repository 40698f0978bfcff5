//! Rows that an operator edited by hand into a form that no version writes. A reader of many rows
//! still reads the others.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{Graph, RunState, TenantScope};
use runledger_tests::Fixture;
use runledger_tests::rows::{execute, soon, until, worker};

const HOUR: Duration = Duration::from_secs(3600);

#[job]
async fn edited_source() -> Result<u64> {
    Ok(1)
}

#[job]
async fn edited_target(n: u64) -> Result<u64> {
    Ok(n)
}

#[workflow]
async fn edited_waits(wf: &Wf) -> Result<()> {
    Ok(wf.signal("go").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn null_edge_parameter_is_verification_finding_of_its_node() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut graph = Graph::new("edited");
    let source = graph.call(edited_source());
    graph.then(edited_target, (source,));
    graph.enqueue(&db).await.unwrap();
    edited_source().enqueue(&db).await.unwrap();
    execute(&db, "update runledger.edge set parameters = array_append(parameters, null)").await;
    let verification = App::new(db.clone()).with(jobs![edited_source, edited_target]).verify().await.unwrap();
    let report = verification.to_string();
    assert!(report.contains("1 run of `edited_target`") && report.contains("`edge.parameters`"), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_awaited_signals_do_not_hide_runs() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![edited_waits]).await;
    let (run, other) =
        (edited_waits().enqueue(&db).await.unwrap(), edited_waits().enqueue(&db).await.unwrap());
    for run in [&run, &other] {
        until(&db, run.id(), |info| info.state == RunState::Waiting).await;
    }
    worker.stop().await;
    for edit in ["wait_signals || null::text", "array[wait_signals, wait_signals]"] {
        let edit =
            format!("update runledger.waiting set wait_signals = {edit} where run_id = '{}'", run.id());
        execute(&db, &edit).await;
        let page = db.runs(TenantScope::All).await.unwrap();
        assert_eq!(page.runs.len(), 2);
        assert!(page.runs.iter().all(|run| run.awaited_signals.contains(&"go".to_owned())), "{page:?}");
        assert!(run.info().await.unwrap().awaited_signals.contains(&"go".to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_runs_with_infinite_timestamps() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![edited_source]).await;
    soon(edited_source().enqueue(&db).await.unwrap().result()).await.unwrap();
    worker.stop().await;
    for _ in 0..2 {
        edited_source().enqueue(&db).await.unwrap();
    }
    for instant in ["infinity", "-infinity", "294276-12-31", "4713-01-01 BC"] {
        for edit in ["outcome set started_at", "outcome set finished_at", "run set start_at"] {
            execute(&db, &format!("update runledger.{edit} = '{instant}'")).await;
            let metrics = db.metrics(TenantScope::All, HOUR).await.unwrap();
            assert_eq!(metrics.jobs[0].queued + metrics.jobs[0].scheduled, 2, "{edit}: {metrics:?}");
            assert_eq!(metrics.jobs[0].completed, 1, "{edit}: {metrics:?}");
        }
        // Edits one of the two queued runs.
        let first = "run_id = (select run_id from runledger.ready order by run_id limit 1)";
        execute(&db, &format!("update runledger.ready set ready_at = '{instant}' where {first}")).await;
        let metrics = db.metrics(TenantScope::All, HOUR).await.unwrap();
        assert_eq!(metrics.jobs[0].queued + metrics.jobs[0].scheduled, 2, "{instant}: {metrics:?}");
        assert!(metrics.jobs[0].oldest.is_some(), "{instant}: {metrics:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_row_with_two_dimensional_arrays_does_not_hide_workers() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![edited_source]).await;
    let other = runledger_tests::rows::worker(&db, jobs![edited_target]).await;
    let edit = "update runledger.worker set jobs = array[jobs, jobs], queues = array[queues, queues]
                where 'edited_source' = any (jobs)";
    execute(&db, edit).await;
    let workers = db.workers().await.unwrap();
    let serves = |job: &str| workers.iter().filter(|worker| worker.jobs.iter().any(|its| its == job)).count();
    assert_eq!((serves("edited_source"), serves("edited_target")), (1, 1), "{workers:?}");
    worker.stop().await;
    other.stop().await;
}
