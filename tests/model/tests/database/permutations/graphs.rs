//! Additions to graphs, ends of nodes, and graphs that a workflow starts.

use protocol::permutations::{End, Ending, Pair, Start, Step, Wrong};
use protocol::statements::Edit;

use super::{expect, explore, is_recorded_in_time};

use Ending::{Completes, IsCancelled};
use Step::{
    Adopt, Append, AppendLock, AppendLook, Below, Claim, Commit, GateDecide, GateLook, GateRevoke, LockRun,
    NoteGraph, Orphans, ReleaseNodes, Settle, WriteGraph,
};

/// An addition that reads the live nodes without locking them.
const UNHELD: Wrong = Wrong::Text(Edit {
    statement: "append_lock",
    old: "select run_id from runledger.lease where run_id = any (array(select run_id from going_on)) for key share skip locked",
    new: "select run_id from runledger.lease where run_id = any (array(select run_id from going_on))",
});

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn node_appended_during_dependency_completion_is_ready_or_absent() {
    let pair = Pair {
        name: "append/complete",
        start: Start::Graph,
        transactions: &[
            &[LockRun(0), AppendLock(1), AppendLook(1), Append(1), Commit],
            &[Settle(1, 0, Completes), ReleaseNodes(1), Commit],
        ],
        holds: |end| {
            let is_added = end.said[0].committed;
            expect(end.place(4) == if is_added { "ready" } else { "nowhere" }, "it never starts", end)
        },
    };
    explore(pair, UNHELD).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn node_appended_during_transitive_dependency_cancel_is_terminal_or_absent() {
    let pair = Pair {
        name: "append/fail",
        start: Start::Graph,
        transactions: &[
            &[LockRun(0), AppendLock(2), AppendLook(2), Append(2), Commit],
            &[Settle(1, 0, IsCancelled), ReleaseNodes(1), Commit],
        ],
        holds: |end| {
            let is_added = end.said[0].committed;
            expect(end.place(4) == if is_added { "outcome" } else { "nowhere" }, "it waits for ever", end)
        },
    };
    explore(pair, UNHELD).await;
}

/// Each node of [`Start::Siblings`] completes in its own transaction.
const SIBLINGS_END: &[&[Step]] = &[
    &[Settle(1, 0, Completes), ReleaseNodes(1), Commit],
    &[Settle(2, 1, Completes), ReleaseNodes(2), Commit],
];

/// Two nodes that end at once, and each counts from what it saw before the other.
const COUNTS_FROM_BEFORE: Wrong = Wrong::Text(Edit {
    statement: "release",
    old: "remaining = remaining - ((select n_ended from gains)",
    new: "remaining = (select before.remaining from runledger.graph_counter as before where before.run_id = graph_counter.run_id) - ((select n_ended from gains)",
});

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn last_of_two_concurrent_completions_releases_shared_dependent() {
    let pair = Pair {
        name: "release/release",
        start: Start::Siblings { joined: true },
        transactions: SIBLINGS_END,
        holds: |end| expect(end.place(3) == "ready", "it waits for ever", end),
    };
    explore(pair, COUNTS_FROM_BEFORE).await;
}

/// Two nodes that end at once, and each reports to the graph from what it saw before the other.
const HEARS_FROM_BEFORE: Wrong = Wrong::Text(Edit {
    statement: "release",
    old: "    where run_id = any (array(select run_id from reported))\n    order by run_id\n    for update\n",
    new: "    where run_id = any (array(select run_id from reported))\n",
});

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn last_of_two_concurrent_completions_makes_graph_ready() {
    let pair = Pair {
        name: "release/release, the last ones",
        start: Start::Siblings { joined: false },
        transactions: SIBLINGS_END,
        holds: |end| expect(end.place(0) == "ready", "the graph is never concluded", end),
    };
    explore(pair, HEARS_FROM_BEFORE).await;
}

/// Whether the graph that run 0 starts exists completely.
fn has_graph(end: &End) -> bool {
    end.runs.len() == 3 && end.place(1) == "waiting" && end.place(2) == "ready"
}

/// The start is two statements. Between them only the lock of the first protects the lease.
const START_WITHOUT_LOCK: Wrong =
    Wrong::Text(Edit { statement: "start_child", old: "    for key share of lease\n", new: "" });

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn graph_start_commits_with_its_step_before_reclaim_or_never() {
    let pair = Pair {
        name: "start of a graph/reclaim/claim",
        start: Start::Orphaned,
        transactions: &[&[NoteGraph, WriteGraph, Commit], &[Orphans, Adopt, Commit], &[Claim(1), Commit]],
        holds: |end| {
            is_recorded_in_time(end)?;
            expect(has_graph(end) == (end.runs[0].n_steps == 1), "the graph and its step disagree", end)
        },
    };
    explore(pair, START_WITHOUT_LOCK).await;
}

/// The attempt ends while a graph start that its code has dropped is still in flight.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn graph_started_during_cancel_is_among_descendants_or_absent() {
    let pair = Pair {
        name: "start of a graph/cancelled",
        start: Start::Held,
        transactions: &[&[NoteGraph, WriteGraph, Commit], &[Settle(0, 0, IsCancelled), Commit, Below]],
        holds: |end| {
            let found = end.said[1].n_below;
            expect(found == Some(if has_graph(end) { 2 } else { 0 }), "nobody cancels what is below", end)
        },
    };
    explore(pair, START_WITHOUT_LOCK).await;
}

/// A decision through a link.
const DECISION: &[Step] = &[LockRun(3), GateDecide, ReleaseNodes(3), Commit];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn gate_still_open_after_revocation_refuses_earlier_link() {
    let pair = Pair {
        name: "decide/revoke",
        start: Start::Graph,
        transactions: &[DECISION, &[LockRun(3), GateRevoke, Commit, GateLook]],
        holds: |end| {
            let is_decided = end.said[0].held == Some(true);
            let was_open = end.said[1].is_open == Some(true);
            expect(is_decided != was_open, "a revoked link decides, or a valid one does not", end)
        },
    };
    let without_lock = Wrong::Transactions(&[DECISION, &[GateRevoke, Commit, GateLook]]);
    explore(pair, without_lock).await;
}
