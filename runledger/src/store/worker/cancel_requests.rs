//! Carries out the cancel requests that others stored.

use std::time::{Duration, Instant};

use sqlx::PgConnection;
use uuid::Uuid;

use super::set_aside::SetAside;
use crate::store::error::spares_others;
use crate::store::locks::{IfLocked, free, limit_beyond};
use crate::store::operator::cancel::below::Walk;
use crate::store::operator::cancel::{Budget, By, Cancelled, Found, cancel_if};
use crate::store::sql;
use crate::store::write::write;

/// The result of cancelling within a budget.
#[derive(Debug)]
pub(crate) struct CarriedOut {
    /// False if there may be more to do at once.
    pub(crate) is_done: bool,
    /// The parents to wake afterwards: other transactions keep them locked.
    pub(crate) to_wake: Vec<Uuid>,
}

/// Carries out the cancel requests that others stored. Each call continues where the last one
/// stopped.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// The walks through the descendants of runs with requests. The newest is next, so a long walk
    /// does not delay shorter ones.
    walks: Vec<Walk>,
    aside: SetAside,
    /// The parents to wake. If a call fails, the next call returns them.
    to_wake: Vec<Uuid>,
}

impl Requests {
    /// Finishes cancels that others began: requests that no worker carries out, and descendants of
    /// ended runs. Drops the requests that are done. Leaves out runs that another transaction keeps
    /// locked, and sets aside runs whose cancel fails.
    pub(crate) async fn carry_out(
        &mut self,
        connection: &mut PgConnection,
        at_once: i64,
        budget: Duration,
    ) -> Result<CarriedOut, sqlx::Error> {
        let mut budget = Budget(Some(budget));
        let is_done = Box::pin(self.carry_out_within(connection, at_once, &mut budget)).await?;
        Ok(CarriedOut { is_done, to_wake: std::mem::take(&mut self.to_wake) })
    }

    async fn carry_out_within(
        &mut self,
        connection: &mut PgConnection,
        at_once: i64,
        budget: &mut Budget,
    ) -> Result<bool, sqlx::Error> {
        let n_cancelled = self.cancel_left(connection, at_once, budget).await?;
        let mut n_forgotten = 0;
        while let Some(walk) = self.walks.last_mut() {
            if !walk.go_on(connection, budget, &mut self.to_wake).await? {
                return Ok(false);
            }
            let (failure, runs) = (walk.failure(), walk.runs().to_vec());
            self.walks.pop();
            match (failure, runs.as_slice()) {
                (None, runs) => {
                    let forgotten = Box::pin(self.aside.spare(connection, runs, forget)).await?;
                    self.aside.add_locked(runs, &forgotten);
                    n_forgotten += forgotten.done.len();
                }
                (Some(error), [run_id]) => {
                    tracing::warn!(%error, %run_id, "not everything below a run is cancelled; a worker tries again");
                    self.aside.add(*run_id, Duration::ZERO);
                }
                // One by one, so that only a run with a failing descendant keeps its request.
                (Some(_), runs) => {
                    self.walks.extend(runs.iter().map(|run_id| Walk::below(vec![*run_id], None)));
                }
            }
        }
        Ok(n_cancelled == 0 && n_forgotten == 0 && !budget.is_spent())
    }

    /// Cancels the runs that have requests, and begins a walk through their descendants and those
    /// of ended runs. Returns how many it cancelled.
    async fn cancel_left(
        &mut self,
        connection: &mut PgConnection,
        at_once: i64,
        budget: &mut Budget,
    ) -> Result<usize, sqlx::Error> {
        let mut n_cancelled = 0;
        let mut search = self.aside.search();
        search.leave_out(self.walks.iter().flat_map(Walk::runs).copied());
        loop {
            let limit = limit_beyond(at_once, search.left_out());
            let query = sqlx::query_as(sql::CANCEL_LEFT).bind(limit).bind(search.left_out());
            let left: Vec<(Uuid, Option<String>, bool)> = query.fetch_all(&mut *connection).await?;
            search.leave_out(left.iter().map(|(run_id, ..)| *run_id));
            let (over, going_on): (Vec<_>, Vec<_>) = left.into_iter().partition(|(.., is_over)| *is_over);
            let mut walked: Vec<Uuid> = over.into_iter().map(|(run_id, ..)| run_id).collect();
            let ids: Vec<Uuid> = going_on.iter().map(|(run_id, ..)| *run_id).collect();
            let free = free(connection, &ids).await?;
            for (run_id, reason, _) in going_on.iter().filter(|(run_id, ..)| free.contains(run_id)) {
                if budget.is_spent() {
                    break;
                }
                let began = Instant::now();
                let cancel = cancel_if(connection, *run_id, reason.as_deref(), By::Engine, IfLocked::Skip);
                match budget.spend(cancel).await {
                    Ok(Found::Free { cancelled, to_wake: parent }) => {
                        walked.push(*run_id);
                        self.to_wake.extend(parent);
                        if cancelled != Cancelled::Requested {
                            n_cancelled += 1;
                            continue;
                        }
                    }
                    Ok(Found::LockedOrMissing) => {}
                    Err(error) if spares_others(&error) => {
                        tracing::warn!(%error, %run_id, "a run is not cancelled yet; a worker tries again");
                    }
                    Err(error) => {
                        self.aside.add_unless_alive(*run_id, &error);
                        return Err(error);
                    }
                }
                self.aside.add(*run_id, began.elapsed());
            }
            if !walked.is_empty() {
                self.walks.push(Walk::below(walked, None));
            }
            if budget.is_spent() || (going_on.is_empty() && !search.retries()) {
                return Ok(n_cancelled);
            }
        }
    }
}

/// Drops the requests of runs that have ended or do not exist, and have no live descendants.
/// Returns these runs.
async fn forget(connection: &mut PgConnection, runs: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    write(sql::CANCEL_FORGET, |forget| sqlx::query_scalar(forget).bind(runs).fetch_all(connection)).await
}
