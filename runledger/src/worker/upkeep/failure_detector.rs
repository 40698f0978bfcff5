//! Decides from heartbeat replies whether the silence of another worker proves its death.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio::time::Instant;

use crate::connection::outage::Outage;
use crate::model::timestamp::Timestamp;
use crate::store::worker::{HeartbeatReply, Silence};
use crate::worker::timings::Timings;

/// If the database clock moves by this much more than the local one, it has jumped.
pub(crate) const CLOCK_JUMP: Duration = Duration::from_secs(5);

/// Safety sweeps run at most this long after a worker was marked dead. The worker may have settled
/// a run and died before it woke the parent. `stranded.sql` finds a parent that has waited this
/// long.
pub(crate) const AFTER_BURIAL: Duration = Duration::from_secs(5);

/// How many late heartbeats are remembered.
const MOST_HELD_UP: usize = 64;

/// The state that a worker keeps between heartbeat replies.
#[derive(Default)]
pub(crate) struct FailureDetector {
    pub(crate) connection: Option<PoolConnection<Postgres>>,
    incarnation: Option<String>,
    /// When the first heartbeat reply came from this incarnation of the server.
    known_since: Option<Instant>,
    clocks: Option<(Instant, Timestamp)>,
    /// Until then silence proves nothing, because the clock jumped or the server is new.
    trust_leases_from: Option<Instant>,
    /// When own heartbeats were executed late, and by how much. The cause, such as a locked table,
    /// has also delayed the heartbeats of other workers.
    held_up: VecDeque<(Instant, Duration)>,
    /// When the silent workers become suspect, and their ids.
    pub(crate) suspicion: Option<(Instant, Vec<i64>)>,
    /// Workers that could not be examined, and until when maintenance skips them. Otherwise it
    /// would spend all its time waiting for a locked row.
    pub(crate) left_out: BTreeMap<i64, Instant>,
    pub(crate) chores: Chores,
    /// When the next safety sweeps are due because workers were marked dead.
    pub(crate) nets: PlannedNets,
    /// The hash of the overrides that the worker read last, from a heartbeat reply. `None`
    /// before the first reply: overrides that the worker read earlier may be older.
    pub(crate) overrides: Option<String>,
    /// Likewise for configurations.
    pub(crate) configs: Option<String>,
    /// The outages, by the name of the failing operation.
    pub(crate) outages: BTreeMap<&'static str, Outage>,
}

/// Safety sweeps may take 1/20 of the time. The pause between them is at most 30 s, or twice their
/// duration if that is longer.
const SHARE: u32 = 20;
const FURTHEST_APART: Duration = Duration::from_secs(30);

/// The pause until the next safety sweeps, after sweeps of this duration. `None` if they failed:
/// waiting for a server that does not answer costs the server nothing.
pub(crate) fn until_next_net(took: Option<Duration>, lease: Duration) -> Duration {
    let took = took.unwrap_or_default();
    lease.max((took * SHARE).min(FURTHEST_APART.max(took * 2)))
}

/// When safety sweeps are due, in order: one instant per worker marked dead.
#[derive(Debug, Default)]
pub(crate) struct PlannedNets(VecDeque<Instant>);

impl PlannedNets {
    pub(crate) fn plan(&mut self, due: Instant) {
        self.0.push_back(due);
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.front().copied()
    }

    /// Notes that the sweeps run now.
    pub(crate) fn cast(&mut self, now: Instant) {
        self.0.retain(|due| *due > now);
    }
}

/// Work that waits until nothing is more urgent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chores {
    /// Pause requests remain to be carried out.
    pub(crate) pauses: bool,
    /// Waits have reached their limit.
    pub(crate) timers: bool,
    /// Deadlines have passed.
    pub(crate) deadlines: bool,
    /// Cancel requests remain to be carried out.
    pub(crate) cancels: bool,
    /// Runs of dead workers remain to be recovered.
    pub(crate) orphans: bool,
    /// Runs whose wake-up was lost remain to be woken.
    pub(crate) stranded: bool,
}

impl Chores {
    pub(crate) fn any(self) -> bool {
        self.pauses || self.timers || self.deadlines || self.cancels || self.orphans || self.stranded
    }
}

/// The changes of the server since the last heartbeat reply.
pub(crate) struct Change {
    /// Its clock moved back.
    pub(crate) jumped_back: bool,
    /// It is another incarnation.
    pub(crate) is_new_server: bool,
}

impl FailureDetector {
    /// Plans the chores that a dead worker may have left.
    pub(crate) fn expect_leftovers(&mut self) {
        self.chores.orphans = true;
        // Some of its runs may have cancel requests.
        self.chores.cancels = true;
        self.nets.plan(Instant::now() + AFTER_BURIAL);
    }

    /// Applies a heartbeat reply, and returns the changes since the last one.
    pub(crate) fn remember(&mut self, reply: &HeartbeatReply, timings: &Timings) -> Change {
        let now = reply.heard;
        let jumped_back = self.clocks.is_some_and(|(_, db_then)| db_then.since(reply.now) > CLOCK_JUMP);
        let jumped = self.clocks.is_some_and(|(then, db_then)| {
            let (ours, theirs) = (now.duration_since(then), reply.now.since(db_then));
            theirs > ours + CLOCK_JUMP
        });
        let is_new_server =
            self.incarnation.as_ref().is_some_and(|incarnation| *incarnation != reply.incarnation);
        if reply.gap > timings.suspect {
            tracing::warn!(
                gap = ?reply.gap,
                "a heartbeat of this worker was late: so much of the silence of others proves nothing"
            );
            self.held_up.push_back((now, reply.gap.saturating_sub(timings.heartbeat)));
            if self.held_up.len() > MOST_HELD_UP {
                self.held_up.pop_front();
            }
        }
        if jumped || is_new_server {
            tracing::warn!(
                jumped,
                is_new_server,
                "silence of other workers proves nothing for the length of a lease"
            );
            self.trust_leases_from = Some(now + timings.lease);
        }
        self.clocks = Some((now, reply.now));
        if self.incarnation.as_ref() != Some(&reply.incarnation) {
            self.incarnation = Some(reply.incarnation.clone());
            self.known_since = Some(now);
        }
        Change { jumped_back, is_new_server }
    }

    /// Notes when a silent worker becomes suspect. All silent workers are examined at the latest of
    /// these instants.
    pub(crate) fn suspect(&mut self, worker_id: i64, at: Instant) {
        let (latest, silent) = self.suspicion.get_or_insert((at, Vec::new()));
        *latest = (*latest).max(at);
        silent.push(worker_id);
    }

    /// Whether a worker has been silent for longer than a lease. Subtracts the time by which own
    /// heartbeats were late in that period.
    pub(crate) fn is_dead(&self, silence: &Silence, timings: &Timings) -> bool {
        let since = self.held_up.iter().filter(|(at, _)| at.elapsed().as_secs_f64() < silence.seconds);
        let held_up: Duration = since.map(|(_, late)| *late).sum();
        silence.seconds - held_up.as_secs_f64() > timings.lease.as_secs_f64() && self.trusts(silence, timings)
    }

    /// Whether silence is evidence, and not the effect of an unavailable server. The server must
    /// have been there since the worker took its lock, or known to this process for at least a
    /// lease.
    fn trusts(&self, silence: &Silence, timings: &Timings) -> bool {
        let known = self.known_since.is_some_and(|since| since.elapsed() >= timings.lease)
            && self.incarnation.as_ref() == Some(&silence.incarnation);
        (known || silence.lock_is_evidence)
            && self.clocks.is_some_and(|(then, _)| then.elapsed() <= timings.suspect)
            && self.trust_leases_from.is_none_or(|from| Instant::now() >= from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMINGS: Timings = Timings::FAST;

    fn reply(now: Timestamp, gap: Duration) -> HeartbeatReply {
        HeartbeatReply {
            alive: true,
            draining: false,
            cancels: Vec::new(),
            cancels_left: false,
            pauses: Vec::new(),
            pauses_left: false,
            silent: vec![2],
            incarnation: "1".to_owned(),
            timers_due: false,
            deadlines_due: false,
            overrides: String::new(),
            configs: String::new(),
            now,
            heard: Instant::now(),
            gap,
        }
    }

    fn silence(length: Duration) -> Silence {
        Silence { seconds: length.as_secs_f64(), lock_is_evidence: true, incarnation: "1".to_owned() }
    }

    /// A detector after heartbeats that were acknowledged and executed after these times.
    async fn heard(beats: impl IntoIterator<Item = (Duration, Duration)>) -> FailureDetector {
        let (began, mut detector) = (Instant::now(), FailureDetector::default());
        for (after, gap) in beats {
            tokio::time::advance(after).await;
            detector.remember(&reply(Timestamp::from_unix_micros(0).plus(began.elapsed()), gap), &TIMINGS);
        }
        detector
    }

    const BEAT: (Duration, Duration) = (TIMINGS.heartbeat, TIMINGS.heartbeat);

    #[tokio::test(start_paused = true)]
    async fn silent_worker_is_not_declared_dead_without_recent_heartbeat_replies() {
        let silent = silence(TIMINGS.lease + TIMINGS.heartbeat);
        assert!(!FailureDetector::default().is_dead(&silent, &TIMINGS));
        let detector = heard([BEAT, BEAT]).await;
        assert!(detector.is_dead(&silent, &TIMINGS));
        tokio::time::advance(TIMINGS.lease).await;
        assert!(!detector.is_dead(&silent, &TIMINGS));
    }

    #[tokio::test(start_paused = true)]
    async fn delay_of_own_heartbeat_is_subtracted_from_silence_of_others() {
        let held_up = 2 * TIMINGS.lease;
        let detector = heard([BEAT, (held_up, held_up), BEAT]).await;
        let of_the_living = silence(held_up + TIMINGS.heartbeat);
        assert!(!detector.is_dead(&of_the_living, &TIMINGS), "whoever lives was held up as well");
        assert!(detector.is_dead(&silence(held_up + TIMINGS.lease), &TIMINGS), "this one was silent before");
    }

    #[tokio::test(start_paused = true)]
    async fn unacknowledged_heartbeat_does_not_count_as_delayed() {
        let unacknowledged = (2 * TIMINGS.suspect, TIMINGS.heartbeat);
        let detector = heard(std::iter::repeat_n(unacknowledged, 9)).await;
        assert!(detector.is_dead(&silence(TIMINGS.lease + TIMINGS.heartbeat), &TIMINGS));
    }

    #[test]
    fn slow_sweeps_run_further_apart_and_failed_ones_do_not() {
        let until = |millis: u64| until_next_net(Some(Duration::from_millis(millis)), Duration::from_secs(4));
        let seconds = [0, 100, 1_000, 9_000, 60_000].map(|millis| until(millis).as_secs());
        assert_eq!(seconds, [4, 4, 20, 30, 120]);
        assert_eq!(until_next_net(None, Duration::from_secs(4)), Duration::from_secs(4));
    }

    #[test]
    fn each_dead_worker_gets_its_own_planned_sweep() {
        let began = Instant::now();
        let mut nets = PlannedNets::default();
        for seconds in [5, 6, 10] {
            nets.plan(began + Duration::from_secs(seconds));
        }
        nets.cast(began + Duration::from_secs(5));
        assert_eq!(nets.next(), Some(began + Duration::from_secs(6)));
        nets.cast(began + Duration::from_secs(10));
        assert_eq!(nets.next(), None);
    }
}
