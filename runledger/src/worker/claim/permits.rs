//! The claimer's state for runs that need a permit of a resource: when to scan their lanes, where
//! to continue, and whether they come first.
//!
//! These runs have their own lanes, so that no claim reads runs without a free permit. There may be
//! a lane for every account of a provider. A scan therefore reads one page of lanes, and the next
//! scan continues after it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::claim_cursors::{BatchLimit, ClaimState, FAR};
use super::claimer::Claimer;
use crate::store::worker::claim::{
    Claimed, Reading, ResourceFirst, ResourceLane, claim_with_permit, resource_lanes, wake_sleeping,
};

/// How many lanes one scan reads. That takes a few milliseconds.
pub(crate) const LANES: usize = 256;

/// Scans that find no claimable run may take 1/20 of the time, or 1/4 after a permit became free in
/// this process. Many lanes may have no free permit, and other runs must not wait for every scan.
const SHARE: u32 = 20;
const SHARE_OF_FREED: u32 = 4;

/// After a failure, scans pause for 20 times its duration, of which at most this much counts.
const LONGEST_FAILURE: Duration = Duration::from_secs(1);

/// Set when a run with a permit has ended: another run may get the permit.
#[derive(Debug, Default)]
pub(crate) struct Freed(AtomicBool);

impl Freed {
    /// Notes that a permit is free.
    pub(crate) fn note(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns whether a permit became free since the last call.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }
}

pub(crate) struct Permits {
    /// The batch limit of claims with a permit. Other claims succeed while these fail.
    batch: BatchLimit,
    /// How the next claim reads the content of its runs.
    pub(crate) reading: Reading,
    /// The next scan starts after this lane.
    after: ResourceLane,
    /// When the last scan without a claimable run began, and how long it took.
    in_vain: Option<(Instant, Duration)>,
    /// The end of the pause after a failed scan or claim.
    paused_until: Option<Instant>,
    /// How many times scans must still reach the last lane until every lane was read after the
    /// request.
    passes: u8,
    /// Whether a permit became free in this process since the last full pass. If so, the worker
    /// notifies other workers about runs that it does not serve.
    has_freed: bool,
    /// Whether the next claim tries these runs first.
    pub(crate) are_first: bool,
    /// The lowest priority of the last claim with permits, if that claim was full. Other runs with
    /// a lower priority wait.
    pub(crate) floor: Option<i16>,
}

impl Default for Permits {
    fn default() -> Self {
        Self {
            batch: BatchLimit::default(),
            reading: Reading::AtOnce,
            after: ResourceLane::before_all(),
            in_vain: None,
            paused_until: None,
            passes: 0,
            has_freed: false,
            are_first: true,
            floor: None,
        }
    }
}

impl Permits {
    /// Requests a scan of every lane.
    pub(crate) fn request(&mut self) {
        self.passes = if self.after == ResourceLane::before_all() { 1 } else { 2 };
    }

    /// Requests a scan because a permit became free in this process.
    pub(crate) fn owe_of_freed(&mut self) {
        self.has_freed = true;
        self.request();
    }

    /// Whether a scan may start now.
    pub(crate) fn are_due(&self) -> bool {
        self.due_at().is_some_and(|at| at <= Instant::now())
    }

    /// When the next scan may start. `None` if none is requested.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let share = if self.has_freed { SHARE_OF_FREED } else { SHARE };
        let affordable = self.in_vain.map_or_else(Instant::now, |(began, took)| began + took * share);
        let due = self.paused_until.map_or(affordable, |until| until.max(affordable));
        (self.passes > 0).then_some(due)
    }

    /// The lane after which the next scan starts.
    pub(crate) fn after(&self) -> &ResourceLane {
        &self.after
    }

    /// Applies the result of a scan. Returns the lanes to claim from, and the lanes of other
    /// workers that need a notification.
    pub(crate) fn apply_scan(
        &mut self,
        seen: Vec<ResourceFirst>,
        backlog: Option<i16>,
    ) -> (Vec<ResourceFirst>, Vec<ResourceLane>) {
        let is_last = seen.len() < LANES;
        match seen.last() {
            Some(last) if !is_last => self.after = last.lane.clone(),
            _ => {
                self.after = ResourceLane::before_all();
                self.passes = self.passes.saturating_sub(1);
            }
        }
        let (ours, others): (Vec<_>, Vec<_>) =
            seen.into_iter().filter(ResourceFirst::may_start).partition(|first| first.is_served);
        let others = if self.has_freed { others } else { Vec::new() };
        self.has_freed &= self.passes > 0;
        let is_urgent =
            |first: &ResourceFirst| backlog.is_none_or(|backlog| first.lane.lane.priority >= backlog);
        let n_ours = ours.len();
        let urgent: Vec<_> = ours.into_iter().filter(is_urgent).collect();
        if urgent.len() < n_ours {
            // These lanes come after the backlog of a higher priority.
            self.request();
        }
        (urgent, others.into_iter().map(|first| first.lane).collect())
    }

    /// Applies a failed scan or claim. It may have waited for a lock, as the next one may.
    fn failed(&mut self, began: Instant) {
        self.paused_until = Some(Instant::now() + began.elapsed().min(LONGEST_FAILURE) * SHARE);
    }

    /// Applies the result of a claim with this limit.
    pub(crate) fn claimed(&mut self, claimed: &[Claimed], limit: usize, began: Instant) {
        self.are_first = claimed.is_empty();
        self.paused_until = None;
        self.in_vain = claimed.is_empty().then(|| (began, began.elapsed()));
        self.floor = lowest_of_full(claimed, limit);
        if claimed.len() == limit {
            self.request();
        }
    }
}

impl Claimer {
    /// Scans lanes of runs that need a permit, and claims up to `n_free` runs that can get one.
    pub(crate) async fn claim_with_permit(
        &self,
        state: &mut ClaimState,
        n_free: usize,
    ) -> Result<(Uuid, Vec<Claimed>), sqlx::Error> {
        let (began, limit) = (Instant::now(), state.permits.batch.of(n_free));
        let taken = self.take_with_permit(state, limit, began).await;
        state.permits.batch.apply(&taken);
        match &taken {
            Ok((_, claimed)) => {
                state.permits.claimed(claimed, limit, began);
                state.was_full = claimed.len() == limit;
            }
            Err(_) => state.permits.failed(began),
        }
        taken
    }

    async fn take_with_permit(
        &self,
        state: &mut ClaimState,
        limit: usize,
        began: Instant,
    ) -> Result<(Uuid, Vec<Claimed>), sqlx::Error> {
        let jobs = self.enabled_jobs();
        let after = state.permits.after().clone();
        let connection = state.connection(&self.session).await?;
        let look = resource_lanes(connection, &self.queues, &jobs, &after, LANES);
        let seen = self.session.with_timeout(look).await?;
        for first in seen.iter().filter(|first| first.is_served && first.first.ready_at > first.now) {
            state.schedule_wake(began + first.first.ready_at.since(first.now).min(FAR));
        }
        let (ours, others) = state.permits.apply_scan(seen, state.backlog);
        if !others.is_empty() {
            let connection = state.connection(&self.session).await?;
            self.session
                .with_timeout(wake_sleeping(connection, others.iter().map(|other| &other.lane)))
                .await?;
        }
        if ours.is_empty() {
            return Ok((Uuid::nil(), Vec::new()));
        }
        let (token, reading) = (Uuid::now_v7(), state.permits.reading);
        let claimed = self
            .claimed(state, token, async |connection| {
                claim_with_permit(connection, self.worker_id, token, limit, reading, &ours).await
            })
            .await;
        state.permits.reading = Reading::after(&claimed);
        Ok((token, claimed?))
    }
}

/// The lowest priority of a full claim: more runs may be queued behind it. `None` below the limit.
pub(crate) fn lowest_of_full(claimed: &[Claimed], limit: usize) -> Option<i16> {
    let lowest = claimed.iter().map(|run| run.lane.priority).min();
    lowest.filter(|_| claimed.len() == limit)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::model::timestamp::Timestamp;
    use crate::store::worker::claim::{Lane, Position};

    fn first(resource: &str, priority: i16) -> ResourceFirst {
        let lane = Lane { queue: "default".to_owned(), job: "charge".to_owned(), priority };
        let now = Timestamp::from_unix_micros(1_000_000);
        ResourceFirst {
            lane: ResourceLane { resource: resource.to_owned(), lane },
            first: Position { ready_at: now, run_id: Uuid::nil() },
            is_served: true,
            has_permit: true,
            now,
        }
    }

    fn page(from: usize) -> Vec<ResourceFirst> {
        (from..from + LANES).map(|n| first(&format!("{n:04}"), 0)).collect()
    }

    #[test]
    fn request_during_pass_requires_another_full_pass() {
        let mut permits = Permits::default();
        assert!(!permits.are_due());
        permits.request();
        permits.apply_scan(page(0), None);
        assert!(permits.are_due(), "a full page: there are more");
        assert_eq!(permits.after().resource, format!("{:04}", LANES - 1));
        // A permit that becomes free now may belong to the first page.
        permits.request();
        permits.apply_scan(vec![first("9000", 0)], None);
        assert!(permits.are_due());
        assert_eq!(*permits.after(), ResourceLane::before_all());
        permits.apply_scan(page(0), None);
        permits.request();
        permits.apply_scan(page(LANES), None);
        permits.apply_scan(Vec::new(), None);
        permits.apply_scan(Vec::new(), None);
        assert!(!permits.are_due());
    }

    #[test]
    fn lane_below_backlog_priority_waits_and_is_scanned_again() {
        let mut permits = Permits::default();
        permits.request();
        let (ours, _) = permits.apply_scan(vec![first("a", 5), first("b", 0)], Some(3));
        assert_eq!(ours.iter().map(|it| it.lane.resource.as_str()).collect::<Vec<_>>(), ["a"]);
        assert!(permits.are_due());
        let (ours, _) = permits.apply_scan(vec![first("b", 0)], None);
        assert_eq!(ours.len(), 1);
        assert!(!permits.are_due());
    }

    #[tokio::test(start_paused = true)]
    async fn fruitless_scans_get_limited_time_share_larger_after_freed_permit() {
        let mut permits = Permits::default();
        permits.request();
        let began = Instant::now();
        tokio::time::advance(Duration::from_millis(10)).await;
        permits.apply_scan(page(0), Some(1));
        permits.claimed(&[], 5, began);
        assert_eq!(permits.due_at(), Some(began + Duration::from_millis(200)));
        assert!(!permits.are_due());
        permits.owe_of_freed();
        assert_eq!(permits.due_at(), Some(began + Duration::from_millis(40)));
        tokio::time::advance(Duration::from_millis(30)).await;
        assert!(permits.are_due());
    }

    #[tokio::test(start_paused = true)]
    async fn failed_scan_pauses_scans_although_permit_became_free() {
        let mut permits = Permits::default();
        permits.owe_of_freed();
        let began = Instant::now();
        // It has waited for a lock until the limit.
        tokio::time::advance(Duration::from_secs(10)).await;
        permits.failed(began);
        assert_eq!(permits.due_at(), Some(began + Duration::from_secs(30)));
    }

    #[test]
    fn other_workers_are_notified_only_after_permit_freed_here() {
        let of_others = || ResourceFirst { is_served: false, ..first("a", 0) };
        let busy = || ResourceFirst { has_permit: false, ..of_others() };
        let mut permits = Permits::default();
        permits.request();
        assert_eq!(permits.apply_scan(vec![of_others()], None).1, []);
        permits.owe_of_freed();
        assert_eq!(permits.apply_scan(vec![of_others(), busy()], None).1, [of_others().lane]);
        permits.request();
        assert_eq!(permits.apply_scan(vec![of_others()], None).1, []);
    }
}
