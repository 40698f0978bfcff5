//! Every state of the ownership protocol under combinations of faults, and the purpose of each
//! part: what goes wrong without it.
#![allow(
    clippy::panic,
    clippy::print_stdout,
    reason = "tests: one that cannot go on panics, and each says how much it has seen"
)]

use protocol::ownership::{Action, Checked, Faults, Fence, Guard, Ownership, check, names};

const NONE: Faults = Faults::NONE;

/// Visits every state of the engine's protocol. No property may be violated.
fn holds(name: &str, model: Ownership) -> Checked {
    let checked = check(model, &[]);
    println!("{name:36} {:8} states {:9} transitions", checked.n_states, checked.n_transitions);
    assert!(checked.violated.is_empty(), "{name}: {:?}", checked.violated);
    assert!(checked.completes, "{name}: the run never completes, so nothing was shown");
    checked
}

/// Expects a violation of this property without a part of the protocol. Returns the shortest path
/// to it.
fn breaks(name: &str, property: &'static str, model: Ownership) -> Vec<Action> {
    let checked = check(model, &[property]);
    let found = checked.violated.into_iter().find(|(violated, _)| *violated == property);
    let Some((_, path)) = found else { panic!("{name}: `{property}` holds in {} states", checked.n_states) };
    println!("{name:36} {:8} states, `{property}` after {} actions", checked.n_states, path.len());
    path
}

#[test]
fn protocol_holds_under_process_pause_and_crash() {
    let checked =
        holds("a pause and a crash", Ownership::engine(1, Faults { pauses: 1, crashes: 1, ..NONE }));
    assert!(checked.buries, "nobody was ever declared dead");
}

#[test]
fn protocol_holds_under_failover_to_lagging_standby() {
    holds("a failover", Ownership::engine(1, Faults { failovers: 1, ..NONE }));
}

#[test]
fn protocol_holds_for_two_steps_under_single_faults_and_pairs() {
    for (name, faults) in [
        ("a crash", Faults { crashes: 1, ..NONE }),
        ("a pause", Faults { pauses: 1, ..NONE }),
        ("a cut", Faults { cuts: 1, ..NONE }),
        ("a restart of the server", Faults { restarts: 1, ..NONE }),
        ("a lost lock and a lost reply", Faults { locks: 1, replies: 1, ..NONE }),
        ("a failure and a lost reply", Faults { failures: 2, replies: 1, ..NONE }),
    ] {
        holds(name, Ownership::engine(2, faults));
    }
}

#[test]
fn protocol_holds_when_lost_reply_or_lock_meets_second_fault() {
    for (name, faults) in [
        ("a lost reply and a pause", Faults { replies: 1, pauses: 1, ..NONE }),
        ("a lost reply and a crash", Faults { replies: 1, crashes: 1, ..NONE }),
        ("a lost lock and a restart", Faults { locks: 1, restarts: 1, ..NONE }),
    ] {
        holds(name, Ownership::engine(1, faults));
    }
}

#[test]
fn stale_attempt_writes_without_fence() {
    let engine = Ownership::engine(1, Faults { pauses: 1, ..NONE });
    breaks("no fence", names::FENCE, Ownership { fence: Fence::Nothing, ..engine });
}

#[test]
fn counted_fence_holds_under_pause_and_breaks_under_failover() {
    let engine = Ownership::engine(1, Faults { pauses: 1, ..NONE });
    holds("counted fence", Ownership { fence: Fence::Epoch, ..engine });
    let engine = Ownership::engine(1, Faults { failovers: 1, ..NONE });
    breaks("counted fence, failover", names::ONE_OWNER, Ownership { fence: Fence::Epoch, ..engine });
    breaks("counted fence, failover", names::FENCE, Ownership { fence: Fence::Epoch, ..engine });
}

#[test]
fn fence_by_worker_accepts_write_of_its_older_attempt() {
    let engine = Ownership::engine(1, Faults { replies: 1, failures: 1, ..NONE });
    breaks("fence of the worker", names::FENCE, Ownership { fence: Fence::Worker, ..engine });
}

#[test]
fn lost_claim_reply_loses_run_without_reconciliation() {
    let engine = Ownership::engine(1, Faults { replies: 1, ..NONE });
    breaks("no reconciliation", names::FOUND, Ownership { reconcile: false, ..engine });
}

#[test]
fn claim_token_noted_after_sending_lets_stale_body_start() {
    let engine = Ownership::engine(1, NONE);
    breaks("token noted late", names::STALE, Ownership { notes_claims: false, ..engine });
}

#[test]
fn stale_bodies_start_during_cut_without_guard() {
    let engine = Ownership::engine(2, Faults { cuts: 1, ..NONE });
    breaks("no guard", names::STALE, Ownership { guard: Guard::Nothing, ..engine });
}

#[test]
fn guard_measured_by_lease_lets_stale_bodies_start() {
    let engine = Ownership::engine(2, Faults { cuts: 1, locks: 1, ..NONE });
    breaks("guard by the lease", names::STALE, Ownership { guard: Guard::Lease, ..engine });
}

#[test]
fn guard_measured_from_reply_lets_stale_bodies_start() {
    let engine = Ownership::engine(2, Faults { cuts: 1, ..NONE });
    breaks("guard by the reply", names::STALE, Ownership { guard: Guard::Reply, ..engine });
}

#[test]
fn live_worker_is_declared_dead_when_free_lock_suffices() {
    let engine = Ownership::engine(1, Faults { locks: 1, ..NONE });
    breaks("no suspicion", names::BURIED, Ownership { suspicion: false, ..engine });
    breaks("no suspicion", names::ALONE, Ownership { suspicion: false, ..engine });
}

#[test]
fn live_worker_is_declared_dead_without_lock_incarnation_check() {
    let engine = Ownership::engine(1, Faults { restarts: 1, ..NONE });
    breaks("no incarnation", names::BURIED, Ownership { incarnation: false, ..engine });
}

#[test]
fn live_worker_is_declared_dead_when_downtime_counts_as_silence() {
    let engine = Ownership::engine(1, Faults { restarts: 1, ..NONE });
    let newcomer = Ownership { doubts_silence: false, ..engine };
    breaks("no doubt of silence", names::BURIED, newcomer);
}

#[test]
fn run_of_crashed_worker_is_lost_without_sweep() {
    let engine = Ownership::engine(1, Faults { crashes: 1, ..NONE });
    breaks("no sweep", names::FOUND, Ownership { sweep: false, ..engine });
}

#[test]
fn claim_by_dead_worker_is_recovered_by_sweep_alone() {
    let engine = Ownership::engine(1, Faults { pauses: 1, ..NONE });
    holds("a claim tests nothing", Ownership { claim_tests_worker: false, ..engine });
    breaks("and no sweep", names::FOUND, Ownership { claim_tests_worker: false, sweep: false, ..engine });
}

#[test]
fn claim_without_recorded_steps_executes_them_again() {
    let engine = Ownership::engine(1, Faults { crashes: 1, ..NONE });
    breaks("no replay", names::RECORDED, Ownership { replay: false, ..engine });
}

#[test]
fn crash_counted_as_failure_consumes_attempt() {
    let engine = Ownership::engine(1, Faults { crashes: 1, ..NONE });
    breaks("a crash is a failure", names::ATTEMPTS, Ownership { crash_is_a_failure: true, ..engine });
}

#[test]
fn write_without_fence_changes_terminal_run() {
    let engine = Ownership::engine(1, Faults { pauses: 1, failures: 1, ..NONE });
    breaks("no fence", names::END, Ownership { fence: Fence::Nothing, ..engine });
}
