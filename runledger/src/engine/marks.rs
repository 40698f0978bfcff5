//! Marks: values that the code is given at once and that are recorded all the same, such as the time, and signals.
//!
//! A mark is on its way while the code goes on. Nothing of its run that the code does afterwards may be in the database without it, or a replay would
//! give the code another value: every write of the run sends the marks that are kept first, and waits until they are committed.

use std::sync::Arc;

use futures_util::future::join;

use super::attempt::Attempt;
use super::halt::Halt;
use super::journal::Written;
use crate::connection::task::apart;
use crate::model::payload::Plain;
use crate::model::replay::Claim;
use crate::store::checkpoint::Checkpoint;
use crate::store::output::Emitted;
use crate::store::signal::Taking;

/// What a run has marked and not yet written.
pub(crate) type Marks = Vec<Mark>;

/// What the code has been given.
#[derive(Clone, Debug)]
pub(crate) enum Mark {
    Value(Checkpoint),
    Signal(Taking),
}

impl Mark {
    fn seen_len(&self) -> u32 {
        match self {
            Self::Value(step) | Self::Signal(Taking { step, .. }) => step.seen_len,
        }
    }
}

/// Keeps a mark until the next write.
pub(crate) fn keep(attempt: &Attempt, claim: &Claim, fingerprint: i64, value: String) {
    match attempt.checkpoint(claim, fingerprint, Ok(Plain::ready(value)), None) {
        Ok(mark) => attempt.with_marks(|marks| marks.push(Mark::Value(mark))),
        Err(error) => attempt.halt(Halt::Sealed(error.to_failure())),
    }
}

/// Keeps the taking of a signal until the next write.
pub(crate) fn keep_signal(attempt: &Attempt, taking: Taking) {
    attempt.with_marks(|marks| marks.push(Mark::Signal(taking)));
}

/// Records a step behind the marks that are kept, in the same commit where the journal can.
pub(crate) async fn checkpoint(attempt: &Arc<Attempt>, step: Checkpoint) -> Written {
    if is_empty(attempt) {
        return attempt.journal.write(step).await;
    }
    let mut written = Box::pin(write(attempt, Some(step))).await.into_iter().rev();
    let last = written.next().unwrap_or(Written::Yes);
    written.find(|mark| *mark != Written::Yes).unwrap_or(last)
}

/// Whether nothing is kept.
fn is_empty(attempt: &Attempt) -> bool {
    let progress = attempt.progress();
    progress.marks.is_empty() && progress.lines.unwritten.is_empty()
}

/// Writes what is kept, before a write that does not go through the journal.
///
/// # Errors
/// Why the attempt cannot go on.
pub(crate) async fn first(attempt: &Arc<Attempt>) -> Result<(), Halt> {
    if is_empty(attempt) {
        return Ok(());
    }
    Box::pin(write(attempt, None)).await.into_iter().try_for_each(Written::or_halt)
}

/// Writes what outlives the run's work, before its end: the lines that it has emitted, and which signals it has taken. If there are
/// no lines and no signals, the values are not written.
///
/// # Errors
/// Why the attempt cannot go on.
pub(crate) async fn last(attempt: &Arc<Attempt>) -> Result<(), Halt> {
    let has_lines = attempt.with_lines(|lines| !lines.unwritten.is_empty());
    let is_needed = |mark: &Mark| has_lines || matches!(mark, Mark::Signal(_));
    if attempt.with_marks(|marks| marks.iter().any(is_needed)) {
        return first(attempt).await;
    }
    if !has_lines {
        return Ok(());
    }
    let _marking = attempt.marking.lock().await;
    let lines = attempt.with_lines(|lines| lines.unwritten.clone());
    write_lines(attempt, lines).await.into_iter().try_for_each(Written::or_halt)
}

/// Writes lines. Those of a caller that is dropped are kept, and sent once more.
async fn write_lines(attempt: &Attempt, lines: Vec<Emitted>) -> Vec<Written> {
    let n_lines = lines.len();
    let written = Box::pin(attempt.journal.write_all(lines)).await;
    attempt.with_lines(|lines| lines.unwritten.drain(..n_lines).for_each(drop));
    written
}

/// Writes marks and then a step, and after them the lines. Other callers wait until the marks are written. So a task writes
/// them: the future that waits here may be dropped, or no longer polled.
async fn write(attempt: &Arc<Attempt>, step: Option<Checkpoint>) -> Vec<Written> {
    let attempt = Arc::clone(attempt);
    let written = apart("marks", |_| async move {
        tokio::select! {
            biased;
            written = in_turn(&attempt, step) => Some(written),
            // The worker has stopped, and nobody waits for this any more.
            () = attempt.journal.closed(attempt.fence.run_id) => None,
        }
    });
    match written.await {
        Some(written) => written,
        None => std::future::pending().await,
    }
}

async fn in_turn(attempt: &Attempt, step: Option<Checkpoint>) -> Vec<Written> {
    let _marking = attempt.marking.lock().await;
    // Under one lock: a line that is emitted later may contain a value that is recorded later.
    let (marks, lines) = {
        let progress = attempt.progress();
        (progress.marks.clone(), progress.lines.unwritten.clone())
    };
    let n_marks = marks.len();
    let seen_len = marks.iter().map(Mark::seen_len).max();
    let written = in_order(attempt, marks, lines, step).await;
    attempt.with_marks(|marks| marks.drain(..n_marks).for_each(drop));
    if let Some(seen_len) = seen_len {
        attempt.acknowledge_until(seen_len);
    }
    written
}

/// Writes marks and then a step, and after them the lines, because a line may contain a value that the code received. A signal
/// is taken by its own statement, and later items wait for it. If an item is not written, neither are the later ones.
async fn in_order(
    attempt: &Attempt,
    marks: Marks,
    lines: Vec<Emitted>,
    step: Option<Checkpoint>,
) -> Vec<Written> {
    let (mut written, mut values) = (Vec::new(), Vec::new());
    for mark in marks {
        match mark {
            Mark::Value(value) => values.push(value),
            Mark::Signal(taking) => {
                written.extend(attempt.journal.write_all(std::mem::take(&mut values)).await);
                if written.iter().all(|before| *before == Written::Yes) {
                    written.push(attempt.journal.write(taking).await);
                }
                if written.iter().any(|before| *before != Written::Yes) {
                    return written;
                }
            }
        }
    }
    values.extend(step);
    // Values enter first: otherwise a full journal could accept a line before a value that it contains.
    let values = attempt.journal.enter_all(values).await;
    let (items, lines) = join(values.written(), write_lines(attempt, lines)).await;
    written.extend(lines);
    written.extend(items);
    written
}
