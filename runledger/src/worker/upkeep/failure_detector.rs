//! What a worker remembers from one heartbeat to the next, and what the silence of other workers proves by it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio::time::Instant;

use crate::connection::outage::Outage;
use crate::model::timestamp::Timestamp;
use crate::store::worker::{HeartbeatReply, Silence};
use crate::worker::timings::Timings;

/// A database clock that moves by this much more than our own has jumped.
pub(crate) const CLOCK_JUMP: Duration = Duration::from_secs(5);

/// How many late heartbeats are remembered.
const MOST_HELD_UP: usize = 64;

/// What is remembered from one pulse to the next.
#[derive(Default)]
pub(crate) struct FailureDetector {
    pub(crate) connection: Option<PoolConnection<Postgres>>,
    incarnation: Option<String>,
    /// When a pulse first came from this incarnation.
    known_since: Option<Instant>,
    clocks: Option<(Instant, Timestamp)>,
    /// Until then silence proves nothing: the clock has jumped, or the server is new.
    trust_leases_from: Option<Instant>,
    /// When heartbeats of ours were carried out late, and by how much: what held them up, a table that somebody had locked, has held up those of others.
    held_up: VecDeque<(Instant, Duration)>,
    /// When silent workers become suspect, and who they are.
    pub(crate) suspicion: Option<(Instant, Vec<i64>)>,
    /// The workers that could not be examined, and until when maintenance leaves them out: it must not spend all its time waiting for a locked row.
    pub(crate) left_out: BTreeMap<i64, Instant>,
    pub(crate) chores: Chores,
    /// When the nets are to be cast because workers were buried.
    pub(crate) nets: PlannedNets,
    /// What operators have said of jobs, as pulses tell it, when it was read last. What a worker reads before its first pulse may be of before.
    pub(crate) tunings: Option<String>,
    /// The same of what they have configured.
    pub(crate) configs: Option<String>,
    /// The outages, by the name of the failing operation.
    pub(crate) outages: BTreeMap<&'static str, Outage>,
}

/// The nets may take a twentieth of the time. The pause between them is at most this long, or twice as long as they take.
const SHARE: u32 = 20;
const FURTHEST_APART: Duration = Duration::from_secs(30);

/// How long it is from the nets, which took so long, to the next ones. None if they failed: a wait for a server that
/// does not answer costs the server nothing.
pub(crate) fn until_next_net(took: Option<Duration>, lease: Duration) -> Duration {
    let took = took.unwrap_or_default();
    lease.max((took * SHARE).min(FURTHEST_APART.max(took * 2)))
}

/// The instants by which the nets are to be cast, in their order: one for each burial.
#[derive(Debug, Default)]
pub(crate) struct PlannedNets(VecDeque<Instant>);

impl PlannedNets {
    pub(crate) fn plan(&mut self, due: Instant) {
        self.0.push_back(due);
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.front().copied()
    }

    /// Notes that they are cast now.
    pub(crate) fn cast(&mut self, now: Instant) {
        self.0.retain(|due| *due > now);
    }
}

/// Work that waits until there is nothing more urgent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chores {
    /// Waits have come to their limit.
    pub(crate) timers: bool,
    /// Deadlines are over.
    pub(crate) deadlines: bool,
    /// Cancels of others are left to be carried out.
    pub(crate) cancels: bool,
}

impl Chores {
    pub(crate) fn any(self) -> bool {
        self.timers || self.deadlines || self.cancels
    }
}

/// What a pulse says of the server.
pub(crate) struct Change {
    /// Its clock shows less than before.
    pub(crate) jumped_back: bool,
    /// It is another one than at the last pulse.
    pub(crate) is_new_server: bool,
}

impl FailureDetector {
    /// Notes a pulse, and says what has changed since the last one.
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

    /// Notes when a silent worker becomes suspect. The last of several decides: all are examined then.
    pub(crate) fn suspect(&mut self, worker_id: i64, at: Instant) {
        let (latest, silent) = self.suspicion.get_or_insert((at, Vec::new()));
        *latest = (*latest).max(at);
        silent.push(worker_id);
    }

    /// Whether the silence of a worker is longer than a lease, and its own: without the time for which heartbeats of ours were held up in it.
    pub(crate) fn is_dead(&self, silence: &Silence, timings: &Timings) -> bool {
        let since = self.held_up.iter().filter(|(at, _)| at.elapsed().as_secs_f64() < silence.seconds);
        let held_up: Duration = since.map(|(_, late)| *late).sum();
        silence.seconds - held_up.as_secs_f64() > timings.lease.as_secs_f64() && self.trusts(silence, timings)
    }

    /// Whether silence is not that of a server which was away, or does not answer us either: the server has been there since the worker took its lock, or
    /// since this process came to know it, a lease ago.
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
            tunings: String::new(),
            configs: String::new(),
            now,
            heard: Instant::now(),
            gap,
        }
    }

    fn silence(length: Duration) -> Silence {
        Silence { seconds: length.as_secs_f64(), lock_is_evidence: true, incarnation: "1".to_owned() }
    }

    /// What a worker has whose heartbeats are acknowledged after these times, and were carried out after these.
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
    async fn the_silence_of_others_proves_nothing_while_nothing_is_heard_of_the_server() {
        let silent = silence(TIMINGS.lease + TIMINGS.heartbeat);
        assert!(!FailureDetector::default().is_dead(&silent, &TIMINGS));
        let detector = heard([BEAT, BEAT]).await;
        assert!(detector.is_dead(&silent, &TIMINGS));
        tokio::time::advance(TIMINGS.lease).await;
        assert!(!detector.is_dead(&silent, &TIMINGS));
    }

    #[tokio::test(start_paused = true)]
    async fn what_held_up_our_own_heartbeat_is_no_silence_of_others() {
        let held_up = 2 * TIMINGS.lease;
        let detector = heard([BEAT, (held_up, held_up), BEAT]).await;
        let of_the_living = silence(held_up + TIMINGS.heartbeat);
        assert!(!detector.is_dead(&of_the_living, &TIMINGS), "whoever lives was held up as well");
        assert!(detector.is_dead(&silence(held_up + TIMINGS.lease), &TIMINGS), "this one was silent before");
    }

    #[tokio::test(start_paused = true)]
    async fn a_heartbeat_that_is_not_acknowledged_is_none_that_was_held_up() {
        let unacknowledged = (2 * TIMINGS.suspect, TIMINGS.heartbeat);
        let detector = heard(std::iter::repeat_n(unacknowledged, 9)).await;
        assert!(detector.is_dead(&silence(TIMINGS.lease + TIMINGS.heartbeat), &TIMINGS));
    }

    #[test]
    fn nets_that_take_long_are_further_apart_and_those_that_fail_are_not() {
        let until = |millis: u64| until_next_net(Some(Duration::from_millis(millis)), Duration::from_secs(4));
        let seconds = [0, 100, 1_000, 9_000, 60_000].map(|millis| until(millis).as_secs());
        assert_eq!(seconds, [4, 4, 20, 30, 120]);
        assert_eq!(until_next_net(None, Duration::from_secs(4)), Duration::from_secs(4));
    }

    #[test]
    fn each_burial_has_its_own_look_at_lost_wake_ups() {
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
