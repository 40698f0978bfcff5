//! What a workflow emits, on its way to the database.
//!
//! The code does not wait for its lines: they go with the next write of its run, and with its end. A replay emits them again, under the same numbers, and
//! the database leaves alone what it has.

use std::collections::HashMap;

use super::attempt::Attempt;
use crate::model::failure::{Failure, FailureKind};
use crate::model::json;
use crate::store::checkpoint::Fence;
use crate::store::output::{Emitted, MOST_BYTES, MOST_LINES};

/// The lines of one attempt of a workflow.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// How many there are of each branch.
    numbers: HashMap<String, u32>,
    n_lines: u32,
    n_bytes: usize,
    /// Those that are not written yet.
    pub(crate) unwritten: Vec<Emitted>,
}

impl Lines {
    fn keep(&mut self, fence: Fence, step_key: &str, value: String) -> Result<(), Failure> {
        self.n_lines += 1;
        self.n_bytes += value.len();
        if self.n_lines > MOST_LINES || self.n_bytes > MOST_BYTES as usize {
            return Err(full());
        }
        let number = self.numbers.entry(step_key.to_owned()).or_default();
        *number += 1;
        self.unwritten.push(line(fence, step_key, *number, value));
        Ok(())
    }
}

/// Keeps a line of a workflow until the next write.
///
/// # Errors
/// There are too many.
pub(crate) fn keep(attempt: &Attempt, branch: &str, value: String) -> Result<(), Failure> {
    let key = attempt.key_of_slice(branch);
    attempt.with_lines(|lines| lines.keep(attempt.fence, &key, value))
}

/// A line as it is written. The key is that of the slice: one that has begun anew may say the same.
pub(crate) fn line(fence: Fence, step_key: &str, number: u32, value: String) -> Emitted {
    let fingerprint = json::fingerprint(&value);
    Emitted { fence, step_key: step_key.to_owned(), number, fingerprint, value }
}

/// Why a line is refused.
pub(crate) fn full() -> Failure {
    let message = format!(
        "the output of this run is full: it may have {MOST_LINES} lines and {} MiB; emit less, or put it into a table or an object store and emit its key",
        MOST_BYTES >> 20
    );
    Failure::new(FailureKind::Error, message)
}
