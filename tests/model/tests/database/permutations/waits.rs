//! Runs that start to wait, and what wakes them. If another transaction has locked the run, neither
//! a suspension nor the end of a child waits for the lock: each continues without it and wakes the
//! run afterwards.

use protocol::permutations::{End, Ending, Pair, Start, Step, Wrong};

use super::{expect, explore};

use Ending::Completes;
use Step::{
    Commit, LockFreeRun, LockOwed, LockRun, SendSignal, Settle, Suspend, SuspendForSignal, WakeMet,
    WakeParents,
};

const SUSPENDS: &[Step] = &[LockFreeRun(0), Suspend, Commit, LockOwed(0), WakeMet(0), Commit];
const CHILD_ENDS: &[Step] =
    &[LockFreeRun(0), Settle(1, 1, Completes), WakeParents(1), Commit, LockOwed(0), WakeMet(0), Commit];

fn is_woken(end: &End) -> Result<(), String> {
    expect(end.place(0) == "ready", "never woken", end)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn parent_suspending_while_child_ends_is_woken() {
    let pair = Pair {
        name: "suspend/child ends",
        start: Start::Family(1),
        transactions: &[SUSPENDS, CHILD_ENDS],
        holds: is_woken,
    };
    let nobody_owes = Wrong::Transactions(&[
        &[LockFreeRun(0), Suspend, Commit],
        &[LockFreeRun(0), Settle(1, 1, Completes), WakeParents(1), Commit],
    ]);
    explore(pair, nobody_owes).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn parent_locked_by_another_transaction_while_child_ends_is_woken() {
    let pair = Pair {
        name: "child ends/signal",
        start: Start::Waiting(1),
        transactions: &[CHILD_ENDS, &[LockRun(0), SendSignal, Commit]],
        holds: is_woken,
    };
    let nobody_owes = Wrong::Transactions(&[
        &[LockFreeRun(0), Settle(1, 1, Completes), WakeParents(1), Commit],
        &[LockRun(0), SendSignal, Commit],
    ]);
    explore(pair, nobody_owes).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn parent_is_woken_when_last_two_children_end_concurrently() {
    let pair = Pair {
        name: "child ends/child ends",
        start: Start::Waiting(2),
        transactions: &[
            CHILD_ENDS,
            &[
                LockFreeRun(0),
                Settle(2, 1, Completes),
                WakeParents(2),
                Commit,
                LockOwed(0),
                WakeMet(0),
                Commit,
            ],
        ],
        holds: is_woken,
    };
    // Each reads before the other has committed, and sees a live child.
    let unlocked = Wrong::Transactions(&[
        &[Settle(1, 1, Completes), WakeParents(1), Commit],
        &[Settle(2, 1, Completes), WakeParents(2), Commit],
    ]);
    explore(pair, unlocked).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn run_suspending_while_signal_is_sent_is_woken() {
    let pair = Pair {
        name: "suspend/signal",
        start: Start::Held,
        transactions: &[
            &[LockFreeRun(0), SuspendForSignal, Commit, LockOwed(0), WakeMet(0), Commit],
            &[LockRun(0), SendSignal, Commit],
        ],
        holds: |end| {
            let is_kept = end.said[1].sent == Some(true) && end.runs[0].n_signals == 1;
            expect(is_kept && end.place(0) == "ready", "never woken", end)
        },
    };
    let nobody_owes = Wrong::Transactions(&[
        &[LockFreeRun(0), SuspendForSignal, Commit],
        &[LockRun(0), SendSignal, Commit],
    ]);
    explore(pair, nobody_owes).await;
}
