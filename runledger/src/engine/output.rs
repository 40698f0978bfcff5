//! The lines that a workflow emits, on their way to the database.
//!
//! The code does not wait for its lines. They are written with the next write of the run, or at its
//! end. A replay emits them again under the same numbers, and the database ignores those it has.

use std::collections::HashMap;

use crate::engine::attempt::Attempt;
use crate::engine::attempt::stop::StopReason;
use crate::model::payload::{PayloadError, PayloadKind, Place, Plain};
use crate::model::run::failure::{Failure, FailureKind};
use crate::store::attempt::output::{Emitted, MOST_BYTES, MOST_LINES};

/// The lines of one attempt of a workflow.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// The number of lines of each branch.
    numbers: HashMap<String, u32>,
    n_lines: u32,
    n_bytes: usize,
    /// Lines that are not written yet.
    pub(crate) unwritten: Vec<Emitted>,
}

impl Lines {
    /// The number of the next line of a branch.
    fn count(&mut self, step_key: &str, n_bytes: usize) -> Result<u32, Failure> {
        self.n_lines += 1;
        self.n_bytes += n_bytes;
        if self.n_lines > MOST_LINES || self.n_bytes > MOST_BYTES as usize {
            return Err(full());
        }
        let number = self.numbers.entry(step_key.to_owned()).or_default();
        *number += 1;
        Ok(*number)
    }
}

/// Buffers a line of a workflow until the next write.
///
/// # Errors
/// Why the attempt must stop: there are too many lines, or this one cannot be stored.
pub(crate) fn keep(attempt: &Attempt, branch: &str, value: Plain) -> Result<(), StopReason> {
    let key = attempt.key_of_slice(branch);
    let number = attempt.with_lines(|lines| lines.count(&key, value.len())).map_err(StopReason::Refused)?;
    let line = line(attempt, &key, number, value).map_err(|error| StopReason::of_payload(&error))?;
    attempt.with_lines(|lines| lines.unwritten.push(line));
    Ok(())
}

/// Builds a line to be written. The key contains the slice, so that a run that has continued as new
/// may emit an equal line.
///
/// # Errors
/// [`PayloadError`] if the line cannot be stored.
pub(crate) fn line(
    attempt: &Attempt,
    step_key: &str,
    number: u32,
    value: Plain,
) -> Result<Emitted, PayloadError> {
    let (fence, sealer) = (attempt.fence, attempt.sealer());
    let key = key_of(step_key, number);
    let place = Place::new(fence.run_id, PayloadKind::Emitted, &key);
    let fingerprint = sealer.fingerprints(&value, || place.to_string())?.first().copied().unwrap_or(0);
    let value = sealer.seal(&place, value)?;
    Ok(Emitted { fence, step_key: step_key.to_owned(), number, fingerprint, value })
}

/// The key of a line within its run.
pub(crate) fn key_of(step_key: &str, number: u32) -> String {
    format!("{step_key}#{number}")
}

/// The failure for a line beyond the limits.
pub(crate) fn full() -> Failure {
    let message = format!(
        "the output of this run is full: it may have {MOST_LINES} lines and {} MiB; emit less, or put it into a table or an object store and emit its key",
        MOST_BYTES >> 20
    );
    Failure::new(FailureKind::Error, message)
}
