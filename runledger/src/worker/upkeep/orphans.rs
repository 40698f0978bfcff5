//! Ends attempts whose worker is gone: returns their runs to a queue, or settles them as crashed.

use std::time::{Duration, Instant};

use sqlx::PgConnection;
use uuid::Uuid;

use super::maintenance::BATCH;
use crate::engine::step::unit_random;
use crate::engine::wakes::Wakes;
use crate::model::payload::Sealer;
use crate::model::run::refusal::Settlements;
use crate::model::run::settle::{Outcome, RetryPolicy, Settlement, settle};
use crate::store::attempt::settle as settlement;
use crate::store::attempt::settle::Settled;
use crate::store::error::{Class, class};
use crate::store::operator::cancel;
use crate::store::worker::orphans::settle_orphans;
use crate::store::worker::set_aside::SetAside;
use crate::store::worker::{self, Lease, Orphan};
use crate::worker::execute::settling::warn_refused;
use crate::worker::execute::writer::refused;

/// How long a call tries all settlements of refused runs. Afterwards it tries only the last one of
/// each, because other runs wait for this call.
const ALL_SETTLEMENTS_FOR: Duration = Duration::from_secs(2);

/// How long one call goes on before other maintenance has its turn.
const TURN: Duration = Duration::from_secs(4);

/// The result of [`adopt_orphans`].
pub(crate) struct Adopted {
    pub(crate) n_runs: usize,
    /// False if runs are left for another call.
    pub(crate) is_done: bool,
}

/// Returns runs to their queues.
pub(crate) async fn release(connection: &mut PgConnection, leases: Vec<Lease>) -> Result<(), sqlx::Error> {
    let released = |lease: Lease| {
        let settlement = settle(Outcome::Released, lease.counters, &RetryPolicy::NOT_ASKED, 0.0);
        Settled::new(lease.fence(), settlement, &Sealer::default())
    };
    let settled: Vec<Settled> = leases.into_iter().map(released).collect();
    settlement::settle(connection, &settled.iter().collect::<Vec<_>>()).await.map(drop)
}

/// Settles the runs of dead workers as crashed or cancelled, for about [`TURN`].
///
/// It does not cancel their children: the next heartbeat reply reports those requests. Without
/// `wakes`, the next safety sweep wakes the parents that this call could not wake.
pub(crate) async fn adopt_orphans(
    connection: &mut PgConnection,
    aside: &mut SetAside,
    wakes: Option<&Wakes>,
) -> Result<Adopted, sqlx::Error> {
    let (mut n_runs, mut search, began) = (0, aside.search(), Instant::now());
    loop {
        let orphaned = worker::orphaned(connection, BATCH, search.left_out()).await?;
        if orphaned.is_empty() {
            if search.retries() {
                continue;
            }
            return Ok(Adopted { n_runs, is_done: true });
        }
        let settle = async move |connection: &mut PgConnection, runs: &[Uuid]| match runs {
            [run_id] => settle_alone(connection, *run_id, began).await,
            runs => {
                settle_orphans(connection, runs, |orphan| Some(settled(orphan, settlement_of(orphan)))).await
            }
        };
        let limit = TURN.saturating_sub(began.elapsed());
        let owed = aside.spare_within(limit, connection, &orphaned, settle).await?.done;
        if let Some(wakes) = wakes {
            wakes.owe(owed);
        }
        n_runs += orphaned.len();
        search.leave_out(orphaned);
        if began.elapsed() > TURN {
            return Ok(Adopted { n_runs, is_done: false });
        }
    }
}

/// Settles a run. If the database refuses that, writes its other settlements in turn. `began` is
/// the beginning of the call.
async fn settle_alone(
    connection: &mut PgConnection,
    run_id: Uuid,
    began: Instant,
) -> Result<Vec<Uuid>, sqlx::Error> {
    let mut settlements: Option<Settlements> = None;
    loop {
        let decide = |orphan: &Orphan| {
            let settlements = settlements.get_or_insert_with(|| settlements_of(orphan));
            let is_other = settlements.has_been_refused();
            let settled = settled(orphan, settlements.take_next()?);
            Some(if is_other { settled.after_refusal() } else { settled })
        };
        let error = match settle_orphans(connection, &[run_id], decide).await {
            Err(error) if class(&error) == Class::Permanent => error,
            settled => return settled,
        };
        let Some(settlements) = &mut settlements else { return Err(error) };
        let refusal = refused(&error);
        settlements.refused(&refusal);
        if began.elapsed() > ALL_SETTLEMENTS_FOR {
            settlements.skip_to_last();
        }
        warn_refused(settlements, run_id, &refusal);
        if settlements.is_exhausted() {
            return Err(error);
        }
    }
}

fn settlements_of(orphan: &Orphan) -> Settlements {
    let (first, claimed) = (settlement_of(orphan), orphan.lease.counters);
    if orphan.cancel_requested {
        Settlements::new(first, claimed)
    } else {
        Settlements::of_crash(first, claimed)
    }
}

fn settlement_of(orphan: &Orphan) -> Settlement {
    let outcome = if orphan.cancel_requested {
        Outcome::Cancelled(cancel::failure(None))
    } else {
        Outcome::Crashed { progressed: orphan.progressed, blame: orphan.blame }
    };
    settle(outcome, orphan.lease.counters, &RetryPolicy::NOT_ASKED, unit_random())
}

fn settled(orphan: &Orphan, settlement: Settlement) -> Settled {
    let fence = orphan.lease.fence();
    // The texts of crashes and refusals contain no payload, and are never encrypted.
    Settled::new(fence, settlement, &Sealer::default()).below(orphan.above).of_saga(true)
}
