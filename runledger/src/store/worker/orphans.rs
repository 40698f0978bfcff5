//! Settles the runs of dead workers.

use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::{Orphan, orphans};
use crate::store::attempt::settle::{Settled, ends, settle, write};
use crate::store::session::BEGIN_RESTLESS;
use crate::store::write::commit;

/// Settles the runs whose worker is dead, with a decision about each. Returns the parents to wake
/// afterwards. A run without a decision keeps its lease.
///
/// Runs that stay live are settled while their leases are locked, so that no step is recorded after
/// they were read. Runs that end are settled afterwards, because their parents must be locked
/// before any lease.
pub(crate) async fn settle_orphans(
    connection: &mut PgConnection,
    runs: &[Uuid],
    decide: impl FnMut(&Orphan) -> Option<Settled>,
) -> Result<Vec<Uuid>, sqlx::Error> {
    let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
    let settled: Vec<Settled> = orphans(&mut tx, runs).await?.iter().filter_map(decide).collect();
    let (ending, going_on): (Vec<&Settled>, Vec<&Settled>) = settled.iter().partition(|item| ends(item));
    if !going_on.is_empty() {
        write(&mut tx, &going_on, None).await?;
    }
    commit("settle_orphans", tx.commit()).await?;
    if ending.is_empty() { Ok(Vec::new()) } else { Ok(settle(connection, &ending).await?.owed) }
}
