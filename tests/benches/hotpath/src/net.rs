//! The background scan: a second claim, on its own connection, over everything behind the cursors.
//! Dead rows make it slow. No claim waits for it, and it runs only as often as its cost allows.

use crate::claimer::{Claimed, Lane, Look, Stretch, last_of, take};
use crate::instant::Instant;
use crate::variant::Variant;
use crate::{Res, pg};
use sqlx::postgres::PgConnection;
use std::collections::BTreeMap;
use std::time::Instant as Clock;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// A scan is due when the time since the last one is this many times its cost.
const SPARING: u32 = 10;

type Haul = (PgConnection, Vec<Claimed>);

/// Scans behind the cursors of one claimer.
pub struct Net {
    variant: Variant,
    worker: i32,
    connection: Option<PgConnection>,
    stretches: Vec<(Lane, Stretch)>,
    running: Option<(JoinHandle<Res<Haul>>, Clock)>,
    limit: usize,
    pub look: Look,
}

impl Net {
    pub fn new(variant: Variant, worker: i32) -> Self {
        let (connection, stretches, running) = (None, vec![], None);
        Self { variant, worker, connection, stretches, running, limit: 0, look: Look::default() }
    }

    /// Collects what a finished scan has claimed, and starts the next scan when due. Waits only for
    /// its first connection.
    pub async fn tend(&mut self, lanes: &BTreeMap<Lane, (Instant, Uuid)>, limit: i64) -> Res<Vec<Claimed>> {
        let mut caught = vec![];
        if self.running.as_ref().is_some_and(|(task, _)| task.is_finished())
            && let Some((task, began)) = self.running.take()
        {
            let (connection, claimed) = task.await??;
            self.look = Look { last: Some(Clock::now()), cost: began.elapsed(), taken: self.look.taken + 1 };
            self.connection = Some(connection);
            self.follow(&claimed);
            caught = claimed;
        }
        if self.running.is_none() && (!self.stretches.is_empty() || due(&self.look)) {
            self.cast(lanes, limit).await?;
        }
        Ok(caught)
    }

    async fn cast(&mut self, lanes: &BTreeMap<Lane, (Instant, Uuid)>, limit: i64) -> Res<()> {
        if self.stretches.is_empty() {
            let behind = |at: Instant| Stretch { after: (Instant::START, Uuid::nil()), until: at };
            self.stretches = lanes.iter().map(|(lane, at)| (lane.clone(), behind(at.0))).collect();
        }
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => pg::connect().await?,
        };
        let (claim, worker, stretches) = (self.variant.claim, self.worker, self.stretches.clone());
        self.limit = usize::try_from(limit)?;
        let task = tokio::spawn(async move {
            let claimed = take(&mut connection, claim, worker, &stretches, limit).await?;
            Ok((connection, claimed))
        });
        self.running = Some((task, Clock::now()));
        Ok(())
    }

    /// A scan that reached its limit continues after its last rows, so that no row is scanned
    /// twice. Any other scan is complete.
    fn follow(&mut self, claimed: &[Claimed]) {
        if claimed.len() < self.limit {
            self.stretches.clear();
            return;
        }
        let last = last_of(claimed);
        for (lane, stretch) in &mut self.stretches {
            if let Some(at) = last.get(lane) {
                stretch.after = *at;
            }
        }
    }
}

/// Whether enough time has passed for the next scan.
pub fn due(look: &Look) -> bool {
    look.last.is_none_or(|last| last.elapsed() >= look.cost * SPARING)
}
