//! The log lines of bodies, from `tracing` to the database.
//!
//! ```text
//! body ──event──▶ RunLogs (a layer) ──span──▶ Sink (bounded) ──worker task──▶ runledger.log
//! ```
//!
//! Log lines are not part of the history. They have no fence, and no body waits for them. Lines
//! without room are counted and dropped.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Span, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;
use uuid::Uuid;

use crate::connection::db::Db;
use crate::connection::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::connection::outage::{Outage, warn_outage};
use crate::connection::task;
use crate::model::payload::{PayloadKind, Place, Plain};
use crate::model::run::log::Line;
use crate::store::attempt::log::{Fate, NewLogLine, keep};
use crate::store::error::{Class, class};

/// How many lines may wait for the database.
const WAITING: usize = 10_000;

/// The most lines that one statement writes, and the pause between two statements that are not
/// full.
const BATCH: usize = 500;
const PAUSE: Duration = Duration::from_millis(100);

/// The pause after a failed statement.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// The longest message, the longest value of a field, and the most fields of a line.
const MOST_MESSAGE: usize = 8 << 10;
const MOST_VALUE: usize = 1 << 10;
const MOST_FIELDS: usize = 32;

/// Whether the layer is part of a subscriber of this process.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The sink for the span that is being created.
    static MADE_FOR: RefCell<Option<(Arc<Sink>, Of)>> = const { RefCell::new(None) };
}

/// The run, attempt and step of a span.
#[derive(Clone, Debug)]
pub(crate) struct Of {
    pub(crate) run_id: Uuid,
    pub(crate) attempt: u32,
    pub(crate) step_key: String,
}

/// The buffer for a worker's log lines.
#[derive(Debug)]
pub(crate) struct Sink {
    level: Level,
    lines: mpsc::Sender<Said>,
    n_dropped: AtomicU64,
}

#[derive(Debug)]
struct Said {
    of: Arc<Of>,
    level: Level,
    target: String,
    line: Line,
    at: Instant,
}

/// Creates a span whose events go to this worker's sink, if it stores logs.
pub(crate) fn made_for(
    sink: Option<&Arc<Sink>>,
    of: impl FnOnce() -> Of,
    make: impl FnOnce() -> Span,
) -> Span {
    let Some(sink) = sink else { return make() };
    MADE_FOR.set(Some((Arc::clone(sink), of())));
    let span = make();
    MADE_FOR.set(None);
    span
}

/// The `tracing` layer that collects log lines for [`App::keep_logs`](crate::App::keep_logs)
/// (feature `logs`). One layer serves all workers of a process.
///
/// ```
/// use tracing_subscriber::prelude::*;
///
/// tracing_subscriber::registry()
///     .with(tracing_subscriber::fmt::layer())
///     .with(runledger::RunLogs::layer())
///     .init();
/// ```
///
/// The layer collects events inside the span of a body (`run` or `step`, of the target
/// `runledger::run`) and inside its child spans. A task that a body spawns needs the span too
/// (`.in_current_span()`). A filter of the whole subscriber also filters these events; a filter of
/// another layer does not.
#[derive(Debug)]
pub struct RunLogs(());

impl RunLogs {
    /// Creates the layer.
    #[must_use]
    pub fn layer() -> Self {
        Self(())
    }

    pub(crate) fn are_heard() -> bool {
        IS_INSTALLED.load(Ordering::Acquire)
    }
}

/// The layer's data in a body's span.
#[derive(Clone)]
struct Kept {
    sink: Arc<Sink>,
    of: Arc<Of>,
}

impl<S> Layer<S> for RunLogs
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_layer(&mut self, _subscriber: &mut S) {
        IS_INSTALLED.store(true, Ordering::Release);
    }

    fn on_new_span(&self, _attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        // `made_for` creates exactly one span, and no span inside it.
        let Some((sink, of)) = MADE_FOR.take() else { return };
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Kept { sink, of: Arc::new(of) });
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let Some(mut scope) = context.event_scope(event) else { return };
        let kept = scope.find_map(|span| span.extensions().get::<Kept>().cloned());
        // Hold no lock on the span: formatting a value may log, and other layers then write to the
        // span.
        if let Some(Kept { sink, of }) = kept {
            sink.take(of, event);
        }
    }
}

impl Sink {
    /// Creates a sink for this level and above, and the receiver of its lines.
    fn new(level: Level) -> (Arc<Self>, mpsc::Receiver<Said>) {
        let (lines, waiting) = mpsc::channel(WAITING);
        (Arc::new(Self { level, lines, n_dropped: AtomicU64::new(0) }), waiting)
    }

    fn take(&self, of: Arc<Of>, event: &Event<'_>) {
        let metadata = event.metadata();
        // More urgent levels are smaller.
        if *metadata.level() > self.level {
            return;
        }
        let mut heard = Heard::default();
        event.record(&mut heard);
        let said = Said {
            of,
            level: *metadata.level(),
            target: cut(format_args!("{}", metadata.target()), MOST_VALUE),
            line: heard.0,
            at: Instant::now(),
        };
        if self.lines.try_send(said).is_err() {
            self.n_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The fields of an event.
#[derive(Default)]
struct Heard(Line);

impl Heard {
    fn note(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        if field.name() == "message" {
            self.0.message = cut(value, MOST_MESSAGE);
        } else if self.0.fields.len() < MOST_FIELDS {
            self.0.fields.insert(field.name().to_owned(), cut(value, MOST_VALUE));
        }
    }
}

impl Visit for Heard {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.note(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.note(field, format_args!("{value:?}"));
    }
}

/// Formats at most `most` bytes of a value.
fn cut(value: fmt::Arguments<'_>, most: usize) -> String {
    struct Room {
        text: String,
        most: usize,
        is_cut: bool,
    }
    impl fmt::Write for Room {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            let left = self.most - self.text.len();
            self.is_cut = part.len() > left;
            self.text.push_str(&part[..part.floor_char_boundary(left)]);
            if self.is_cut { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let mut room = Room { text: String::new(), most, is_cut: false };
    // Formatting stops when the room is used up, or when a value returns an error.
    let _ = room.write_fmt(value);
    if room.is_cut {
        room.text.push('…');
    }
    // PostgreSQL's text cannot contain a null character.
    if room.text.contains('\0') { room.text.replace('\0', "\u{fffd}") } else { room.text }
}

/// The sink of a worker, and the task that writes its lines.
#[derive(Debug)]
pub(crate) struct Logs {
    pub(crate) sink: Arc<Sink>,
    over: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Logs {
    /// Stores lines of this level and above.
    pub(crate) fn open(level: Level, db: Db) -> Self {
        let (sink, waiting) = Sink::new(level);
        let (over, is_over) = watch::channel(false);
        let task = task::spawn("logs", write(db, Arc::clone(&sink), waiting, is_over));
        Self { sink, over, task }
    }

    /// Writes the buffered lines and ends.
    pub(crate) async fn close(self, patience: Duration) {
        let _ = self.over.send(true);
        if tokio::time::timeout(patience, self.task).await.is_err() {
            tracing::warn!("what bodies have logged last is lost: the database did not answer");
        }
    }
}

async fn write(db: Db, sink: Arc<Sink>, mut waiting: mpsc::Receiver<Said>, mut over: watch::Receiver<bool>) {
    let mut n_dropped = 0;
    let outage = Outage::new();
    let mut said = Vec::new();
    loop {
        tokio::select! {
            biased;
            _ = waiting.recv_many(&mut said, BATCH) => {}
            () = task::raised(&mut over) => return,
        }
        let is_full = said.len() == BATCH;
        let mut lines = sealed(&db, said.drain(..));
        while !lines.is_empty() {
            lines = match attempt(&db, lines).await {
                Ok((again, 0)) => again,
                Ok((again, n_beyond)) => {
                    tracing::debug!(n_beyond, "the logs of some runs are full");
                    again
                }
                Err((error, lines)) if !*over.borrow() => {
                    warn_outage!(&outage, %error, n_lines = lines.len(), "what bodies log waits for the database");
                    tokio::select! {
                        () = tokio::time::sleep(AFTER_ERROR) => {}
                        () = task::raised(&mut over) => {}
                    }
                    lines
                }
                Err((error, lines)) => {
                    tracing::warn!(%error, n_lines = lines.len(), "what bodies have logged last is lost");
                    return;
                }
            };
        }
        let n_dropped_now = sink.n_dropped.load(Ordering::Relaxed);
        if n_dropped_now > n_dropped {
            let n_lines = n_dropped_now - n_dropped;
            tracing::warn!(n_lines, "bodies log faster than the database keeps it: some lines are lost");
            n_dropped = n_dropped_now;
        }
        if !is_full {
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = task::raised(&mut over) => {}
            }
        }
    }
}

async fn attempt(
    db: &Db,
    lines: Vec<NewLogLine>,
) -> Result<(Vec<NewLogLine>, usize), (sqlx::Error, Vec<NewLogLine>)> {
    match kept(db, &lines).await {
        Ok(fates) => Ok(sorted(lines, &fates)),
        Err(error) if class(&error) == Class::Permanent => attempt_each_run(db, lines).await,
        Err(error) => Err((error, lines)),
    }
}

async fn kept(db: &Db, lines: &[NewLogLine]) -> Result<Vec<Fate>, sqlx::Error> {
    with_timeout(STATEMENT_LIMIT, async { keep(&mut *db.acquire().await?, lines).await }).await
}

/// Returns the lines to send again, and the number of lines without room.
fn sorted(lines: Vec<NewLogLine>, fates: &[Fate]) -> (Vec<NewLogLine>, usize) {
    let n_beyond = fates.iter().filter(|fate| **fate == Fate::Beyond).count();
    let met = lines.into_iter().zip(fates).filter(|(_, fate)| **fate == Fate::Met);
    (met.map(|(line, _)| line).collect(), n_beyond)
}

/// After this many refused runs in a row, the database is assumed to refuse every line.
const MOST_REFUSALS: usize = 8;

/// Writes the lines run by run, and drops lines that the database refuses. Returns an error if it
/// seems to refuse every line.
async fn attempt_each_run(
    db: &Db,
    lines: Vec<NewLogLine>,
) -> Result<(Vec<NewLogLine>, usize), (sqlx::Error, Vec<NewLogLine>)> {
    let mut by_run: BTreeMap<Uuid, Vec<NewLogLine>> = BTreeMap::new();
    for line in lines {
        by_run.entry(line.run_id).or_default().push(line);
    }
    let (mut again, mut n_beyond, mut n_refusals) = (Vec::new(), 0, 0);
    while let Some((run_id, lines)) = by_run.pop_first() {
        let n_lines = lines.len();
        match kept(db, &lines).await {
            Ok(fates) => {
                let (met, beyond) = sorted(lines, &fates);
                again.extend(met);
                n_beyond += beyond;
                n_refusals = 0;
            }
            Err(error) if class(&error) == Class::Permanent && n_refusals < MOST_REFUSALS => {
                n_refusals += 1;
                warn_outage!(static, %error, %run_id, n_lines, "what a run has logged is lost: the database refuses it");
            }
            Err(error) => {
                again.extend(lines);
                again.extend(by_run.into_values().flatten());
                return Err((error, again));
            }
        }
    }
    Ok((again, n_beyond))
}

fn sealed(db: &Db, said: impl Iterator<Item = Said>) -> Vec<NewLogLine> {
    let sealer = db.sealer();
    let sealed = said.filter_map(|said| {
        let Of { run_id, attempt, ref step_key } = *said.of;
        let place = Place::new(run_id, PayloadKind::Log, step_key);
        let line = Plain::of(&said.line).map_err(|error| error.to_string());
        let line = line.and_then(|line| sealer.seal(&place, line).map_err(|error| error.to_string()));
        match line {
            Ok(line) => Some(NewLogLine {
                run_id,
                attempt,
                level: said.level.as_str(),
                target: said.target,
                line,
                at: said.at,
                step_key: step_key.clone(),
            }),
            Err(error) => {
                tracing::warn!(error, %run_id, "a line cannot be stored");
                None
            }
        }
    });
    sealed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_at_character_boundary_with_ellipsis() {
        assert_eq!(cut(format_args!("{}", "abc"), 3), "abc");
        assert_eq!(cut(format_args!("{}", "abcd"), 3), "abc…");
        assert_eq!(cut(format_args!("{}{}", "ab", "€"), 4), "ab…");
        assert_eq!(cut(format_args!("{}", "a\0b"), 8), "a\u{fffd}b");
    }
}
