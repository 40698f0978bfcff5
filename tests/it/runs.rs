//! Lists of runs: each names its tenant scope, and pages follow one another.

use runledger::prelude::*;
use runledger::{ListRuns, RunCursor, RunInfo, RunState, TenantScope, enqueue_all};
use runledger_tests::Fixture;
use runledger_tests::rows::{execute, soon, worker};
use uuid::Uuid;

#[job(name = "listed.new_name", aliases = ["listed"], queue = "lists")]
async fn listed(n: u64) -> Result<u64> {
    if n % 2 == 1 { Err(Error::terminal("odd")) } else { Ok(n) }
}

#[job]
async fn unlisted() -> Result<()> {
    Ok(())
}

/// Returns the runs of all pages and the number of pages.
async fn all(list: &ListRuns) -> (Vec<Uuid>, usize) {
    let (mut runs, mut n_pages, mut page) = (Vec::new(), 1, list.clone().await.unwrap());
    loop {
        runs.extend(page.runs.iter().map(|run| run.run_id));
        let Some(next) = page.next else { return (runs, n_pages) };
        let next: RunCursor = next.to_string().parse().unwrap();
        page = list.clone().after(next).await.unwrap();
        n_pages += 1;
    }
}

fn ids(runs: &[RunInfo]) -> Vec<Uuid> {
    runs.iter().map(|run| run.run_id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_and_found_only_within_tenant_scope() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut of = Vec::new();
    for call in [listed(2).tenant("acme"), listed(2).tenant("bolt"), listed(2)] {
        of.push(call.enqueue(&db).await.unwrap().id());
    }
    let [acme, bolt, global] = of[..] else { unreachable!() };
    assert_eq!(ids(&db.runs(TenantScope::All).await.unwrap().runs), [global, bolt, acme], "the latest first");
    assert_eq!(ids(&db.runs(TenantScope::tenant("acme")).await.unwrap().runs), [acme]);
    assert_eq!(ids(&db.runs(TenantScope::Global).await.unwrap().runs), [global]);
    assert_eq!(
        ids(&db.runs(TenantScope::tenant("nobody")).await.unwrap().runs),
        [0_u128; 0].map(Uuid::from_u128)
    );
    let unsaid = db.runs(TenantScope::tenant("")).await.unwrap_err();
    assert!(unsaid.to_string().contains("tenant"), "no tenant is said by `TenantScope::Global`: {unsaid}");

    assert_eq!(db.run_within(&TenantScope::tenant("acme"), acme).await.unwrap().run_id, acme);
    assert_eq!(db.run_within(&TenantScope::All, bolt).await.unwrap().run_id, bolt);
    assert_eq!(db.run_within(&TenantScope::Global, global).await.unwrap().run_id, global);
    let unsaid = db.run_within(&TenantScope::tenant(""), global).await.unwrap_err();
    assert!(unsaid.to_string().contains("tenant"), "no tenant is said by `TenantScope::Global`: {unsaid}");
    for (scope, of_other) in [
        (TenantScope::tenant("acme"), bolt),
        (TenantScope::Global, acme),
        (TenantScope::tenant("bolt"), global),
    ] {
        let error = db.run_within(&scope, of_other).await.unwrap_err().to_string();
        let unknown = db.run_within(&scope, Uuid::from_u128(1)).await.unwrap_err().to_string();
        let same = unknown.replace(&Uuid::from_u128(1).to_string(), &of_other.to_string());
        assert_eq!(error, same, "that there is such a run is not told");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_stay_consistent_despite_new_runs_and_equal_timestamps() {
    let Fixture { db, database: _database } = Fixture::new().await;
    // One statement gives all runs the same time, and keys make the ids unordered.
    let calls = (0..250).map(|n| {
        let call = listed(n).idempotency_key(format!("key-{n}"));
        match n % 3 {
            0 => call.tenant("a"),
            1 => call.tenant("b"),
            _ => call,
        }
    });
    let created = enqueue_all(calls, &db).await.unwrap();
    let mut expected: Vec<Uuid> = created.iter().map(|run| run.run_id).collect();
    expected.sort_unstable();
    expected.reverse();
    let list = db.runs(TenantScope::All).limit(40);
    let first = list.clone().await.unwrap();
    unlisted().enqueue(&db).await.unwrap();
    let mut runs = ids(&first.runs);
    let rest = list.after(first.next.unwrap());
    let (others, n_pages) = all(&rest).await;
    runs.extend(others);
    assert_eq!(runs, expected);
    assert_eq!(n_pages, 6, "the last of 7 pages is not full");
    let of_one = db.runs(TenantScope::tenant("a")).limit(10);
    let (runs, _) = all(&of_one).await;
    assert_eq!(runs.len(), 84);
}

#[tokio::test(flavor = "multi_thread")]
async fn list_filters_runs_by_job_queue_and_state() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![listed]).await;
    for run in enqueue_all((0..20).map(listed), &db).await.unwrap() {
        let _ = soon(RunHandle::attach(listed, &db, run.run_id).result()).await;
    }
    worker.stop().await;
    unlisted().enqueue(&db).await.unwrap();
    listed(1).enqueue(&db).await.unwrap();
    let n = async |list: ListRuns| all(&list).await.0.len();
    assert_eq!(n(db.runs(TenantScope::All)).await, 22);
    assert_eq!(n(db.runs(TenantScope::All).job("listed")).await, 21, "by any of its names");
    assert_eq!(n(db.runs(TenantScope::All).queue("lists").state(RunState::Failed)).await, 10);
    let ended =
        db.runs(TenantScope::All).job("listed").state(RunState::Failed).state(RunState::Completed).limit(3);
    let (runs, n_pages) = all(&ended).await;
    assert_eq!((runs.len(), n_pages), (20, 7));
    assert_eq!(n(db.runs(TenantScope::All).state(RunState::Queued)).await, 2);
    assert_eq!(n(db.runs(TenantScope::All).job("nothing")).await, 0);
    let page = db.runs(TenantScope::Global).job("unlisted").await.unwrap();
    assert_eq!((page.runs[0].job.as_str(), page.runs[0].state), ("unlisted", RunState::Queued));
}

/// Runs created one second apart, one of them failed.
const MANY: &str = "
    insert into runledger.run (run_id, job, tenant, queue, priority, input, start_at, created_at)
        select md5(n::text)::uuid, 'many', 't' || n % 3, 'default', 0, '{}', now(), now() - n * interval '1 s' from generate_series(1, 50000) n;
    insert into runledger.outcome (run_id, state, error, attempt)
        select run_id, 'failed', '{\"kind\": \"error\", \"message\": \"once\"}', 1 from runledger.run where run_id = md5('45000')::uuid;
    analyze runledger.run";

#[tokio::test(flavor = "multi_thread")]
async fn filtered_page_scans_bounded_number_of_runs() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, MANY).await;
    let failed = db.runs(TenantScope::All).state(RunState::Failed);
    let first = failed.clone().await.unwrap();
    assert!(first.runs.is_empty() && first.next.is_some(), "it stopped after two thousand: {first:?}");
    let (runs, n_pages) = all(&failed).await;
    assert_eq!(runs.len(), 1);
    assert_eq!(n_pages, 50_000 / 2_000 + 1);
    let of_tenant = db.runs(TenantScope::tenant("t0")).state(RunState::Failed);
    assert_eq!(all(&of_tenant).await, (runs, 50_000 / 3 / 2_000 + 1));
}
