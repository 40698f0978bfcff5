//! Verification: a corpus of workflow changes with runs in flight. Each case compares the
//! expectation with the verdict of `verify`, and with what a worker with the new code does.

mod combinators;
mod compensations;
mod graphs;
mod histories;
mod inputs;
mod not_due;
mod order;
mod outputs;
mod reading;
mod stage;
mod steps;
mod versions;
mod waits;

use std::collections::BTreeMap;

use runledger::prelude::*;
use runledger::{FailureKind, Finding, RunState, Verdict};
use runledger_tests::{Fixture, eventually};

use stage::{Case, Expected, await_parked, park_all, wake_all};

fn corpus() -> Vec<Case> {
    let of_code = [steps::cases(), order::cases(), waits::cases(), combinators::cases(), graphs::cases()];
    [of_code.concat(), versions::cases(), inputs::cases(), outputs::cases(), compensations::cases()].concat()
}

#[test]
fn corpus_has_unique_names_and_enough_cases_of_both_verdicts() {
    let corpus = corpus();
    let names: std::collections::BTreeSet<_> = corpus.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), corpus.len(), "two cases have one name");
    let n_fine = corpus.iter().filter(|case| case.expected == Expected::Fine).count();
    assert!(n_fine >= 20 && corpus.len() - n_fine >= 60, "{n_fine} of {}", corpus.len());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn verify_classifies_every_corpus_change_and_worker_agrees() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let corpus = corpus();
    let runs = park_all(&db, &corpus).await;

    let served = || stage::helpers().chain(steps::after()).chain(compensations::after());
    let new = || corpus.iter().filter_map(|case| case.new).chain(served());
    let before = stage::everything(&db).await;
    let verification = App::new(db.clone()).with(new()).provide(db.clone()).verify().await.unwrap();
    assert_eq!(stage::everything(&db).await, before, "nothing is written");

    let found: BTreeMap<&str, &Finding> =
        verification.findings.iter().map(|finding| (finding.job.as_str(), finding)).collect();
    let wrong: Vec<String> = corpus
        .iter()
        .filter_map(|case| {
            let verdict = found.get(case.name).map_or(&Verdict::Replays, |finding| &finding.verdict);
            (!case.expected.agrees(verdict))
                .then(|| format!("{}: {:?}, but {verdict:?}", case.name, case.expected))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(
        verification.findings.len(),
        corpus.iter().filter(|case| case.expected != Expected::Fine).count()
    );

    // Exported histories get the same verdicts without the database.
    let offline = App::offline().with(new()).provide(db.clone());
    for (case, run_id) in &runs {
        let verdict = db.run(*run_id).export().await.unwrap().replays(&offline).await.unwrap();
        assert!(case.expected.agrees(&verdict), "{}: {:?}, but {verdict:?}", case.name, case.expected);
    }

    wake_all(&db).await;
    let worker = stage::worker(&db, new()).await;
    for (case, run_id) in runs.iter().filter(|(case, _)| case.expected.blocks()) {
        let ended = |info: &runledger::RunInfo| matches!(info.state, RunState::Blocked | RunState::Failed);
        let info =
            eventually(async || (case.name, db.run(*run_id).info().await.unwrap()), |(_, info)| ended(info))
                .await
                .1;
        let kind = info.error.unwrap().kind;
        assert!(
            matches!(
                kind,
                FailureKind::Diverged | FailureKind::Decode | FailureKind::Setup | FailureKind::Error
            ),
            "{}: {kind:?}",
            case.name
        );
    }
    for (case, run_id) in runs.iter().filter(|(case, _)| case.expected == Expected::Fine) {
        await_parked(&db, *run_id, 2).await;
        let kind = db.run(*run_id).info().await.unwrap().error.map(|failure| failure.kind);
        assert!(
            !matches!(kind, Some(FailureKind::Diverged | FailureKind::Decode)),
            "{}: {kind:?}",
            case.name
        );
    }
    let undone = compensations::cases();
    for (case, run_id) in runs.iter().filter(|(case, _)| undone.iter().any(|other| other.name == case.name)) {
        compensations::assert_undone_or_parked(&db, case, *run_id).await;
    }
    worker.stop().await;
}
