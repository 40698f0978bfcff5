//! Ends attempts whose worker is gone: returns their runs to a queue, or settles them as crashed.

use sqlx::PgConnection;
use uuid::Uuid;

use super::maintenance::BATCH;
use crate::engine::step::unit_random;
use crate::engine::wakes::Wakes;
use crate::model::payload::Sealer;
use crate::model::run::refusal::in_short;
use crate::model::run::settle::{Outcome, RetryPolicy, Settlement, settle};
use crate::store::attempt::settle as settlement;
use crate::store::attempt::settle::Settled;
use crate::store::error::{Class, class};
use crate::store::operator::cancel;
use crate::store::worker::orphans::settle_orphans;
use crate::store::worker::set_aside::SetAside;
use crate::store::worker::{self, Lease, Orphan};

/// Returns runs to their queues.
pub(crate) async fn release(connection: &mut PgConnection, leases: Vec<Lease>) -> Result<(), sqlx::Error> {
    let released = |lease: Lease| {
        let settlement = settle(Outcome::Released, lease.counters, &RetryPolicy::NOT_ASKED, 0.0);
        Settled::new(lease.fence(), settlement, &Sealer::default())
    };
    let settled: Vec<Settled> = leases.into_iter().map(released).collect();
    settlement::settle(connection, &settled.iter().collect::<Vec<_>>()).await.map(drop)
}

/// Settles all runs of dead workers as crashed or cancelled.
///
/// It does not cancel their children: the next heartbeat reply reports those requests. Without
/// `wakes`, the next safety sweep wakes the parents that this call could not wake.
pub(crate) async fn adopt_orphans(
    connection: &mut PgConnection,
    aside: &mut SetAside,
    wakes: Option<&Wakes>,
) -> Result<usize, sqlx::Error> {
    let (mut n_adopted, mut left_out) = (0, aside.runs());
    loop {
        let orphaned = worker::orphaned(connection, BATCH, &left_out).await?;
        if orphaned.is_empty() {
            return Ok(n_adopted);
        }
        let settle = async |connection: &mut PgConnection, runs: &[Uuid]| match settle_orphans(
            connection, runs, crashed,
        )
        .await
        {
            // A trigger or a constraint may refuse the text of the failure only. The run would
            // keep its lease, and with it a permit.
            Err(error) if runs.len() == 1 && class(&error) == Class::Permanent => {
                tracing::warn!(%error, run_id = %runs[0], "the database refuses to store how an attempt ended; a shorter text is tried");
                settle_orphans(connection, runs, crashed_in_short).await
            }
            settled => settled,
        };
        let owed = aside.spare(connection, &orphaned, settle).await?.done;
        if let Some(wakes) = wakes {
            wakes.owe(owed);
        }
        n_adopted += orphaned.len();
        left_out.extend(orphaned);
    }
}

fn crashed(orphan: &Orphan) -> Settled {
    settled(orphan, settlement_of(orphan))
}

fn crashed_in_short(orphan: &Orphan) -> Settled {
    settled(orphan, in_short(settlement_of(orphan))).after_refusal()
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
    // The text of a crash is the engine's own, and never encrypted.
    Settled::new(fence, settlement, &Sealer::default()).below(orphan.above).of_saga(true)
}
