//! Decides when the kit gives up waiting for a run, and explains why.

use std::fmt;
use std::time::{Duration, Instant};

use crate::store::testing::Look;

/// How often the kit skips time or sends a signal while the run under test does not progress. Other
/// runs, such as its children, may sleep in an endless loop.
const MOST_WITHOUT_PROGRESS: u32 = 1_000;

/// How often the kit skips time or sends a signal in all. A run may sleep in an endless loop.
const MOST: u32 = 5_000;

/// The run under test may stand still for this many times `stall_limit` while other runs progress.
/// Those runs may never end.
const BESIDE_OTHERS: u32 = 10;

/// Measures how long nothing has happened, and counts skips of time and signals.
#[derive(Default)]
pub(super) struct Standstill {
    n_events: Option<i64>,
    since: Option<Instant>,
    n_own_events: Option<i64>,
    /// When the run under test last progressed.
    own_since: Option<Instant>,
    /// Skips and signals since the last event of the run under test.
    wakeups: u32,
    all_nudges: u32,
}

/// Why the kit stops waiting for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivenUp {
    /// Nothing has happened for this long.
    StallLimit(Duration),
    /// The run under test has not progressed for this long, while other runs have.
    BesideOthers(Duration),
    /// The kit skipped time too often while the run under test did not progress.
    WithoutProgress,
    /// The kit skipped time too often.
    Nudges,
}

impl Standstill {
    pub(super) fn see(&mut self, look: &Look) {
        if self.n_events.replace(look.n_events) != Some(look.n_events) {
            self.since = Some(Instant::now());
        }
        if self.n_own_events.replace(look.n_own_events) != Some(look.n_own_events) {
            self.own_since = Some(Instant::now());
            self.wakeups = 0;
        }
    }

    /// Counts a skip of time, or a sent signal.
    pub(super) fn nudged(&mut self) {
        self.wakeups += 1;
        self.all_nudges += 1;
        self.since = Some(Instant::now());
        self.own_since = self.since;
    }

    /// Counts bodies that run as activity.
    pub(super) fn bodies_run(&mut self, look: &Look) {
        self.since = Some(Instant::now());
        if look.state() == "running" {
            self.own_since = self.since;
        }
    }

    /// Returns the limit that is reached, if any.
    pub(super) fn limit(&self, look: &Look, stall_limit: Duration) -> Option<GivenUp> {
        let beside_others = stall_limit.saturating_mul(BESIDE_OTHERS);
        if self.wakeups >= MOST_WITHOUT_PROGRESS {
            Some(GivenUp::WithoutProgress)
        } else if self.all_nudges >= MOST {
            Some(GivenUp::Nudges)
        } else if lasts(self.since) > stall_limit && !is_due_within(look, stall_limit) {
            Some(GivenUp::StallLimit(stall_limit))
        } else if lasts(self.own_since) > beside_others {
            Some(GivenUp::BesideOthers(beside_others))
        } else {
            None
        }
    }
}

fn lasts(since: Option<Instant>) -> Duration {
    since.map_or(Duration::ZERO, |since| since.elapsed())
}

/// Whether a run becomes due within `stall_limit` without further action. A run that was locked
/// when it was suspended is checked again after 30 s.
fn is_due_within(look: &Look, stall_limit: Duration) -> bool {
    look.next.is_some_and(|next| next <= stall_limit)
}

/// Whether the run has ended or is blocked.
pub(super) fn is_over(look: &Look) -> bool {
    matches!(look.state(), "completed" | "failed" | "cancelled" | "blocked")
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StallLimit(stall_limit) => {
                write!(f, "nothing has happened for {stall_limit:?}, the limit of `Testing::stall_limit`")
            }
            Self::BesideOthers(most) => {
                write!(
                    f,
                    "the run has not progressed for {most:?}, {BESIDE_OTHERS} times `Testing::stall_limit`, while other runs were at work"
                )
            }
            Self::WithoutProgress => {
                write!(
                    f,
                    "the test has skipped time or sent signals {MOST_WITHOUT_PROGRESS} times, and the run has not progressed"
                )
            }
            Self::Nudges => write!(f, "the test has skipped time or sent signals {MOST} times"),
        }
    }
}

impl GivenUp {
    /// Why runs do not continue, as the end of a sentence.
    pub(super) fn why(self, look: &Look) -> String {
        let why = match self {
            Self::StallLimit(_) | Self::BesideOthers(_) => why(look),
            // A skip of time makes runs due for a moment, so `unclaimed` would mislead.
            Self::WithoutProgress | Self::Nudges => told(&obstacles(look)),
        };
        match (self, look.next) {
            (Self::StallLimit(_), Some(next)) if why.is_empty() => format!(
                ": the next instant is {next:?} away; skip it with `test.skip_time()`, or `Testing::auto_advance_time`"
            ),
            (Self::StallLimit(_), None) if why.is_empty() => {
                ": nobody will wake it: is its job, and that of each of its children, named in `Testing::with`?".to_owned()
            }
            _ => why,
        }
    }
}

/// Why runs do not continue, apart from waiting for an instant, as the end of a sentence.
pub(super) fn why(look: &Look) -> String {
    let mut all = obstacles(look);
    all.extend(unclaimed(look));
    told(&all)
}

fn told(obstacles: &[String]) -> String {
    if obstacles.is_empty() { String::new() } else { format!(": {}", obstacles.join(", and ")) }
}

/// Why due runs of served jobs may not be claimed. `None` if no such run is due.
pub(super) fn unclaimed(look: &Look) -> Option<String> {
    let due = match look.n_due {
        0 => return None,
        1 => "1 due run is".to_owned(),
        n => format!("{n} due runs are"),
    };
    Some(format!("{due} not claimed; has a resource no permit left?"))
}

/// What runs wait for, apart from an instant and a claim.
fn obstacles(look: &Look) -> Vec<String> {
    let mut obstacles = Vec::new();
    if !look.unserved.is_empty() {
        obstacles.push(format!(
            "no worker of the test serves {}; add it to the jobs of `Testing::with`",
            quoted(look.unserved.iter())
        ));
    }
    for (job, queue) in &look.unserved_queues {
        obstacles.push(format!(
            "no worker of the test serves `{job}` in queue `{queue}`; name every queue of the test in `Testing::queues`"
        ));
    }
    for (job, reason) in &look.disabled {
        obstacles.push(format!("job `{job}` is disabled: {reason}; enable it with `Db::clear_overrides`"));
    }
    for (job, state) in &look.parked {
        obstacles.push(format!("a run of `{job}` is {state}"));
    }
    if !look.waits.is_empty() {
        obstacles.push(format!(
            "signal {} is waited for; send it with `run.signal`, or name it in `Testing::signals`",
            quoted(look.waits.iter().map(|(_, name)| name))
        ));
    }
    if !look.gates.is_empty() {
        obstacles.push(format!(
            "nobody has decided gate {}; call `GateHandle::complete` or `GateHandle::fail`",
            quoted(look.gates.iter())
        ));
    }
    obstacles
}

fn quoted<'n>(names: impl Iterator<Item = &'n String>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const STALL_LIMIT: Duration = Duration::from_secs(3600);

    /// Skips time until a limit is reached. The run under test progresses before each skip, or
    /// never.
    fn nudged(moves: bool) -> (u32, GivenUp) {
        let mut standstill = Standstill::default();
        (1..)
            .find_map(|n| {
                let n_own_events = if moves { i64::from(n) } else { 0 };
                let look = Look { n_events: i64::from(n), n_own_events, ..Look::default() };
                standstill.see(&look);
                standstill.nudged();
                Some((n, standstill.limit(&look, STALL_LIMIT)?))
            })
            .unwrap()
    }

    #[test]
    fn endless_time_skips_are_given_up_with_or_without_progress() {
        assert_eq!(nudged(true), (5_000, GivenUp::Nudges));
        assert_eq!(nudged(false), (1_000, GivenUp::WithoutProgress));
    }

    #[test]
    fn skip_limit_message_names_awaited_signal_but_no_permit() {
        let waits = vec![(Uuid::nil(), "approval".to_owned())];
        let look = Look { waits, n_due: 1, ..Look::default() };
        let why = GivenUp::Nudges.why(&look);
        assert!(why.contains("signal `approval` is waited for") && !why.contains("permit"), "{why}");
        assert!(GivenUp::StallLimit(STALL_LIMIT).why(&look).contains("1 due run is not claimed"));
    }
}
