//! The runs that `verify` reads, and those that it skips.

use std::sync::atomic::{AtomicUsize, Ordering};

use runledger::prelude::*;
use runledger::{ClientError, RunState, Verdict};
use runledger_tests::Fixture;
use runledger_tests::rows::{execute, until, worker};

use super::stage::{self, add, asleep, one};

#[workflow]
async fn one_of_many(wf: &Wf, n: u64) -> Result<u64> {
    wf.run(add(n, 1).key(n)).await?;
    asleep(wf).await
}

mod changed {
    use super::{add, asleep};
    use runledger::prelude::*;

    #[workflow]
    pub async fn one_of_many(wf: &Wf, n: u64) -> Result<u64> {
        wf.run(add(n, 2).key(n)).await?;
        asleep(wf).await
    }
}

/// More than two pages.
const MANY: u64 = 150;

#[tokio::test(flavor = "multi_thread")]
async fn runs_breaking_alike_share_one_finding_over_all_pages() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let runs = runledger::enqueue_all((0..MANY).map(one_of_many), &db).await.unwrap();
    let old = worker(&db, jobs![one_of_many]).await;
    for run in &runs {
        stage::await_parked(&db, run.run_id, 1).await;
    }
    old.stop().await;
    let same = App::new(db.clone()).with(jobs![one_of_many]).verify().await.unwrap();
    assert!(same.is_ok() && same.n_runs == MANY && same.findings.is_empty(), "{same}");

    let verification = App::new(db.clone()).with(jobs![changed::one_of_many]).verify().await.unwrap();
    let [finding] = &verification.findings[..] else { panic!("{verification}") };
    assert_eq!((finding.n_runs, verification.n_runs, verification.n_replaying), (MANY, MANY, 0));
    assert!(runs.iter().any(|run| run.run_id == finding.run_id));
    assert!(!verification.is_ok());
}

#[workflow]
async fn stands_anywhere(wf: &Wf, how: String) -> Result<u64> {
    match how.as_str() {
        "blocked" => stage::held(wf, "a").await,
        "sleeping" => asleep(wf).await,
        "waiting" => wf.start(stage::lost(1)).await?.result().await.map_err(Into::into),
        _ => one(wf, "a").await,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn live_runs_are_verified_and_terminal_ones_skipped() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let mut runs = Vec::new();
    let begun = worker(&db, jobs![stands_anywhere]).await;
    for how in ["blocked", "sleeping", "waiting", "ended"] {
        let run = stands_anywhere(how.to_owned()).enqueue(&db).await.unwrap();
        stage::await_parked(&db, run.id(), 1).await;
        runs.push(run);
    }
    // The worker still executes one run, another is queued, and one is blocked by hand.
    let running = stands_anywhere("blocked".to_owned()).enqueue(&db).await.unwrap();
    until(&db, running.id(), |info| info.state == RunState::Running).await;
    stands_anywhere("queued".to_owned()).queue("verify.elsewhere").enqueue(&db).await.unwrap();
    execute(
        &db,
        &format!(
            "with held as (delete from runledger.lease where run_id = '{}' returning *)
             insert into runledger.waiting (run_id, state, error, attempt, crashes, claims, since)
             select run_id, 'blocked', '{{\"kind\":\"diverged\",\"message\":\"by hand\"}}', 0, 0, claims, now() from held",
            runs[0].id()
        ),
    )
    .await;
    let app = || App::new(db.clone()).with(jobs![stands_anywhere, stage::lost]);
    let verification = app().queues(["default", "verify.nobody", "verify.elsewhere"]).verify().await.unwrap();
    assert!(verification.is_ok(), "{verification}");
    // Blocked, sleeping, waiting, its child, running and queued.
    assert_eq!(verification.n_runs, 6);
    // The queued run would wait for ever. A run keeps the queue of its enqueue.
    let default = app().verify().await.unwrap();
    let [finding] = &default.findings[..] else { panic!("{default}") };
    assert_eq!(
        (finding.n_runs, &finding.verdict),
        (1, &Verdict::NoQueue { queue: "verify.elsewhere".to_owned() })
    );
    let none = App::new(db.clone()).with(jobs![add]).verify().await.unwrap();
    assert!(none.findings.iter().all(|finding| finding.verdict == Verdict::NoCode), "{none}");
    begun.stop().await;
}

static BODIES: AtomicUsize = AtomicUsize::new(0);

struct Bell;

impl Bell {
    fn ring(&self) -> u64 {
        BODIES.fetch_add(1, Ordering::Relaxed) as u64
    }
}

#[job(queue = "verify.nobody")]
async fn rings(#[inject] bell: &Bell) -> Result<u64> {
    Ok(bell.ring())
}

#[job(queue = "verify.nobody")]
async fn rings_in_a_transaction(#[inject] bell: &Bell, #[inject] tx: &mut Tx) -> Result<u64> {
    sqlx::query("select 1").execute(&mut **tx).await?;
    Ok(bell.ring())
}

#[workflow(queue = "verify.nobody")]
async fn rings_often(wf: &Wf, #[inject] bell: &Bell) -> Result<u64> {
    let inline = wf.step("inline", || async { Ok::<u64, Error>(bell.ring()) });
    let sleep = wf.sleep(std::time::Duration::ZERO);
    let child = wf.start(rings());
    let (a, b, c, d, e) =
        tokio::join!(inline, wf.run(rings()), wf.run(rings_in_a_transaction()), sleep, async {
            child.await?.result().await
        });
    d?;
    Ok(a? + b? + c? + e?)
}

#[tokio::test(flavor = "multi_thread")]
async fn verification_runs_no_body_and_requires_provided_values() {
    let Fixture { db, database: _database } = Fixture::new().await;
    rings_often().enqueue(&db).await.unwrap();
    rings().enqueue(&db).await.unwrap();
    rings_in_a_transaction().enqueue(&db).await.unwrap();
    let before = stage::everything(&db).await;
    let app = || App::new(db.clone()).with(jobs![rings_often, rings, rings_in_a_transaction]);
    let verification = app().provide(Bell).verify().await.unwrap();
    assert!(verification.is_ok() && verification.n_runs == 3, "{verification}");
    assert_eq!(BODIES.load(Ordering::Relaxed), 0);
    assert_eq!(stage::everything(&db).await, before);
    let error = app().verify().await.unwrap_err();
    assert!(matches!(&error, ClientError::Config(text) if text.contains("Bell")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_connection_verifies_without_write_access_or_schema_changes() {
    let Fixture { db, database } = Fixture::new().await;
    one_of_many(1).queue("verify.nobody").enqueue(&db).await.unwrap();
    execute(&db, "do $$ begin execute format('alter database %I set default_transaction_read_only = on', current_database()); end $$").await;
    assert!(matches!(Db::connect(database.url()).await, Err(ClientError::NotWritable { .. })));
    let looking = Db::connect_read_only(database.url()).await.unwrap();
    let verification =
        App::new(looking).with(jobs![one_of_many]).queues(["verify.nobody"]).verify().await.unwrap();
    assert_eq!((verification.n_runs, verification.is_ok()), (1, true));

    let Fixture { db, database } = Fixture::new().await;
    execute(&db, "drop schema runledger cascade").await;
    let error = Db::connect_read_only(database.url()).await.unwrap_err();
    assert!(error.to_string().contains("looking does not change it"), "{error}");
}

#[tokio::test]
async fn deleted_run_hides_no_later_run_from_verification() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let gone = one_of_many(0).enqueue(&db).await.unwrap();
    for n in 1..=5 {
        one_of_many(n).enqueue(&db).await.unwrap();
    }
    execute(&db, &format!("delete from runledger.run where run_id = '{}'", gone.id())).await;
    let verification = App::new(db.clone()).with(jobs![one_of_many]).verify().await.unwrap();
    assert_eq!((verification.n_runs, verification.n_replaying), (5, 5), "{verification}");
}
