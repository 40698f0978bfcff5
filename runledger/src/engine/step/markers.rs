//! Markers: recorded values that the code receives at once, such as the time, and signals.
//!
//! The code continues while a marker is written. But no later write of the run may reach the
//! database before the marker, or a replay would give the code another value. Therefore every write
//! of the run first sends the buffered markers, and waits until they are committed.

use std::sync::Arc;

use futures_util::future::join;

use crate::connection::task::spawn_detached;
use crate::engine::attempt::Attempt;
use crate::engine::attempt::stop::StopReason;
use crate::engine::group_commit::WriteResult;
use crate::model::payload::Plain;
use crate::model::replay::Claim;
use crate::store::attempt::checkpoint::Checkpoint;
use crate::store::attempt::output::Emitted;
use crate::store::attempt::signal::SignalTake;

/// The unwritten markers of a run.
pub(crate) type Markers = Vec<Marker>;

/// A value that the code has received.
#[derive(Clone, Debug)]
pub(crate) enum Marker {
    Value(Checkpoint),
    Signal(SignalTake),
}

impl Marker {
    fn seen_len(&self) -> u32 {
        match self {
            Self::Value(step) | Self::Signal(SignalTake { step, .. }) => step.seen_len,
        }
    }
}

/// Buffers a marker until the next write.
pub(crate) fn keep(attempt: &Attempt, claim: &Claim, fingerprint: i64, value: String) {
    match attempt.checkpoint(claim, fingerprint, Ok(Plain::ready(value)), None) {
        Ok(mark) => attempt.with_markers(|markers| markers.push(Marker::Value(mark))),
        Err(error) => attempt.stop(StopReason::Sealed(error.to_failure())),
    }
}

/// Buffers the taking of a signal until the next write.
pub(crate) fn keep_signal(attempt: &Attempt, taking: SignalTake) {
    attempt.with_markers(|markers| markers.push(Marker::Signal(taking)));
}

/// Records a step after the buffered markers, in the same commit if the commit queue allows it.
pub(crate) async fn checkpoint(attempt: &Arc<Attempt>, step: Checkpoint) -> WriteResult {
    if is_empty(attempt) {
        return attempt.commit_queue.write(step).await;
    }
    let mut written = Box::pin(write(attempt, Some(step))).await.into_iter().rev();
    let last = written.next().unwrap_or(WriteResult::Yes);
    written.find(|mark| *mark != WriteResult::Yes).unwrap_or(last)
}

/// Whether no marker and no line is buffered.
fn is_empty(attempt: &Attempt) -> bool {
    let progress = attempt.progress();
    progress.markers.is_empty() && progress.lines.unwritten.is_empty()
}

/// Writes the buffered markers and lines. Call it before a write outside the commit queue.
///
/// # Errors
/// Why the attempt must stop.
pub(crate) async fn flush(attempt: &Arc<Attempt>) -> Result<(), StopReason> {
    if is_empty(attempt) {
        return Ok(());
    }
    Box::pin(write(attempt, None)).await.into_iter().try_for_each(WriteResult::or_stop)
}

/// Writes what outlives the run, before its outcome: the emitted lines and the taken signals. Skips
/// the values if there are no lines and no signals.
///
/// # Errors
/// Why the attempt must stop.
pub(crate) async fn flush_final(attempt: &Arc<Attempt>) -> Result<(), StopReason> {
    let has_lines = attempt.with_lines(|lines| !lines.unwritten.is_empty());
    let is_needed = |mark: &Marker| has_lines || matches!(mark, Marker::Signal(_));
    if attempt.with_markers(|markers| markers.iter().any(is_needed)) {
        return flush(attempt).await;
    }
    if !has_lines {
        return Ok(());
    }
    let _marking = attempt.marking.lock().await;
    let lines = attempt.with_lines(|lines| lines.unwritten.clone());
    write_lines(attempt, lines).await.into_iter().try_for_each(WriteResult::or_stop)
}

/// Writes lines. If the caller is dropped, the lines stay buffered and are sent again.
async fn write_lines(attempt: &Attempt, lines: Vec<Emitted>) -> Vec<WriteResult> {
    let n_lines = lines.len();
    let written = Box::pin(attempt.commit_queue.write_all(lines)).await;
    attempt.with_lines(|lines| lines.unwritten.drain(..n_lines).for_each(drop));
    written
}

/// Writes markers, then a step, and after them the lines, in a detached task.
///
/// Other callers wait until the markers are written. The future that waits here may be dropped or
/// stay unpolled, so a task does the work.
async fn write(attempt: &Arc<Attempt>, step: Option<Checkpoint>) -> Vec<WriteResult> {
    let attempt = Arc::clone(attempt);
    let written = spawn_detached("markers", |_| async move {
        tokio::select! {
            biased;
            written = write_locked(&attempt, step) => Some(written),
            // The worker has stopped, so this result has no receiver.
            () = attempt.commit_queue.closed(attempt.fence.run_id) => None,
        }
    });
    match written.await {
        Some(written) => written,
        None => std::future::pending().await,
    }
}

async fn write_locked(attempt: &Attempt, step: Option<Checkpoint>) -> Vec<WriteResult> {
    let _marking = attempt.marking.lock().await;
    // Copy both under one lock: a line that is emitted later may contain a value that is recorded
    // later.
    let (markers, lines) = {
        let progress = attempt.progress();
        (progress.markers.clone(), progress.lines.unwritten.clone())
    };
    let n_marks = markers.len();
    let seen_len = markers.iter().map(Marker::seen_len).max();
    let written = in_order(attempt, markers, lines, step).await;
    attempt.with_markers(|markers| markers.drain(..n_marks).for_each(drop));
    if let Some(seen_len) = seen_len {
        attempt.acknowledge_until(seen_len);
    }
    written
}

/// Writes markers, then a step, and after them the lines, because a line may contain a received
/// value.
///
/// A signal is taken by its own statement, and later items wait for it. If an item is not written,
/// neither are the later ones.
async fn in_order(
    attempt: &Attempt,
    markers: Markers,
    lines: Vec<Emitted>,
    step: Option<Checkpoint>,
) -> Vec<WriteResult> {
    let (mut written, mut values) = (Vec::new(), Vec::new());
    for mark in markers {
        match mark {
            Marker::Value(value) => values.push(value),
            Marker::Signal(taking) => {
                written.extend(attempt.commit_queue.write_all(std::mem::take(&mut values)).await);
                if written.iter().all(|before| *before == WriteResult::Yes) {
                    written.push(attempt.commit_queue.write(taking).await);
                }
                if written.iter().any(|before| *before != WriteResult::Yes) {
                    return written;
                }
            }
        }
    }
    values.extend(step);
    // Push the values first. Otherwise a full commit queue could accept a line before a value that
    // the line contains.
    let values = attempt.commit_queue.push_all(values).await;
    let (items, lines) = join(values.written(), write_lines(attempt, lines)).await;
    written.extend(lines);
    written.extend(items);
    written
}
