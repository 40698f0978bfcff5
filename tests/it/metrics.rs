//! The number of runs of each tenant, job and state, and the recent outcomes.

use std::time::Duration;

use runledger::prelude::*;
use runledger::{JobMetrics, RunState, TenantScope};
use runledger_tests::Fixture;
use runledger_tests::rows::{execute, soon, until, worker};

const HOUR: Duration = Duration::from_secs(3600);

#[job(max_attempts = 2, backoff = "1ms..1ms")]
async fn counts(n: u32, #[inject] context: &Context) -> Result<u32> {
    match n {
        0 => Err(Error::terminal("on purpose")),
        1 if context.attempt() == 1 => Err("once".into()),
        _ => Ok(n),
    }
}

#[job]
async fn nobody_serves() -> Result<()> {
    Ok(())
}

#[workflow]
async fn awaits(wf: &Wf) -> Result<u32> {
    Ok(wf.signal("go").await?)
}

fn of<'a>(jobs: &'a [JobMetrics], tenant: &str, job: &str) -> &'a JobMetrics {
    jobs.iter().find(|it| it.tenant == tenant && it.job == job).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_and_time_runs_by_tenant_job_and_state() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![counts, awaits]).await;
    for tenant in ["acme", "bob"] {
        for n in 0..5 {
            let run = counts(n).tenant(tenant).enqueue(&db).await.unwrap();
            let ended = soon(run.result()).await;
            assert_eq!(ended.is_err(), n == 0);
        }
    }
    let waits = awaits().tenant("acme").enqueue(&db).await.unwrap();
    until(&db, waits.id(), |info| info.state == RunState::Waiting).await;
    for _ in 0..3 {
        nobody_serves().enqueue(&db).await.unwrap();
    }
    let later = nobody_serves().delay(HOUR).enqueue(&db).await.unwrap();
    nobody_serves().delay(HOUR).enqueue(&db).await.unwrap();
    later.cancel("not needed").await.unwrap();
    worker.stop().await;

    let all = db.metrics(TenantScope::All, HOUR).await.unwrap();
    assert!(!all.is_partial);
    let names: Vec<_> = all.jobs.iter().map(|it| (it.tenant.as_str(), it.job.as_str())).collect();
    assert_eq!(names, [("", "nobody_serves"), ("acme", "awaits"), ("acme", "counts"), ("bob", "counts")]);
    for tenant in ["acme", "bob"] {
        let counts = of(&all.jobs, tenant, "counts");
        assert_eq!((counts.completed, counts.failed, counts.cancelled, counts.retried), (4, 1, 0, 1));
        assert_eq!((counts.queued, counts.running, counts.oldest), (0, 0, None));
        let (wait, work) = (counts.wait.unwrap(), counts.work.unwrap());
        assert!(wait.p50 <= wait.p95 && work.p50 <= work.p95 && work.p50 > Duration::ZERO);
    }
    let unserved = of(&all.jobs, "", "nobody_serves");
    assert_eq!((unserved.queued, unserved.scheduled, unserved.cancelled), (3, 1, 1));
    assert!(unserved.oldest.is_some() && unserved.wait.is_none(), "no worker has ended one");
    assert_eq!(of(&all.jobs, "acme", "awaits").waiting, 1);

    let acme = db.metrics(TenantScope::tenant("acme"), HOUR).await.unwrap();
    assert_eq!(acme.jobs.len(), 2);
    let global = db.metrics(TenantScope::Global, HOUR).await.unwrap();
    assert_eq!(global.jobs.len(), 1);

    // A run created before the window counts as long as it is live.
    execute(&db, "update runledger.run set created_at = created_at - interval '2 hours'").await;
    let all = db.metrics(TenantScope::All, HOUR).await.unwrap();
    let names: Vec<_> = all.jobs.iter().map(|it| (it.tenant.as_str(), it.job.as_str())).collect();
    assert_eq!(names, [("", "nobody_serves"), ("acme", "awaits")]);

    let ever = db.metrics(TenantScope::All, Duration::MAX).await.unwrap();
    assert_eq!(ever.jobs.len(), 4);
}
