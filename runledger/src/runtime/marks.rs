//! Marks: values that the code is given at once and that are recorded all the same, such as the time.
//!
//! A mark is on its way while the code goes on. Nothing of its run that the code does afterwards may be in the database without it, or a replay would
//! give the code another value: every write of the run sends the marks that are kept first, and waits until they are committed.

use futures_util::future::join_all;

use super::attempt::{Attempt, Halt};
use super::journal::Written;
use crate::model::replay::Claim;
use crate::store::checkpoint::Checkpoint;

/// What a run has marked and not yet written.
pub(crate) type Marks = Vec<Checkpoint>;

/// Keeps a mark until the next write.
pub(crate) fn keep(attempt: &Attempt, claim: &Claim, value: String) {
    let mark = attempt.checkpoint(claim, 0, Ok(value));
    attempt.with_marks(|marks| marks.push(mark));
}

/// Records a step behind the marks that are kept, in the same commit where the journal can.
pub(crate) async fn checkpoint(attempt: &Attempt, step: Checkpoint) -> Written {
    if attempt.with_marks(|marks| marks.is_empty()) {
        return attempt.journal.checkpoint(step).await;
    }
    let mut written = write(attempt, Some(step)).await.into_iter().rev();
    let last = written.next().unwrap_or(Written::Yes);
    written.find(|mark| *mark != Written::Yes).unwrap_or(last)
}

/// Writes the marks that are kept, before a write that does not go through the journal.
///
/// # Errors
/// Why the attempt cannot go on.
pub(crate) async fn first(attempt: &Attempt) -> Result<(), Halt> {
    if attempt.with_marks(|marks| marks.is_empty()) {
        return Ok(());
    }
    write(attempt, None).await.into_iter().try_for_each(halt_of)
}

/// Writes marks, and a step behind them: what a run sends to the journal is written in that order. Whoever comes meanwhile waits for the marks. Those of a
/// caller that is dropped are kept, and written once more.
async fn write(attempt: &Attempt, step: Option<Checkpoint>) -> Vec<Written> {
    let _marking = attempt.marking.lock().await;
    let marks = attempt.with_marks(|marks| marks.clone());
    let n_marks = marks.len();
    let seen_len = marks.iter().map(|mark| mark.seen_len).max();
    let items = marks.into_iter().chain(step);
    let written = join_all(items.map(|item| attempt.journal.checkpoint(item))).await;
    attempt.with_marks(|marks| marks.drain(..n_marks).for_each(drop));
    if let Some(seen_len) = seen_len {
        attempt.acknowledge_until(seen_len);
    }
    written
}

fn halt_of(written: Written) -> Result<(), Halt> {
    match written {
        Written::Yes => Ok(()),
        Written::LeaseLost => Err(Halt::LeaseLost),
        Written::Refused(failure) => Err(Halt::Refused(failure)),
    }
}
