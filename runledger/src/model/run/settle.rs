//! The only decision about the state of a run after an attempt.

use std::time::Duration;

use crate::model::payload::Stored;
use crate::model::run::backoff::Backoff;
use crate::model::run::failure::{Failure, FailureKind, Retry};
use crate::model::timestamp::{FURTHEST, Timestamp};

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The attempt returned an output, here in its stored form.
    Completed(Stored),
    /// The attempt failed.
    Failed(Failure, Retry),
    /// The run sleeps until an instant of the database's clock.
    Asleep(Timestamp),
    /// The worker shuts down before the attempt has ended.
    Released,
    /// A pause was requested, and the attempt has stopped.
    Paused,
    /// A slice of the work is done. The next slice begins after a delay.
    Continued(Duration),
    /// A cancel was requested, and the attempt has stopped.
    Cancelled(Failure),
    /// The record and the code disagree.
    Diverged(Failure),
    /// The worker claimed the run but did not start it, because the worker executes another suspect
    /// alone. The run keeps its place in the queue, at this instant.
    Deferred(Timestamp),
    /// The process died during the attempt.
    Crashed {
        /// Whether the attempt recorded a step before it died.
        progressed: bool,
        /// Whether the crash counts against the run.
        blame: Blame,
    },
}

/// Whether a crash counts against a run. See docs/decisions/0018-crash-suspects.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// No: its worker stopped in order.
    None,
    /// Maybe: other runs shared the process. This can make the run a suspect, but cannot block it.
    Shared,
    /// Maybe: another run was on trial. The run is older than the trial, so it may have caused the
    /// crash and becomes a suspect as with `Shared`. A recorded step excuses nothing: otherwise a
    /// run that records one in each attempt would never get a trial of its own, and the other run
    /// would be blocked for it.
    BesideTrial,
    /// Yes: no other run in the process was a suspect or newly started.
    Alone,
    /// Yes, but one other run was also in its last crashes and may have caused them. The crash does
    /// not block the run.
    NotAlone,
}

/// The counters of a run during an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Attempts, including this one. Crashes, suspensions and shutdowns are subtracted again.
    pub attempt: i32,
    /// Consecutive crashes that the run may have caused. A recorded step or a finished attempt
    /// resets the count.
    pub crashes: i32,
}

/// The retry policy of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The maximum number of attempts, at least 1.
    pub max_attempts: u32,
    /// The delay between attempts.
    pub backoff: Backoff,
}

impl RetryPolicy {
    /// For outcomes that ignore the job's policy: releases, crashes and cancels.
    pub const NOT_ASKED: Self = Self { max_attempts: 1, backoff: Backoff::DEFAULT };
}

/// The new state of the run, as it is written.
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement {
    /// The new state.
    pub verdict: Verdict,
    /// The new counters.
    pub counters: Counters,
}

/// The state of a run after its attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The run completed with this output.
    Complete(Stored),
    /// The run failed for good.
    Fail(Failure),
    /// The run is cancelled.
    Cancel(Failure),
    /// The run returns to its queue after a delay.
    Requeue {
        /// When workers may claim the run again.
        due: Due,
        /// Why the run is queued again.
        cause: Cause,
        /// The failure of this attempt, which is recorded.
        failure: Option<Failure>,
    },
    /// The run is blocked until an operator resumes it.
    Block(Failure),
    /// The run is paused because an operator requested it. If the request was withdrawn, the run
    /// returns to its queue.
    Pause,
}

impl Verdict {
    /// The failure of the attempt, if it has one.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Fail(failure) | Self::Cancel(failure) | Self::Block(failure) => Some(failure),
            Self::Requeue { failure, .. } => failure.as_ref(),
            Self::Complete(_) | Self::Pause => None,
        }
    }
}

/// When workers may claim a run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// This long after the writing statement, by the database's clock.
    In(Duration),
    /// At an instant of the database's clock.
    At(Timestamp),
}

/// Why a run is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// A client enqueued the run.
    Enqueued,
    /// An attempt failed.
    Retried,
    /// The run sleeps, or its sleep has ended.
    Slept,
    /// The worker returned the run, because it shut down or did not know of the claim.
    Released,
    /// The worker died.
    Crashed,
    /// The awaited event occurred.
    Woken,
    /// An operator resumed the run.
    Resumed,
    /// A slice of the work is done, and the next slice is due.
    Continued,
}

impl Cause {
    /// The name of the cause in SQL.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enqueued => "enqueued",
            Self::Retried => "retried",
            Self::Slept => "slept",
            Self::Released => "released",
            Self::Crashed => "crashed",
            Self::Woken => "woken",
            Self::Resumed => "resumed",
            Self::Continued => "continued",
        }
    }
}

/// The number of consecutive crashes that block a run.
pub const MAX_CRASHES: i32 = 5;

/// A run with this many consecutive crashes is a suspect: workers execute it with no other suspect
/// in the process. Crashes with other runs in the process count up to this number only, so only
/// crashes during the run's own trials can block it.
pub const SUSPECT: i32 = 2;

/// The number of crashes during its own trials that block a run.
pub const TRIED: i32 = MAX_CRASHES - SUSPECT;

/// Whether a crash blocks a run that was on trial.
#[must_use]
pub const fn is_parked_by_crash(crashes_before: i32, progressed: bool) -> bool {
    !progressed && crashes_before >= MAX_CRASHES - 1
}

/// The delay before a run is claimed again after a crash. It doubles with every consecutive crash,
/// so a run that kills its process cannot take down a whole fleet at once.
const CRASH_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

/// Decides the state of a run after an attempt. `unit_random` is uniform in `0.0..1.0` and spreads
/// the delays.
///
/// The executor calls it for its own attempts, and the reaper for attempts of dead workers. No
/// other code decides.
#[must_use]
pub fn settle(outcome: Outcome, counters: Counters, policy: &RetryPolicy, unit_random: f64) -> Settlement {
    let unspent = Counters { attempt: (counters.attempt - 1).max(0), ..counters };
    match outcome {
        Outcome::Completed(output) => Settlement { verdict: Verdict::Complete(output), counters },
        Outcome::Failed(failure, retry) => Settlement {
            verdict: after_failure(failure, retry, counters, policy, unit_random),
            counters: Counters { crashes: 0, ..counters },
        },
        Outcome::Asleep(until) => requeue(Due::At(until), Cause::Slept, Counters { crashes: 0, ..unspent }),
        Outcome::Deferred(since) => requeue(Due::At(since), Cause::Released, unspent),
        Outcome::Released => requeue(Due::In(Duration::ZERO), Cause::Released, unspent),
        Outcome::Continued(delay) => {
            requeue(Due::In(delay), Cause::Continued, Counters { attempt: 0, crashes: 0 })
        }
        Outcome::Paused => Settlement { verdict: Verdict::Pause, counters: unspent },
        Outcome::Cancelled(failure) => Settlement { verdict: Verdict::Cancel(failure), counters },
        Outcome::Diverged(failure) => Settlement { verdict: Verdict::Block(failure), counters: unspent },
        Outcome::Crashed { progressed, blame } => after_crash(progressed, blame, unspent, unit_random),
    }
}

fn after_failure(
    failure: Failure,
    retry: Retry,
    counters: Counters,
    policy: &RetryPolicy,
    unit_random: f64,
) -> Verdict {
    let spent = u32::try_from(counters.attempt).unwrap_or(1);
    match retry_delay(retry, spent, policy, unit_random) {
        None => Verdict::Fail(failure),
        Some(delay) => {
            Verdict::Requeue { due: Due::In(delay), cause: Cause::Retried, failure: Some(failure) }
        }
    }
}

/// The delay before the next attempt after `failures` failed ones. `None` if there is no next
/// attempt. Runs and steps use the same rule.
#[must_use]
pub fn retry_delay(retry: Retry, failures: u32, policy: &RetryPolicy, unit_random: f64) -> Option<Duration> {
    match retry {
        Retry::Never => None,
        Retry::Policy | Retry::After(_) if failures >= policy.max_attempts => None,
        Retry::Policy => Some(policy.backoff.delay(failures, unit_random)),
        Retry::After(delay) => Some(delay.min(FURTHEST)),
    }
}

fn after_crash(progressed: bool, blame: Blame, unspent: Counters, unit_random: f64) -> Settlement {
    let next = unspent.crashes.saturating_add(1);
    let crashes = match blame {
        Blame::None if progressed => 0,
        Blame::None => unspent.crashes,
        Blame::Shared if progressed => 1,
        Blame::Shared | Blame::BesideTrial => next.min(SUSPECT.max(unspent.crashes)),
        Blame::Alone | Blame::NotAlone if progressed => SUSPECT,
        Blame::Alone | Blame::NotAlone => next,
    };
    let counters = Counters { crashes, ..unspent };
    if blame == Blame::Alone && is_parked_by_crash(unspent.crashes, progressed) {
        let message = format!(
            "the process died (or was cut off for longer than its lease) {crashes} times in a row while it executed this run, the last {TRIED} times during trials of this run; \
             no other run explains these, and no step was recorded between; the run is blocked so that it cannot end more workers; remove the cause and \
             resume it, or cancel it"
        );
        return Settlement { verdict: Verdict::Block(Failure::new(FailureKind::Crash, message)), counters };
    }
    let waited_for_its_trial = blame == Blame::BesideTrial && crashes == unspent.crashes;
    // The first crash is most likely the worker's own end (a deploy, a lost machine), so the run
    // continues at once.
    let goes_on_at_once = blame == Blame::None || waited_for_its_trial || progressed || crashes < SUSPECT;
    let delay = if goes_on_at_once {
        Duration::ZERO
    } else {
        CRASH_BACKOFF.delay(crashes.unsigned_abs() - 1, unit_random)
    };
    let message = "the process of its worker ended in the middle of this attempt, or was cut off for longer than its lease; \
                   the attempt was not counted, and another began";
    let failure = Some(Failure::new(FailureKind::Crash, message));
    let verdict = Verdict::Requeue { due: Due::In(delay), cause: Cause::Crashed, failure };
    Settlement { verdict, counters }
}

fn requeue(due: Due, cause: Cause, counters: Counters) -> Settlement {
    Settlement { verdict: Verdict::Requeue { due, cause, failure: None }, counters }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy = RetryPolicy { max_attempts: 3, backoff: Backoff::DEFAULT };

    fn error() -> Failure {
        Failure::new(FailureKind::Error, "no")
    }

    fn counters(attempt: i32, crashes: i32) -> Counters {
        Counters { attempt, crashes }
    }

    #[test]
    fn failure_is_retried_until_attempts_are_exhausted() {
        for attempt in 1..=2 {
            let settled = settle(Outcome::Failed(error(), Retry::Policy), counters(attempt, 0), &POLICY, 0.5);
            assert!(matches!(settled.verdict, Verdict::Requeue { cause: Cause::Retried, .. }));
            assert_eq!(settled.counters.attempt, attempt);
        }
        let settled = settle(Outcome::Failed(error(), Retry::Policy), counters(3, 0), &POLICY, 0.5);
        assert_eq!(settled.verdict, Verdict::Fail(error()));
    }

    #[test]
    fn terminal_failure_is_never_retried() {
        let settled = settle(Outcome::Failed(error(), Retry::Never), counters(1, 0), &POLICY, 0.5);
        assert_eq!(settled.verdict, Verdict::Fail(error()));
    }

    #[test]
    fn failure_with_explicit_delay_is_retried_after_that_delay() {
        let delay = Duration::from_secs(77);
        let settled = settle(Outcome::Failed(error(), Retry::After(delay)), counters(1, 0), &POLICY, 0.5);
        assert!(matches!(settled.verdict, Verdict::Requeue { due: Due::In(d), .. } if d == delay));
    }

    #[test]
    fn crash_suspension_release_pause_and_divergence_consume_no_attempt() {
        let outcomes = [
            Outcome::Crashed { progressed: false, blame: Blame::Shared },
            Outcome::Asleep(Timestamp::from_unix_micros(1)),
            Outcome::Released,
            Outcome::Paused,
            Outcome::Diverged(error()),
        ];
        for outcome in outcomes {
            assert_eq!(settle(outcome, counters(2, 0), &POLICY, 0.5).counters.attempt, 1);
        }
    }

    #[test]
    fn fifth_consecutive_lone_crash_blocks_run_unless_it_progressed() {
        let settled = settle(crashed(Blame::Alone), counters(1, 4), &POLICY, 0.5);
        assert!(matches!(settled.verdict, Verdict::Block(Failure { kind: FailureKind::Crash, .. })));
        let progressed = Outcome::Crashed { progressed: true, blame: Blame::Alone };
        let settled = settle(progressed, counters(1, 4), &POLICY, 0.5);
        assert!(matches!(settled.verdict, Verdict::Requeue { cause: Cause::Crashed, .. }));
        assert_eq!(settled.counters.crashes, SUSPECT, "the next attempt is on trial again");
    }

    fn crashed(blame: Blame) -> Outcome {
        Outcome::Crashed { progressed: false, blame }
    }

    #[test]
    fn crash_beside_other_runs_makes_suspect_but_never_blocks() {
        let crashes =
            |before, blame| settle(crashed(blame), counters(1, before), &POLICY, 0.5).counters.crashes;
        assert_eq!([0, 1, 2, 4, i32::MAX].map(|n| crashes(n, Blame::Shared)), [1, 2, 2, 4, i32::MAX]);
        assert_eq!([0, 2, 4].map(|n| crashes(n, Blame::None)), [0, 2, 4]);
        assert_eq!([2, 3].map(|n| crashes(n, Blame::Alone)), [3, 4]);
        assert_eq!([2, 4, 5].map(|n| crashes(n, Blame::NotAlone)), [3, 5, 6]);
        for (before, blame) in [Blame::Shared, Blame::BesideTrial, Blame::NotAlone]
            .into_iter()
            .flat_map(|blame| [1, 4, i32::MAX].map(|before| (before, blame)))
        {
            let settled = settle(crashed(blame), counters(1, before), &POLICY, 0.5);
            assert!(
                matches!(settled.verdict, Verdict::Requeue { cause: Cause::Crashed, .. }),
                "{before} {blame:?}"
            );
        }
    }

    #[test]
    fn recorded_step_excuses_crash_unless_another_run_was_on_trial() {
        let crashes = |before, blame| {
            settle(Outcome::Crashed { progressed: true, blame }, counters(1, before), &POLICY, 0.5)
                .counters
                .crashes
        };
        assert_eq!([0, 1, 4].map(|n| crashes(n, Blame::Shared)), [1, 1, 1]);
        assert_eq!([0, 1, 2].map(|n| crashes(n, Blame::BesideTrial)), [1, 2, 2]);
        assert_eq!([2, 4].map(|n| crashes(n, Blame::None)), [0, 0]);
        assert_eq!(crashes(4, Blame::BesideTrial), 4, "it is still a suspect");
    }

    #[test]
    fn failure_or_sleep_resets_crash_count_and_release_keeps_it() {
        for outcome in
            [Outcome::Failed(error(), Retry::Policy), Outcome::Asleep(Timestamp::from_unix_micros(1))]
        {
            assert_eq!(settle(outcome, counters(1, 4), &POLICY, 0.5).counters.crashes, 0);
        }
        for outcome in [Outcome::Released, Outcome::Paused, Outcome::Deferred(Timestamp::from_unix_micros(1))]
        {
            assert_eq!(settle(outcome, counters(1, 4), &POLICY, 0.5).counters.crashes, 4);
        }
    }

    #[test]
    fn first_crash_retries_immediately_and_delay_grows_with_count() {
        let blame = |crashes| if crashes < SUSPECT { Blame::Shared } else { Blame::Alone };
        let delay = |crashes| delay_of(crashed(blame(crashes)), crashes);
        assert_eq!([delay(0), delay(1), delay(2)], [0, 1, 2].map(Duration::from_secs));
    }

    fn delay_of(outcome: Outcome, crashes: i32) -> Duration {
        match settle(outcome, counters(1, crashes), &POLICY, 0.0).verdict {
            Verdict::Requeue { due: Due::In(delay), .. } => delay,
            verdict => unreachable!("{verdict:?}"),
        }
    }

    #[test]
    fn crash_delays_run_unless_it_progressed_waited_or_is_blameless() {
        let at_once = [
            (Outcome::Crashed { progressed: true, blame: Blame::Alone }, 4),
            (crashed(Blame::None), 4),
            (crashed(Blame::BesideTrial), 2),
            (crashed(Blame::BesideTrial), 0),
        ];
        for (outcome, crashes) in at_once {
            assert_eq!(delay_of(outcome.clone(), crashes), Duration::ZERO, "{outcome:?}, {crashes}");
        }
        let waits = [(Blame::BesideTrial, 1, 1), (Blame::Shared, 2, 1), (Blame::Alone, 3, 4)];
        for (blame, crashes, secs) in waits {
            assert_eq!(delay_of(crashed(blame), crashes), Duration::from_secs(secs), "{blame:?}, {crashes}");
        }
    }

    #[test]
    fn failure_of_blocked_run_states_crash_and_trial_counts() {
        let Verdict::Block(failure) = settle(crashed(Blame::Alone), counters(1, 4), &POLICY, 0.5).verdict
        else {
            unreachable!("it died the fifth time")
        };
        for words in ["5 times in a row", "the last 3 times during trials of this run"] {
            assert!(failure.message.contains(words), "{failure}");
        }
    }
}
