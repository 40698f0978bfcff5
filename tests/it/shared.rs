//! Behaviours 25, 43 and 44 together: sagas, and runs that continue from another run's record.

use runledger::prelude::*;
use runledger::{Cancelled, ClientError, RunState};
use runledger_tests::rows::{execute, scalar, soon, until, worker};
use runledger_tests::{Fixture, eventually};

const TABLES: &str = "create table deed (n serial, what text); create table choice (what text); create table broken (what text)";

#[job]
async fn does(what: String, #[inject] tx: &mut Tx) -> Result<String> {
    sqlx::query("insert into deed (what) values ($1)").bind(&what).execute(&mut **tx).await?;
    Ok(what)
}

#[job(max_attempts = 1)]
async fn compensates(what: String, #[inject] tx: &mut Tx) -> Result<()> {
    let is_broken = "select exists (select from broken where what = $1)";
    if sqlx::query_scalar(is_broken).bind(&what).fetch_one(&mut **tx).await? {
        return Err(format!("{what} cannot be undone now").into());
    }
    sqlx::query("insert into deed (what) values ($1)").bind(format!("not {what}")).execute(&mut **tx).await?;
    Ok(())
}

async fn is_chosen(what: &str, tx: &mut Tx) -> Result<bool> {
    let query = sqlx::query_scalar("select exists (select from choice where what = $1)").bind(what);
    Ok(query.fetch_one(&mut **tx).await?)
}

#[job]
async fn chooses(what: String, #[inject] tx: &mut Tx) -> Result<bool> {
    is_chosen(&what, tx).await
}

#[job(max_attempts = 1)]
async fn may_fail(#[inject] tx: &mut Tx) -> Result<()> {
    if is_chosen("fails", tx).await? { Err("no more".into()) } else { Ok(()) }
}

/// Books a flight, and a hotel for guests who stay.
#[workflow(max_attempts = 1)]
async fn stay(wf: &Wf) -> Result<bool> {
    let saga = wf.saga();
    saga.run(does("flight".into()), |what| compensates(what.clone())).await?;
    let stays = wf.run(chooses("stays".into()).key("stays")).await?;
    if stays {
        saga.run(does("hotel".into()), |what| compensates(what.clone())).await?;
    } else {
        saga.compensate().await;
    }
    if wf.run(chooses("waits".into()).key("waits")).await? {
        wf.signal::<()>("go").await?;
    }
    wf.run(may_fail()).await?;
    Ok(stays)
}

async fn choose(db: &Db, choices: &[&str]) {
    execute(db, "truncate choice").await;
    let insert = "insert into choice select unnest($1::text[])";
    sqlx::query(insert).bind(choices).execute(db.pool()).await.unwrap();
}

async fn deeds(db: &Db) -> Vec<String> {
    sqlx::query_scalar("select what from deed order by n").fetch_all(db.pool()).await.unwrap()
}

async fn begun(db: &Db, choices: &[&str]) -> RunHandle<bool> {
    choose(db, choices).await;
    stay().enqueue(db).await.unwrap()
}

/// Forks a run from its decision to stay, with these choices.
async fn forked(db: &Db, origin: &RunHandle<bool>, choices: &[&str]) -> RunHandle<bool> {
    choose(db, choices).await;
    origin.fork("chooses[stays]").await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_compensates_origin_step_once_and_later_forks_skip_it() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let worker = worker(&db, jobs![stay, does, compensates, chooses, may_fail]).await;
    let origin = begun(&db, &["stays"]).await;
    assert!(soon(origin.result()).await.unwrap());
    for _ in 0..2 {
        let fork = forked(&db, &origin, &[]).await;
        assert!(!soon(fork.result()).await.unwrap());
        assert_eq!(deeds(&db).await, ["flight", "hotel", "not flight"]);
        let steps = fork.steps().await.unwrap();
        assert!(
            steps.iter().any(|step| step.key == "compensate[does]"),
            "it is on record in both: {steps:?}"
        );
        // The fork can be forked again, as from any other step.
        let again = fork.fork("chooses[waits]").await.unwrap();
        assert!(!soon(again.result()).await.unwrap());
    }
    assert_eq!(deeds(&db).await, ["flight", "hotel", "not flight"]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_compensating_live_origin_step_blocks_until_origin_is_terminal() {
    for is_cancelled in [true, false] {
        let Fixture { db, database: _database } = Fixture::new().await;
        execute(&db, TABLES).await;
        let worker = worker(&db, jobs![stay, does, compensates, chooses, may_fail]).await;
        let origin = begun(&db, &["stays", "waits"]).await;
        until(&db, origin.id(), |info| info.state == RunState::Waiting).await;
        let fork = forked(&db, &origin, &[]).await;
        let error = soon(fork.result()).await.unwrap_err();
        let ClientError::RunBlocked { failure, .. } = error else { panic!("{error}") };
        assert!(failure.message.contains(&format!("run `{}`", origin.id())), "{failure}");
        assert_eq!(deeds(&db).await, ["flight", "hotel"]);
        let mut expected = vec!["flight", "hotel"];
        if is_cancelled {
            origin.cancel("not needed").await.unwrap();
            until(&db, origin.id(), |info| info.state == RunState::Cancelled).await;
            expected.push("not hotel");
        } else {
            origin.signal("go", &()).await.unwrap();
            assert!(soon(origin.result()).await.unwrap());
        }
        expected.push("not flight");
        fork.resume().await.unwrap();
        assert!(!soon(fork.result()).await.unwrap());
        assert_eq!(deeds(&db).await, expected, "cancelled: {is_cancelled}");
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_or_cancelled_fork_compensates_only_its_own_steps() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let worker = worker(&db, jobs![stay, does, compensates, chooses, may_fail]).await;
    let origin = begun(&db, &["stays"]).await;
    assert!(soon(origin.result()).await.unwrap());
    let fork = forked(&db, &origin, &["stays", "fails"]).await;
    assert!(matches!(soon(fork.result()).await, Err(ClientError::RunFailed { .. })));
    let fork = forked(&db, &origin, &["stays", "waits"]).await;
    until(&db, fork.id(), |info| info.state == RunState::Waiting).await;
    assert_eq!(fork.cancel("not needed").await.unwrap(), Cancelled::Requested);
    assert!(matches!(soon(fork.result()).await, Err(ClientError::RunCancelled { .. })));
    // The fork has nothing of its own to compensate, so it ends at once and can be revived.
    choose(&db, &["waits", "fails"]).await;
    let fork = origin.fork("chooses[waits]").await.unwrap();
    until(&db, fork.id(), |info| info.state == RunState::Waiting).await;
    assert_eq!(fork.cancel("not needed").await.unwrap(), Cancelled::Now);
    assert!(fork.revive(RunState::Cancelled).await.unwrap().created());
    let expected = ["flight", "hotel", "hotel", "not hotel", "hotel", "not hotel"];
    assert_eq!(deeds(&db).await, expected);
    worker.stop().await;
}

/// Returns the compensated step because of which the fork was refused.
async fn refused(origin: &RunHandle<bool>, step: &str) -> String {
    match origin.fork(step).await {
        Err(ClientError::StepCompensated { key, .. }) => key,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_is_refused_past_compensated_step_and_allowed_at_it() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let worker = worker(&db, jobs![stay, does, compensates, chooses, may_fail]).await;
    let failed = begun(&db, &["stays", "fails"]).await;
    assert!(soon(failed.result()).await.is_err());
    let turned_back = begun(&db, &[]).await;
    assert!(!soon(turned_back.result()).await.unwrap());
    execute(&db, "truncate deed").await;
    assert_eq!(refused(&failed, "chooses[waits]").await, "does");
    assert_eq!(refused(&turned_back, "chooses[stays]").await, "does");
    assert_eq!(refused(&turned_back, "compensate[does]").await, "does");
    for origin in [&failed, &turned_back] {
        choose(&db, &["stays"]).await;
        let fork = origin.fork("does").await.unwrap();
        assert!(soon(fork.result()).await.unwrap());
    }
    assert_eq!(deeds(&db).await, ["flight", "hotel", "flight", "hotel"]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_keeps_uncompensated_step_after_cancel_abandons_compensation() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    execute(&db, "insert into broken values ('hotel')").await;
    let worker = worker(&db, jobs![stay, does, compensates, chooses, may_fail]).await;
    let origin = begun(&db, &["stays", "fails"]).await;
    until(&db, origin.id(), |info| info.state == RunState::Blocked).await;
    assert_eq!(refused(&origin, "chooses[waits]").await, "does", "it is about to be");
    assert_eq!(origin.cancel("leave it").await.unwrap(), Cancelled::Now);
    choose(&db, &["stays"]).await;
    let fork = origin.fork("chooses[waits]").await.unwrap();
    assert!(soon(fork.result()).await.unwrap());
    assert_eq!(deeds(&db).await, ["flight", "hotel"]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_revived_after_compensation_does_not_compensate_again() {
    let Fixture { db, database: _database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let worker = worker(&db, jobs![stay, does, compensates, chooses, may_fail]).await;
    let origin = begun(&db, &["fails"]).await;
    assert!(matches!(soon(origin.result()).await, Err(ClientError::RunFailed { .. })));
    let revived = origin.revive(RunState::Failed).await.unwrap();
    assert!(matches!(soon(revived.result()).await, Err(ClientError::RunFailed { .. })));
    choose(&db, &[]).await;
    let again = revived.revive(RunState::Failed).await.unwrap();
    assert!(!soon(again.result()).await.unwrap());
    assert_eq!(deeds(&db).await, ["flight", "not flight"]);
    worker.stop().await;
}

/// Books a flight, compensates it and continues as new, both on choice.
#[workflow(max_attempts = 1)]
async fn tours(wf: &Wf, round: u32) -> Result<u32> {
    let saga = wf.saga();
    saga.run(does(format!("flight {round}")), |what| compensates(what.clone())).await?;
    wf.run(chooses("papers".into()).key("papers")).await?;
    wf.signal::<()>("go").await?;
    if wf.run(chooses("turns back".into()).key("turns-back")).await? {
        saga.compensate().await;
    }
    if wf.run(chooses("goes on".into()).key("goes-on")).await? {
        return wf.continue_as_new(tours(round + 1)).await;
    }
    Ok(round)
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_compensation_is_blocked_after_origin_continues_as_new() {
    for (first, second) in [(true, false), (false, true)] {
        let Fixture { db, database: _database } = Fixture::new().await;
        execute(&db, TABLES).await;
        let worker = worker(&db, jobs![tours, does, compensates, chooses]).await;
        choose(&db, &[]).await;
        let origin = tours(0).enqueue(&db).await.unwrap();
        until(&db, origin.id(), |info| info.state == RunState::Waiting).await;
        let fork = origin.fork("chooses[papers]").await.unwrap();
        until(&db, fork.id(), |info| info.state == RunState::Waiting).await;
        let goes_on = if first { &["turns back", "goes on"][..] } else { &["goes on"] };
        choose(&db, goes_on).await;
        origin.signal("go", &()).await.unwrap();
        let n_waits = "select count(*) from runledger.waiting where wait_signals <> '{}'";
        let rounds = "select coalesce(max(slice), 0) from runledger.continuation";
        eventually(
            async || (scalar::<i32>(&db, rounds).await, scalar::<i64>(&db, n_waits).await),
            |found| *found == (1, 2),
        )
        .await;
        choose(&db, if second { &["turns back"] } else { &[] }).await;
        origin.signal("go", &()).await.unwrap();
        assert_eq!(soon(origin.result()).await.unwrap(), 1);
        choose(&db, &["turns back"]).await;
        let before = deeds(&db).await;
        fork.signal("go", &()).await.unwrap();
        let error = soon(fork.result()).await.unwrap_err();
        let ClientError::RunBlocked { failure, .. } = error else { panic!("{error}") };
        let said = format!("run `{}` did or was given too, and that one has begun anew since", origin.id());
        assert!(failure.message.contains(&said), "{failure}");
        assert_eq!(deeds(&db).await, before);
        worker.stop().await;
    }
}
