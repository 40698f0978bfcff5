//! The writers of the commit queue. Each has one connection, and writes one statement per kind of
//! record and batch.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::deferred_writes::DeferredWrites;
use crate::connection::outage::{Outage, Recovery, warn_outage};
use crate::connection::session::Session;
use crate::engine::group_commit::{CommitItem, WriteItem, WriteResult};
use crate::engine::output;
use crate::engine::wakes::Wakes;
use crate::model::run::failure::{Failure, FailureKind};
use crate::store::attempt::checkpoint::{Checkpoint, FailedTry, checkpoint, checkpoint_fresh, step_failed};
use crate::store::attempt::output::{Appended, Emitted, emit};
use crate::store::attempt::progress::{ProgressWrite, note};
use crate::store::attempt::settle::{Batch, Settled, settle};
use crate::store::attempt::signal::{SignalTake, SignalTakeResult, take};
use crate::store::error::{Class, class, lives, may_concern_some_runs};
use crate::store::session::{WAIT_OF_A_BATCH, WAIT_OF_ONE, wait_for_locks};

/// The largest batch. For a larger one, the statement takes longer than the commits that it saves.
const MAX_BATCH: usize = 512;

/// The most payload bytes in one statement, unless a single item is larger. PostgreSQL accepts no
/// message above 1 GB, and the server would need longer for it than a statement may take.
const MAX_BYTES: usize = 32 << 20;

/// The pause before a batch is retried after a transient error. It doubles up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// How many deferred entries of one run are written before other runs have their turn.
const ENTRIES_OF_A_TURN: usize = 100;

/// After this many runs in a row have failed alone, the writer defers the rest of a batch without
/// trying it: a table may be locked, or the server slow.
const SET_ASIDE_IN_A_ROW: u32 = 3;

/// After this many conflicts, or refusals of a server that writes nothing for now, the records of a
/// batch are written one by one. A trigger may raise these errors for one of the records.
const REFUSALS_OF_A_BATCH: u32 = 3;

/// After this many lost sessions, the records of a batch are written one by one. A trigger may end
/// the session for one of them, or an operator may end slow statements.
const SESSIONS_OF_A_BATCH: u32 = 3;

/// Writes entries until the commit queue is closed and empty.
///
/// When the worker has `stopped`, the writer retries deferred entries at once.
pub(crate) async fn write(
    session: Session,
    mut entries: mpsc::Receiver<WriteItem>,
    wakes: Wakes,
    mut stopped: watch::Receiver<bool>,
) {
    let mut writer = Writer {
        session,
        connection: None,
        wait: WAIT_OF_A_BATCH,
        is_alone: false,
        outage: Outage::new(),
        wakes,
        aside: DeferredWrites::default(),
    };
    let mut batch = Vec::with_capacity(MAX_BATCH);
    let (mut is_open, mut is_stopped) = (true, false);
    while is_open || !writer.aside.is_empty() {
        // Neither branch has priority: deferred runs and the others take turns.
        tokio::select! {
            () = due(writer.aside.due()) => writer.try_next_aside().await,
            () = is_set(&mut stopped), if !is_stopped => {
                is_stopped = true;
                writer.aside.hasten();
            }
            n_entries = entries.recv_many(&mut batch, MAX_BATCH), if is_open => {
                is_open = n_entries > 0;
                writer.commit(batch.drain(..)).await;
            }
        }
    }
}

async fn is_set(stopped: &mut watch::Receiver<bool>) {
    // A dropped sender also means that the worker ends.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

async fn due(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

struct Writer {
    session: Session,
    connection: Option<PoolConnection<Postgres>>,
    /// How long the statements of the connection wait for a lock.
    wait: Duration,
    /// Whether it writes the record of a single run that may be at fault.
    is_alone: bool,
    outage: Outage,
    wakes: Wakes,
    aside: DeferredWrites,
}

/// An item of one kind, and the channel that acknowledges it.
type Item<T> = (Box<T>, oneshot::Sender<WriteResult>);

impl Writer {
    async fn commit(&mut self, batch: impl IntoIterator<Item = WriteItem>) {
        let (mut steps, mut tries, mut noted, mut settled) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut takings, mut lines) = (Vec::new(), Vec::new());
        for entry in batch {
            match entry {
                WriteItem::Checkpoint(item, acknowledge) => steps.push((item, acknowledge)),
                WriteItem::SignalTake(item, acknowledge) => takings.push((item, acknowledge)),
                WriteItem::FailedTry(item, acknowledge) => tries.push((item, acknowledge)),
                WriteItem::ProgressWrite(item, acknowledge) => noted.push((item, acknowledge)),
                WriteItem::Emitted(item, acknowledge) => lines.push((item, acknowledge)),
                WriteItem::Settled(item, acknowledge) => settled.push((item, acknowledge)),
            }
        }
        self.all::<Checkpoint>(steps).await;
        self.all::<SignalTake>(takings).await;
        self.all::<FailedTry>(tries).await;
        self.all::<ProgressWrite>(noted).await;
        self.all::<Emitted>(lines).await;
        Box::pin(self.all::<Settled>(settled)).await;
    }

    /// Tries the deferred entries of one run.
    async fn try_next_aside(&mut self) {
        let Some((run_id, mut waiting)) = self.aside.take() else { return };
        self.is_alone = true;
        for _ in 0..ENTRIES_OF_A_TURN {
            let Some(entry) = waiting.entries.pop_front() else { break };
            self.commit([entry]).await;
            if self.aside.has(run_id) {
                break;
            }
        }
        self.is_alone = false;
        self.aside.tried(run_id, waiting);
    }

    /// Writes items of one kind.
    async fn all<T: Writable>(&mut self, items: Vec<Item<T>>) {
        let mut items: Vec<Item<T>> = items.into_iter().filter_map(|item| self.not_aside(item)).collect();
        // All writers of all processes lock leases in this order, so that they do not deadlock. The
        // sort is stable: the items of one run stay in order.
        items.sort_by_key(|(item, _)| item.fence().run_id);
        while let Some(n_items) = n_that_fit(items.iter().map(|(item, _)| item.n_bytes())) {
            let rest = items.split_off(n_items);
            self.at_once(items).await;
            // If the first items of a run were deferred, its later ones follow them.
            items = rest.into_iter().filter_map(|item| self.not_aside(item)).collect();
        }
    }

    /// Returns the item. If records of its run are deferred, defers the item too and returns
    /// `None`.
    fn not_aside<T: Writable>(&mut self, item: Item<T>) -> Option<Item<T>> {
        if self.aside.has(item.0.fence().run_id) {
            self.aside.append(T::ENTRY(item.0, item.1));
            return None;
        }
        Some(item)
    }

    /// Writes items of one kind in one statement. If the database refuses it and single items may
    /// be at fault, writes them one by one, so that a faulty item fails or waits alone.
    async fn at_once<T: Writable>(&mut self, items: Vec<Item<T>>) {
        let references: Vec<&T> = items.iter().map(|(item, _)| item.as_ref()).collect();
        let began = Instant::now();
        match self.persistently(&references).await {
            Ok(written) => {
                for ((_, acknowledge), written) in items.into_iter().zip(written) {
                    let _ = acknowledge.send(written);
                }
            }
            Err(_) if items.len() > 1 => Box::pin(self.one_by_one(items)).await,
            Err(error) => {
                for (item, acknowledge) in items {
                    if class(&error) == Class::Permanent {
                        let _ = acknowledge.send(WriteResult::Refused(refused(&error)));
                    } else {
                        let run_id = item.fence().run_id;
                        warn_outage!(static, %run_id, %error, "the database does not store a record; the writer sets the run aside");
                        self.aside.set(T::ENTRY(item, acknowledge), began.elapsed());
                    }
                }
            }
        }
    }

    /// Writes items of one kind one by one, so that a faulty item fails or waits alone.
    async fn one_by_one<T: Writable>(&mut self, items: Vec<Item<T>>) {
        let (was_alone, mut n_set_aside) = (std::mem::replace(&mut self.is_alone, true), 0);
        for item in items {
            let Some(item) = self.not_aside(item) else { continue };
            if n_set_aside == SET_ASIDE_IN_A_ROW {
                self.aside.set_untried(T::ENTRY(item.0, item.1));
                continue;
            }
            let run_id = item.0.fence().run_id;
            self.at_once(vec![item]).await;
            n_set_aside = if self.aside.has(run_id) { n_set_aside + 1 } else { 0 };
        }
        self.is_alone = was_alone;
    }

    /// Sends a batch until the database answers, or reports an error that may concern only some
    /// runs.
    ///
    /// Retries are safe: the items are idempotent under their fence.
    async fn persistently<T: Writable>(&mut self, items: &[&T]) -> Result<Vec<WriteResult>, sqlx::Error> {
        // A record that is alone may have been sent before.
        let (mut pause, mut is_repeated, mut may_be_own) = (FIRST_PAUSE, self.is_alone, true);
        let (mut n_refused, mut n_lost) = (0, 0);
        loop {
            let error = match self.once(items, is_repeated).await {
                Ok(written) => {
                    if let Some(Recovery { n_failures, lasted }) = self.outage.succeeded() {
                        tracing::info!(n_failures, ?lasted, "the commit queue is written again");
                    }
                    return Ok(written);
                }
                Err(error) => error,
            };
            is_repeated = true;
            if is_unique_violation(&error) && std::mem::take(&mut may_be_own) {
                // An earlier commit wrote the record, but its answer was lost. That commit has
                // ended, so the next try sees its rows.
                continue;
            }
            if may_concern_some_runs(&error) {
                let may_concern_all = matches!(class(&error), Class::Refused | Class::Conflict);
                n_refused += 1;
                if !may_concern_all || self.is_alone || n_refused == REFUSALS_OF_A_BATCH {
                    if may_concern_all {
                        // The connection may lead to a server that has become a standby.
                        self.connection = None;
                    }
                    return Err(error);
                }
            }
            let has_ended_its_session = self.connection.take().is_some() && !lives(&error);
            n_lost += u32::from(has_ended_its_session);
            let most_lost = if self.is_alone { 1 } else { SESSIONS_OF_A_BATCH };
            if class(&error) == Class::Permanent || (has_ended_its_session && n_lost >= most_lost) {
                return Err(error);
            }
            warn_outage!(&self.outage, %error, n_items = items.len(), "the commit queue waits for the database");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    async fn once<T: Writable>(
        &mut self,
        items: &[&T],
        is_repeated: bool,
    ) -> Result<Vec<WriteResult>, sqlx::Error> {
        let opened = match &mut self.connection {
            Some(connection) => Ok(connection),
            none => {
                self.wait = WAIT_OF_A_BATCH;
                self.session.open_writer().await.map(|connection| none.insert(connection))
            }
        };
        // Check after the connection is open: the first connection to a promoted server sets this
        // flag.
        if self.session.is_overtaken() {
            return Ok(vec![WriteResult::LeaseLost; items.len()]);
        }
        let connection = opened?;
        let wait = if self.is_alone { WAIT_OF_ONE } else { WAIT_OF_A_BATCH };
        if self.wait != wait {
            self.session.with_timeout(wait_for_locks(connection, wait)).await?;
            self.wait = wait;
        }
        self.session.with_timeout(T::write(connection, items, is_repeated, &self.wakes)).await
    }
}

/// A kind of item in the commit queue. A write returns one result per item.
trait Writable: CommitItem + Sync {
    /// The bytes of its payloads.
    fn n_bytes(&self) -> usize;

    async fn write(
        connection: &mut PgConnection,
        items: &[&Self],
        is_repeated: bool,
        wakes: &Wakes,
    ) -> Result<Vec<WriteResult>, sqlx::Error>;
}

impl Writable for Checkpoint {
    fn n_bytes(&self) -> usize {
        Checkpoint::n_bytes(self)
    }

    async fn write(
        connection: &mut PgConnection,
        items: &[&Self],
        is_repeated: bool,
        _wakes: &Wakes,
    ) -> Result<Vec<WriteResult>, sqlx::Error> {
        if is_repeated {
            checkpoint(connection, items, None).await.map(fenced)
        } else {
            checkpoint_fresh(connection, items).await.map(fenced)
        }
    }
}

impl Writable for SignalTake {
    fn n_bytes(&self) -> usize {
        self.step.n_bytes()
    }

    async fn write(
        connection: &mut PgConnection,
        items: &[&Self],
        _is_repeated: bool,
        _wakes: &Wakes,
    ) -> Result<Vec<WriteResult>, sqlx::Error> {
        let written = |took| match took {
            SignalTakeResult::Yes => WriteResult::Yes,
            SignalTakeResult::Gone => WriteResult::Gone,
            SignalTakeResult::LeaseLost => WriteResult::LeaseLost,
        };
        Ok(take(connection, items).await?.into_iter().map(written).collect())
    }
}

impl Writable for FailedTry {
    fn n_bytes(&self) -> usize {
        self.failure.n_bytes()
    }

    async fn write(
        connection: &mut PgConnection,
        items: &[&Self],
        _is_repeated: bool,
        _wakes: &Wakes,
    ) -> Result<Vec<WriteResult>, sqlx::Error> {
        step_failed(connection, items).await.map(fenced)
    }
}

impl Writable for ProgressWrite {
    fn n_bytes(&self) -> usize {
        self.value.n_bytes()
    }

    async fn write(
        connection: &mut PgConnection,
        items: &[&Self],
        _is_repeated: bool,
        _wakes: &Wakes,
    ) -> Result<Vec<WriteResult>, sqlx::Error> {
        note(connection, items).await.map(fenced)
    }
}

impl Writable for Emitted {
    fn n_bytes(&self) -> usize {
        self.value.n_bytes()
    }

    async fn write(
        connection: &mut PgConnection,
        items: &[&Self],
        _is_repeated: bool,
        _wakes: &Wakes,
    ) -> Result<Vec<WriteResult>, sqlx::Error> {
        let written = |appended| match appended {
            Appended::Yes => WriteResult::Yes,
            Appended::LeaseLost => WriteResult::LeaseLost,
            Appended::Full => WriteResult::Refused(output::full()),
        };
        Ok(emit(connection, items).await?.into_iter().map(written).collect())
    }
}

impl Writable for Settled {
    fn n_bytes(&self) -> usize {
        Settled::n_bytes(self)
    }

    async fn write(
        connection: &mut PgConnection,
        items: &[&Self],
        is_repeated: bool,
        wakes: &Wakes,
    ) -> Result<Vec<WriteResult>, sqlx::Error> {
        let Batch { written, owed } = settle(connection, items).await?;
        wakes.owe(owed);
        // The first try may have succeeded without an answer, while another transaction locked a
        // parent.
        let unheard = items.iter().filter(|item| is_repeated && !written.contains(&item.fence));
        wakes.owe(unheard.filter_map(|item| item.parent_to_wake()));
        Ok(fenced(items.iter().map(|item| written.contains(&item.fence)).collect()))
    }
}

/// How many of the first items fit into one statement. `None` if there are no items.
fn n_that_fit(sizes: impl Iterator<Item = usize>) -> Option<usize> {
    let (mut n_items, mut n_bytes) = (0, 0);
    for size in sizes {
        n_bytes += size;
        if n_items > 0 && n_bytes > MAX_BYTES {
            break;
        }
        n_items += 1;
    }
    (n_items > 0).then_some(n_items)
}

/// The results of items that are written only if their fence is valid.
fn fenced(held: Vec<bool>) -> Vec<WriteResult> {
    held.into_iter().map(|held| if held { WriteResult::Yes } else { WriteResult::LeaseLost }).collect()
}

fn is_unique_violation(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}

pub(crate) fn refused(error: &sqlx::Error) -> Failure {
    let failure = Failure::from_chain(FailureKind::Encode, error);
    let message = format!("the database refuses to store this record: {}", failure.message);
    Failure { message, ..failure }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::connection::db::Db;
    use crate::model::payload::Stored;
    use crate::store::attempt::checkpoint::Fence;
    use crate::store::session::failover::ServerEpoch;

    #[test]
    fn statement_takes_items_within_size_limit_but_at_least_one() {
        assert_eq!(n_that_fit([].into_iter()), None);
        assert_eq!(n_that_fit([MAX_BYTES + 1, 0].into_iter()), Some(1));
        assert_eq!(n_that_fit([1, MAX_BYTES - 1, 1].into_iter()), Some(2));
        assert_eq!(n_that_fit([1, 2, 3].into_iter()), Some(3));
    }

    /// The promoted server has the lease, but may lack a record that this one depends on.
    #[tokio::test(start_paused = true)]
    async fn write_pending_at_server_promotion_is_dropped_as_lease_lost() {
        let db = Db::nowhere().within(Arc::new(ServerEpoch::over()));
        let mut writer = Writer {
            session: Session::to(db, Duration::from_secs(1)),
            connection: None,
            wait: WAIT_OF_A_BATCH,
            is_alone: false,
            outage: Outage::new(),
            wakes: Wakes::new().0,
            aside: DeferredWrites::default(),
        };
        let fence = Fence { run_id: Uuid::now_v7(), token: Uuid::now_v7() };
        let noted = ProgressWrite { fence, step_key: String::new(), value: Stored::default() };
        let written = tokio::time::timeout(Duration::from_secs(600), writer.persistently(&[&noted])).await;
        assert_eq!(written.unwrap().unwrap(), [WriteResult::LeaseLost]);
    }
}
