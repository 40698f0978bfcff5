//! Concurrent transactions in every order of their statements. With the engine's statements every
//! expectation holds. With a defect it does not.
//!
//! Each test has the database before, the statements of each transaction, an expectation, and a
//! defect that must violate it.

mod graphs;
mod waits;

use protocol::permutations::{CRASHES, End, Ending, Pair, Start, Step, Wrong};
use protocol::statements::{Edit, Submission};
use runledger::model::run::settle::SUSPECT;

use Ending::{Completes, Fails, IsCancelled, Pauses};
use Step::{
    Activate, Adopt, CancelAsk, CancelTake, Checkpoint, CheckpointFresh, CheckpointToUndo, Claim,
    ClaimWithPermit, Commit, ContinueRun, Enqueue, EnqueueActive, Existing, Held, LockFreeRun, LockLease,
    LockRun, Orphans, PauseAsk, PauseTake, Pin, Release, Resume, SendSignal, Settle, Suspend, TakeSignal,
    WakeDue, WakeParents,
};

/// A settlement by this statement that does not check the token.
const fn without_fence(statement: &'static str) -> Wrong {
    Wrong::Text(Edit {
        statement,
        old: "where run_id = item.run_id and token = item.token offset 0",
        new: "where run_id = item.run_id offset 0",
    })
}

/// Explores the transactions, with and without the defect.
async fn explore(pair: Pair, wrong: Wrong) {
    let explored = pair.explore(None).await.unwrap();
    println!(
        "{:28} {:4} interleavings, {:4} with a wait",
        pair.name, explored.n_interleavings, explored.n_waited
    );
    assert_eq!(explored.n_interleavings, Pair::n_interleavings(pair.transactions));
    assert_eq!(explored.violations, [""; 0], "{}", pair.name);
    let defect = pair.explore(Some(wrong)).await.unwrap();
    println!("{:28} {:4} violations with the defect", "", defect.violations.len());
    assert_ne!(defect.violations, [""; 0], "{}: the defect does not show", pair.name);
}

fn expect(holds: bool, otherwise: &str, end: &End) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("{otherwise}: {end:?}")) }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn concurrent_claims_get_different_runs() {
    let pair = Pair {
        name: "claim/claim",
        start: Start::Queued(2),
        transactions: &[&[Claim(0), Commit], &[Claim(1), Commit]],
        holds: |end| {
            let given = |worker: usize| end.said[worker].claimed.len() == 1;
            let tokens: Vec<_> = end.runs.iter().map(|run| run.token).collect();
            let both = tokens.contains(&Some(0)) && tokens.contains(&Some(1));
            expect(given(0) && given(1) && both, "a due run was not given", end)
        },
    };
    let unlocked = Edit { statement: "claim", old: "        for update skip locked\n", new: "" };
    explore(pair, Wrong::Text(unlocked)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn concurrent_claims_of_one_run_succeed_once() {
    let pair = Pair {
        name: "claim/claim of one run",
        start: Start::Queued(1),
        transactions: &[&[Claim(0), Commit], &[Claim(1), Commit]],
        holds: |end| {
            let given: Vec<usize> = (0..2).filter(|worker| end.said[*worker].claimed.len() == 1).collect();
            expect(given.len() == 1 && end.runs[0].token == Some(given[0]), "not given once", end)
        },
    };
    let kept = Edit {
        statement: "claim",
        old: "    delete from runledger.ready
    where ctid = any (array(select spot from candidate))
    returning run_id, priority, ready_at, attempt, crashes, claims
",
        new: "    select run_id, priority, ready_at, attempt, crashes, claims
    from runledger.ready
    where ctid = any (array(select spot from candidate))
",
    };
    explore(pair, Wrong::Text(kept)).await;
}

/// Takes a free permit even if another transaction has taken it since.
const BLIND: Wrong = Wrong::Text(Edit {
    statement: "claim_with_permit",
    old: "\n    where permit.token = (\n        select free.last_tokens[pg_catalog.array_position(free.numbers, permit.number)] from free where free.resource = permit.resource\n    )",
    new: "",
});

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn concurrent_claims_for_one_permit_lease_one_run() {
    let pair = Pair {
        name: "claim/claim with a permit",
        start: Start::Wanting { is_taken: false },
        transactions: &[&[ClaimWithPermit(0), Commit], &[ClaimWithPermit(1), Commit]],
        holds: |end| {
            let n_claimed: usize = end.said.iter().map(|said| said.claimed.len()).sum();
            let n_held = (0..3).filter(|run| end.place(*run) == "lease").count();
            expect(n_claimed == 1 && n_held == 1, "not given once", end)
        },
    };
    explore(pair, BLIND).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn permit_released_with_its_lease_is_granted_at_most_once() {
    let pair = Pair {
        name: "end/claim/claim with a permit",
        start: Start::Wanting { is_taken: true },
        transactions: &[
            &[Settle(0, 0, Fails), Commit],
            &[ClaimWithPermit(1), Commit],
            &[ClaimWithPermit(2), Commit],
        ],
        holds: |end| {
            let n_claimed: usize = end.said.iter().map(|said| said.claimed.len()).sum();
            let n_held = (0..3).filter(|run| end.place(*run) == "lease").count();
            expect(n_claimed <= 1 && n_held == n_claimed, "not given once", end)
        },
    };
    let held_is_free = Edit {
        statement: "claim_with_permit",
        old: "runledger.free_permits(needed.resource) as permit\n",
        new: "(select number, token as last_token from runledger.permit where permit.resource = needed.resource) as permit\n",
    };
    explore(pair, Wrong::Text(held_is_free)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn stale_release_does_not_requeue_reclaimed_run() {
    let pair = Pair {
        name: "release/reclaim/claim",
        start: Start::Orphaned,
        transactions: &[&[Held, Release, Commit], &[Orphans, Adopt, Commit], &[Claim(1), Commit]],
        holds: |end| {
            let claimed = end.said[2].claimed.len() == 1;
            let run = &end.runs[0];
            expect(claimed == (run.token == Some(1)), "the claim and the lease disagree", end)?;
            let attempt = if end.place(0) == "lease" { 1 } else { 0 };
            expect(run.attempt == Some(attempt), "an attempt was consumed", end)
        },
    };
    explore(pair, without_fence("settle")).await;
}

/// No step is recorded after the claim of a later attempt, and a recorded step counts.
fn is_recorded_in_time(end: &End) -> Result<(), String> {
    let run = &end.runs[0];
    expect((run.n_steps == 1) == (end.said[0].held == Some(true)), "a lost step", end)?;
    if let Some(claimed) = end.said[2].claimed.first() {
        expect(claimed.steps.len() as i64 == run.n_steps, "recorded behind a later claim", end)?;
    }
    let crashes = match (run.token, run.n_steps) {
        (Some(0), _) => CRASHES,
        (_, 0) => CRASHES + 1,
        _ => SUSPECT,
    };
    expect(run.crashes == Some(crashes), "the crashes of its trials are not counted from the last step", end)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn step_is_recorded_before_reclaim_or_never() {
    let pair = Pair {
        name: "checkpoint/reclaim/claim",
        start: Start::Orphaned,
        transactions: &[&[CheckpointFresh(0), Commit], &[Orphans, Adopt, Commit], &[Claim(1), Commit]],
        holds: is_recorded_in_time,
    };
    let unlocked = Edit { statement: "checkpoint_fresh", old: "        for key share\n", new: "" };
    explore(pair, Wrong::Text(unlocked)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn resent_step_is_recorded_before_reclaim_or_never() {
    let pair = Pair {
        name: "repetition/reclaim/claim",
        start: Start::Orphaned,
        transactions: &[&[Checkpoint(0), Commit], &[Orphans, Adopt, Commit], &[Claim(1), Commit]],
        holds: is_recorded_in_time,
    };
    let unlocked = Edit { statement: "checkpoint", old: "        for key share\n", new: "" };
    explore(pair, Wrong::Text(unlocked)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn attempt_completes_run_before_reclaim_or_never() {
    let pair = Pair {
        name: "complete/reclaim/claim",
        start: Start::Orphaned,
        transactions: &[&[Settle(0, 0, Completes), Commit], &[Orphans, Adopt, Commit], &[Claim(1), Commit]],
        holds: |end| {
            let completed = end.runs[0].outcome.as_deref() == Some("completed");
            expect(completed == (end.said[0].held == Some(true)), "the answer is wrong", end)?;
            let claimed = end.said[2].claimed.len() == 1;
            expect(claimed == (end.runs[0].token == Some(1)), "a later attempt lost its lease", end)
        },
    };
    explore(pair, without_fence("settle_completed")).await;
}

const CANCEL: &[Step] = &[LockRun(0), CancelAsk, CancelTake, Commit];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn run_completing_during_cancel_is_completed() {
    let pair = Pair {
        name: "cancel/complete",
        start: Start::Held,
        transactions: &[CANCEL, &[Settle(0, 0, Completes), Commit]],
        holds: |end| {
            let completed = end.runs[0].outcome.as_deref() == Some("completed");
            let told = end.said[0].taken != Some(true) && end.said[1].held == Some(true);
            expect(completed && told, "a running run was cancelled behind its worker's back", end)
        },
    };
    let taken = Edit {
        statement: "cancel_take",
        old: "        select run_id, attempt, crashes, claims from unparked\n",
        new: "        select run_id, attempt, crashes, claims from unparked\n        union all\n        select run_id, attempt, crashes, claims from runledger.lease where run_id = $1\n",
    };
    explore(pair, Wrong::Text(taken)).await;
}

/// A cancellation happens at once, or with the next heartbeat: of the run's worker, or of any
/// worker if the run is unclaimed.
fn is_cancelled_or_told(end: &End) -> Result<(), String> {
    let run = &end.runs[0];
    expect(run.outcome.as_deref() == Some("cancelled") || run.is_told, "nobody hears of it", end)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn cancel_is_not_lost_to_concurrent_claim() {
    let pair = Pair {
        name: "cancel/claim",
        start: Start::Queued(1),
        transactions: &[CANCEL, &[Claim(0), Commit]],
        holds: is_cancelled_or_told,
    };
    explore(pair, Wrong::Transactions(&[&[LockRun(0), CancelTake, Commit], &[Claim(0), Commit]])).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn cancel_is_not_lost_to_concurrent_requeue() {
    let pair = Pair {
        name: "cancel/retry",
        start: Start::Held,
        transactions: &[CANCEL, &[Settle(0, 0, Fails), Commit]],
        holds: is_cancelled_or_told,
    };
    explore(pair, Wrong::Transactions(&[&[LockRun(0), CancelTake, Commit], &[Settle(0, 0, Fails), Commit]]))
        .await;
}

/// A pause happens at once, or with the next heartbeat: of the run's worker, or of any worker if
/// the run is unclaimed.
fn is_paused_or_told(end: &End) -> Result<(), String> {
    let told = end.runs[0].is_told_to_pause;
    expect(end.place(0) == "paused" || told, "nobody hears of it", end)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn pause_is_not_lost_to_concurrent_claim() {
    let pair = Pair {
        name: "pause/claim",
        start: Start::Queued(1),
        transactions: &[&[LockRun(0), PauseAsk, PauseTake, Commit], &[Claim(0), Commit]],
        holds: is_paused_or_told,
    };
    // Deletes the request even if the run was not paused.
    let too_early = Edit {
        statement: "pause_take",
        old: "    where run_id = any (array(select run_id from taken))",
        new: "    where run_id = $1",
    };
    explore(pair, Wrong::Text(too_early)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn pause_is_not_lost_to_concurrent_suspension() {
    let pair = Pair {
        name: "pause/suspend",
        start: Start::Family(1),
        transactions: &[&[LockRun(0), PauseAsk, PauseTake, Commit], &[LockFreeRun(0), Suspend, Commit]],
        holds: is_paused_or_told,
    };
    let only_waiting = Edit {
        statement: "pause_ask",
        old: "where state in ('queued', 'running', 'waiting')",
        new: "where state in ('queued', 'waiting')",
    };
    explore(pair, Wrong::Text(only_waiting)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn run_completing_during_pause_is_completed() {
    let pair = Pair {
        name: "pause/complete",
        start: Start::Held,
        transactions: &[&[LockRun(0), PauseAsk, PauseTake, Commit], &[Settle(0, 0, Completes), Commit]],
        holds: |end| {
            let completed = end.runs[0].outcome.as_deref() == Some("completed");
            let asked = end.said[0].ended.as_deref() == Some("completed") || end.runs[0].is_told_to_pause;
            expect(completed && asked, "a running run was paused behind its worker's back", end)
        },
    };
    let without_place = Edit {
        statement: "pause_take",
        old: "    select * from unparked\n",
        new: "    select $1, 0, 0, 0, statement_timestamp()\n",
    };
    explore(pair, Wrong::Text(without_place)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn resume_is_not_lost_to_concurrent_pause() {
    let pair = Pair {
        name: "resume/pause",
        start: Start::Pausing,
        transactions: &[&[LockRun(0), Resume, Commit], &[Settle(0, 0, Pauses), Commit]],
        holds: |end| {
            // If the pause happens between the read and the write of the resume, its caller tries
            // again.
            let resumed = end.said[0].resumed == Some(true);
            expect(resumed != (end.place(0) == "paused"), "the resumption was lost", end)
        },
    };
    let without_wait = Edit {
        statement: "settle",
        old: "    delete from runledger.pause
    where run_id = any (array(select run_id from held where state = 'paused'))
    returning run_id, reason",
        new: "    select run_id, reason from runledger.pause
    where run_id = any (array(select run_id from held where state = 'paused'))",
    };
    explore(pair, Wrong::Text(without_wait)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn cancel_is_not_lost_to_concurrent_suspension() {
    let pair = Pair {
        name: "cancel/suspend",
        start: Start::Family(1),
        transactions: &[CANCEL, &[LockFreeRun(0), Suspend, Commit]],
        holds: is_cancelled_or_told,
    };
    explore(
        pair,
        Wrong::Transactions(&[&[LockRun(0), CancelTake, Commit], &[LockFreeRun(0), Suspend, Commit]]),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn concurrent_enqueues_with_one_key_create_and_return_one_run() {
    let pair = Pair {
        name: "enqueue/enqueue with one key",
        start: Start::Nothing,
        transactions: &[&[Enqueue, Existing, Commit], &[Enqueue, Existing, Commit]],
        holds: |end| {
            let new = |at: usize| end.said[at].submission == Some(Submission::Created);
            expect(new(0) != new(1), "not new once", end)?;
            let met = &end.said[usize::from(new(0))];
            expect(met.existing == Some(true) && end.place(0) == "ready", "met and not found", end)
        },
    };
    let unchecked = Edit { statement: "enqueue", old: "    on conflict (run_id) do nothing\n", new: "" };
    explore(pair, Wrong::Text(unchecked)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn concurrent_enqueues_with_one_active_key_create_one_run() {
    let pair = Pair {
        name: "active key/active key",
        start: Start::Nothing,
        transactions: &[&[EnqueueActive(0), Activate(0), Commit], &[EnqueueActive(1), Activate(1), Commit]],
        holds: |end| {
            let given: Vec<_> = end.said.iter().filter(|said| said.taken == Some(true)).collect();
            expect(given.len() == 1 && end.runs.len() == 1, "not one of them", end)
        },
    };
    let whoever = Edit {
        statement: "activate",
        old: "\n    where held.run_id = excluded.run_id or exists (select from runledger.outcome where outcome.run_id = held.run_id offset 0)",
        new: "",
    };
    explore(pair, Wrong::Text(whoever)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn concurrent_signals_are_both_stored() {
    let pair = Pair {
        name: "signal/signal",
        start: Start::Held,
        transactions: &[&[LockRun(0), SendSignal, Commit], &[LockRun(0), SendSignal, Commit]],
        holds: |end| expect(end.runs[0].n_signals == 2, "one is lost", end),
    };
    explore(pair, Wrong::Transactions(&[&[SendSignal, Commit], &[SendSignal, Commit]])).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn signal_is_consumed_by_leasing_attempt_or_by_none() {
    let pair = Pair {
        name: "take/reclaim/claim",
        start: Start::Orphaned,
        transactions: &[
            &[LockRun(0), SendSignal, Commit],
            &[TakeSignal(0, 0), Commit],
            &[Orphans, Adopt, Commit],
        ],
        holds: |end| {
            let run = &end.runs[0];
            expect(run.n_taken == run.n_steps, "taken, and not recorded", end)?;
            expect(run.n_taken + run.n_signals == 1, "a signal is lost", end)?;
            expect((run.n_taken == 1) == (end.said[1].taken == Some(true)), "the answer is wrong", end)
        },
    };
    let unfenced = Edit {
        statement: "take_signal",
        old: "    from held\n    where signal.run_id = any (array(select run_id from held)) and signal.number = any (array(select number from held))\n        and signal.run_id = held.run_id",
        new: "    from (
        select item.*, 0 as claims
        from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::integer[], $8::text[], $9::text[], $10::integer[], $11::integer[])
            with ordinality as item (run_id, token, key, ordinal, fingerprint, output, seen_len, seen, name, number, slice, position)
    ) as held
    where signal.run_id = held.run_id",
    };
    explore(pair, Wrong::Text(unfenced)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn step_recorded_during_continue_as_new_is_dropped_or_refused() {
    let pair = Pair {
        name: "checkpoint/continue",
        start: Start::Held,
        transactions: &[&[CheckpointFresh(0), Commit], &[LockLease, ContinueRun, Commit]],
        holds: |end| {
            let is_anew = end.said[1].held == Some(true) && end.place(0) == "ready";
            expect(is_anew && end.runs[0].n_steps == 0, "the next slice finds a step of this one", end)
        },
    };
    let unlocked = Wrong::Transactions(&[&[CheckpointFresh(0), Commit], &[ContinueRun, Commit]]);
    explore(pair, unlocked).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn step_recorded_during_cancel_is_compensated_or_refused() {
    let pair = Pair {
        name: "checkpoint to undo/cancel",
        start: Start::Held,
        transactions: &[&[CheckpointToUndo, Commit], &[LockLease, Settle(0, 0, IsCancelled), Commit]],
        holds: |end| {
            let is_recorded = end.said[0].held == Some(true);
            let place = if is_recorded { "ready" } else { "outcome" };
            expect(end.place(0) == place && end.said[1].held == Some(true), "nobody compensates it", end)
        },
    };
    let unlocked = Wrong::Transactions(&[&[CheckpointToUndo, Commit], &[Settle(0, 0, IsCancelled), Commit]]);
    explore(pair, unlocked).await;
}

/// A run is queued in the lanes of its own version, and its version changes exactly if it was
/// moved.
fn is_of_one_version(end: &End) -> Result<(), String> {
    let (version, queued) = &end.runs[0].versions;
    expect(queued.as_ref().is_none_or(|queued| queued == version), "queued under another version", end)?;
    let moved = end.said[0].moved == Some(true);
    expect((version == "2") == moved, "the answer is wrong", end)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn run_claimed_during_version_move_stays_on_its_version() {
    let pair = Pair {
        name: "pin/claim",
        start: Start::Queued(1),
        transactions: &[&[LockRun(0), Pin, Commit], &[Claim(0), Commit]],
        holds: |end| {
            let claimed = end.said[1].claimed.len() == 1;
            expect(claimed != (end.said[0].moved == Some(true)), "claimed by code of before", end)?;
            is_of_one_version(end)
        },
    };
    let whatever = Edit {
        statement: "pin",
        old: "    where run_id = (select run_id from unqueued union all select run_id from parked)\n",
        new: "    where run_id = $1\n",
    };
    explore(pair, Wrong::Text(whatever)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn run_woken_during_version_move_is_queued_for_its_version() {
    let pair = Pair {
        name: "pin/wake",
        start: Start::Overdue,
        transactions: &[&[LockRun(0), Pin, Commit], &[WakeDue, Commit]],
        holds: is_of_one_version,
    };
    let unlocked = Edit {
        statement: "pin",
        old: "    update runledger.waiting set since = since\n    where run_id = $1\n    returning run_id\n",
        new: "    select run_id from runledger.waiting\n    where run_id = $1\n",
    };
    explore(pair, Wrong::Text(unlocked)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn parent_woken_during_version_move_is_queued_for_its_version() {
    let pair = Pair {
        name: "pin/child ends",
        start: Start::Waiting(1),
        transactions: &[
            &[LockRun(0), Pin, Commit],
            &[LockRun(0), Settle(1, 1, Completes), WakeParents(1), Commit],
        ],
        holds: |end| {
            expect(end.place(0) == "ready", "never woken", end)?;
            is_of_one_version(end)
        },
    };
    let unlocked = Wrong::Transactions(&[&[Pin, Commit], &[Settle(1, 1, Completes), WakeParents(1), Commit]]);
    explore(pair, unlocked).await;
}
