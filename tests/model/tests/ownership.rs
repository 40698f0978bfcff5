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
fn the_protocol_holds_when_processes_stop_and_die() {
    let checked =
        holds("a pause and a crash", Ownership::engine(1, Faults { pauses: 1, crashes: 1, ..NONE }));
    assert!(checked.buries, "nobody was ever declared dead");
}

#[test]
fn the_protocol_holds_when_the_server_is_replaced_by_a_standby_that_lags_behind() {
    holds("a failover", Ownership::engine(1, Faults { failovers: 1, ..NONE }));
}

#[test]
fn the_protocol_holds_under_every_single_fault_of_a_workflow_of_two_steps() {
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
fn the_protocol_holds_when_a_lost_reply_meets_another_fault() {
    for (name, faults) in [
        ("a lost reply and a pause", Faults { replies: 1, pauses: 1, ..NONE }),
        ("a lost reply and a crash", Faults { replies: 1, crashes: 1, ..NONE }),
        ("a lost lock and a restart", Faults { locks: 1, restarts: 1, ..NONE }),
    ] {
        holds(name, Ownership::engine(1, faults));
    }
}

#[test]
fn without_a_fence_an_old_attempt_writes() {
    let engine = Ownership::engine(1, Faults { pauses: 1, ..NONE });
    breaks("no fence", names::FENCE, Ownership { fence: Fence::Nothing, ..engine });
}

#[test]
fn a_counted_fence_holds_until_a_failover_gives_one_number_twice() {
    let engine = Ownership::engine(1, Faults { pauses: 1, ..NONE });
    holds("counted fence", Ownership { fence: Fence::Epoch, ..engine });
    let engine = Ownership::engine(1, Faults { failovers: 1, ..NONE });
    breaks("counted fence, failover", names::ONE_OWNER, Ownership { fence: Fence::Epoch, ..engine });
    breaks("counted fence, failover", names::FENCE, Ownership { fence: Fence::Epoch, ..engine });
}

#[test]
fn a_fence_that_names_the_worker_lets_its_own_older_attempt_write() {
    let engine = Ownership::engine(1, Faults { replies: 1, failures: 1, ..NONE });
    breaks("fence of the worker", names::FENCE, Ownership { fence: Fence::Worker, ..engine });
}

#[test]
fn without_reconciliation_a_lost_reply_to_a_claim_loses_the_run() {
    let engine = Ownership::engine(1, Faults { replies: 1, ..NONE });
    breaks("no reconciliation", names::FOUND, Ownership { reconcile: false, ..engine });
}

#[test]
fn a_claim_whose_token_is_not_noted_before_it_is_sent_is_taken_for_a_lost_one() {
    let engine = Ownership::engine(1, NONE);
    breaks("token noted late", names::STALE, Ownership { notes_claims: false, ..engine });
}

#[test]
fn without_a_guard_bodies_start_while_a_worker_is_cut_off() {
    let engine = Ownership::engine(2, Faults { cuts: 1, ..NONE });
    breaks("no guard", names::STALE, Ownership { guard: Guard::Nothing, ..engine });
}

#[test]
fn a_guard_that_is_measured_by_the_lease_lets_stale_bodies_start() {
    let engine = Ownership::engine(2, Faults { cuts: 1, locks: 1, ..NONE });
    breaks("guard by the lease", names::STALE, Ownership { guard: Guard::Lease, ..engine });
}

#[test]
fn a_guard_that_is_measured_from_the_reply_lets_stale_bodies_start() {
    let engine = Ownership::engine(2, Faults { cuts: 1, ..NONE });
    breaks("guard by the reply", names::STALE, Ownership { guard: Guard::Reply, ..engine });
}

#[test]
fn a_free_lock_alone_is_no_death() {
    let engine = Ownership::engine(1, Faults { locks: 1, ..NONE });
    breaks("no suspicion", names::BURIED, Ownership { suspicion: false, ..engine });
    breaks("no suspicion", names::ALONE, Ownership { suspicion: false, ..engine });
}

#[test]
fn a_lock_of_an_earlier_incarnation_is_no_evidence() {
    let engine = Ownership::engine(1, Faults { restarts: 1, ..NONE });
    breaks("no incarnation", names::BURIED, Ownership { incarnation: false, ..engine });
}

#[test]
fn silence_is_no_evidence_to_a_worker_that_was_not_there_when_it_began() {
    let engine = Ownership::engine(1, Faults { restarts: 1, ..NONE });
    let newcomer = Ownership { doubts_silence: false, ..engine };
    breaks("no doubt of silence", names::BURIED, newcomer);
}

#[test]
fn without_the_sweep_the_run_of_a_dead_worker_is_lost() {
    let engine = Ownership::engine(1, Faults { crashes: 1, ..NONE });
    breaks("no sweep", names::FOUND, Ownership { sweep: false, ..engine });
}

#[test]
fn a_claim_of_a_dead_worker_needs_the_sweep_and_nothing_else() {
    let engine = Ownership::engine(1, Faults { pauses: 1, ..NONE });
    holds("a claim tests nothing", Ownership { claim_tests_worker: false, ..engine });
    breaks("and no sweep", names::FOUND, Ownership { claim_tests_worker: false, sweep: false, ..engine });
}

#[test]
fn a_claim_without_the_recorded_steps_runs_them_again() {
    let engine = Ownership::engine(1, Faults { crashes: 1, ..NONE });
    breaks("no replay", names::RECORDED, Ownership { replay: false, ..engine });
}

#[test]
fn a_crash_that_counts_as_a_failure_consumes_an_attempt() {
    let engine = Ownership::engine(1, Faults { crashes: 1, ..NONE });
    breaks("a crash is a failure", names::ATTEMPTS, Ownership { crash_is_a_failure: true, ..engine });
}

#[test]
fn a_write_without_a_fence_changes_a_run_that_has_ended() {
    let engine = Ownership::engine(1, Faults { pauses: 1, failures: 1, ..NONE });
    breaks("no fence", names::END, Ownership { fence: Fence::Nothing, ..engine });
}
