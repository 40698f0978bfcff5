//! The model and the store agree: the engine's statements execute random traces of the model on a
//! real database. After every action both report the same run, lease, counters, steps and workers.

mod follower;
mod traces;

use std::collections::BTreeSet;

use protocol::ownership::{Action, PROCESSES, State};
use protocol::statements::{Edit, Statements};

use follower::Follower;
use traces::{FAULTS, MODEL, traces};

/// The name of an action without its numbers.
fn kind(action: Action) -> String {
    format!("{action:?}").split('(').next().unwrap_or_default().to_owned()
}

/// Executes all traces. Returns the kinds of their actions, and how many runs have ended.
async fn carry_out(statements: Statements) -> (BTreeSet<String>, usize) {
    let mut follower = Follower::new(statements).await;
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let traces = traces();
    let (mut n_actions, mut n_ended) = (0, 0);
    for trace in &traces {
        let mut state = State::first(PROCESSES, FAULTS);
        follower.begin().await;
        for (at, action) in trace.iter().enumerate() {
            let after = MODEL.after(&state, *action);
            follower.follow(&state, *action, &after).await;
            let (observed, expected) = (follower.observed(&after).await, follower.expected(&after));
            assert_eq!(observed, expected, "after {:?}", &trace[..=at]);
            seen.insert(kind(*action));
            state = after;
        }
        n_actions += trace.len();
        n_ended += usize::from(state.db.place.is_terminal());
    }
    println!("{} traces, {n_actions} actions, {n_ended} runs ended", traces.len());
    (seen, n_ended)
}

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn store_agrees_with_model() {
    let (seen, n_ended) = carry_out(Statements::real()).await;
    for needed in [
        "Adopt",
        "Beat",
        "Bury",
        "Crash",
        "Down",
        "ExecuteClaim",
        "LoseLock",
        "Reconcile",
        "Register",
        "Relock",
        "Stray",
        "Tick",
        "Write",
    ] {
        assert!(seen.contains(needed), "no trace had `{needed}`");
    }
    assert!(n_ended > 0, "no run ended");
}

/// Shows that the traces detect a defect.
#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn defective_store_disagrees_with_model() {
    for edit in [
        Edit {
            statement: "checkpoint_fresh",
            old: "where run_id = item.run_id and token = item.token",
            new: "where run_id = item.run_id",
        },
        Edit {
            statement: "checkpoint",
            old: "where run_id = item.run_id and token = item.token",
            new: "where run_id = item.run_id",
        },
        Edit {
            statement: "settle",
            old: "where run_id = item.run_id and token = item.token offset 0",
            new: "where run_id = item.run_id offset 0",
        },
        Edit {
            statement: "settle_completed",
            old: "where run_id = item.run_id and token = item.token offset 0",
            new: "where run_id = item.run_id offset 0",
        },
        Edit { statement: "worker_bury", old: "and heartbeat_at <=", new: "and heartbeat_at >" },
        Edit { statement: "worker_locked", old: ", heartbeat_at = pg_catalog.clock_timestamp()", new: "" },
    ] {
        let traces = tokio::spawn(carry_out(Statements::with(edit)));
        let disagreement = traces.await.expect_err(edit.statement);
        assert!(disagreement.is_panic());
    }
}
