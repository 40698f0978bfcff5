//! What a run emits while it works: lines, appended, for whoever follows it.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use serde::Serialize;

use super::{Wf, nested};
use crate::client::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::code_context::CodeContext;
use crate::connection::db::connection;
use crate::definition::error::{Error, Result};
use crate::definition::job::{Job, Payload};
use crate::engine::context::Context;
use crate::engine::group_commit::WriteResult;
use crate::engine::output;
use crate::engine::step::stop_reason;
use crate::engine::stop::StopReason;
use crate::model::failure::{Failure, FailureKind};
use crate::model::json::{self, DecodeError};
use crate::model::payload::{PayloadKind, Place, Plain};
use crate::store::output::{OutputLine, StoredLine, emitted};

/// The most lines of a page.
const PAGE: i64 = 1000;

/// How often a follower looks for more.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl Context {
    /// Appends a line to the [output](RunHandle::output) of the run. It is kept when the call returns, also where the body fails afterwards or is
    /// transactional and rolled back.
    ///
    /// Another try of the body, or another attempt after a crash, counts its lines anew: its line *n* adds nothing where an earlier try has said the same
    /// as line *n*, and is appended where that said something else or nothing. So a body that says the same in every try says it once, and one that goes
    /// on from its [`last_progress`](Self::last_progress) appends what is new, as long as no line is as the one of its number was.
    ///
    /// Costs one statement, shared with what other runs emit at the same time.
    ///
    /// # Errors
    /// The value cannot be stored, or the output of the run is full: 10,000 lines, 16 MiB of JSON text. No retry mends that. An attempt that has lost
    /// its lease writes nothing and ends here.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have appended the line.
    pub fn emit<'c, T>(&'c self, line: &T) -> impl Future<Output = Result<()>> + Send + use<'c, T>
    where
        T: Serialize + ?Sized,
    {
        let value = Plain::of(line);
        async move {
            let attempt = self.of_attempt();
            let key = attempt.key_of_slice(self.step_key().unwrap_or_default());
            let value = value.map_err(Error::terminal)?;
            let line = output::line(attempt, &key, self.next_line(), value).map_err(Error::terminal)?;
            match attempt.commit_queue.write(line).await {
                WriteResult::Yes => Ok(()),
                WriteResult::LeaseLost | WriteResult::Gone => {
                    stop_reason(attempt, StopReason::LeaseLost).await
                }
                WriteResult::Refused(failure) => Err(Error::terminal(failure)),
            }
        }
    }
}

impl Wf {
    /// Appends a line to the [output](RunHandle::output) of the run. It goes with the next write of the run, and at the latest with its end or its next wait:
    /// the code does not wait for it.
    ///
    /// It is no step: it can be added to a workflow and removed while runs are in flight. A replay emits again, and what it emits as before, under the
    /// same number in its branch, adds nothing; where the code emits something else now, that is appended.
    ///
    /// Costs one statement a write of the run, shared with others; a run that is resumed sends all its lines again with its first write.
    ///
    /// A value that cannot be stored, and output of more than 10,000 lines or 16 MiB, fail the run.
    pub fn emit<T: Serialize + ?Sized>(&self, line: &T) {
        let kept = if CodeContext::InlineStep.is_here() {
            Err(StopReason::Refused(nested("emit")))
        } else {
            Plain::of(line)
                .map_err(|error| StopReason::Refused(Failure::from_chain(FailureKind::Encode, &error)))
                .and_then(|value| output::keep(self.attempt(), self.path(), value))
        };
        if let Err(stop) = kept {
            self.attempt().stop(stop);
        }
    }
}

impl OutputLine {
    /// What it says, as a value.
    ///
    /// # Errors
    /// It does not fit the type.
    pub fn decode<T: Payload>(&self) -> std::result::Result<T, DecodeError> {
        json::decode(&self.value)
    }
}

impl<J: Job> RunHandle<J> {
    /// What the run has emitted ([`Context::emit`], [`Wf::emit`]) from this position on, the first being 1: up to 1,000 lines, while it goes on and after
    /// its end. Positions have no gaps and never change, so whoever has read up to `n` goes on at `n + 1`. Empty where there is no more yet. One query.
    ///
    /// # Errors
    /// [`ClientError::Unreadable`], or a failure of the database.
    pub async fn output(&self, from: u64) -> std::result::Result<Vec<OutputLine>, ClientError> {
        let stored = emitted(&mut *connection(self.pool()?).await?, self.id(), from, PAGE).await?;
        stored.into_iter().map(|line| self.opened(line)).collect()
    }

    fn opened(&self, line: StoredLine) -> std::result::Result<OutputLine, ClientError> {
        let StoredLine { position, step_key, number, value, emitted_at } = line;
        let key = output::key_of(&step_key, number.unsigned_abs());
        let value = self.sealer().open(&Place::new(self.id(), PayloadKind::Emitted, &key), value);
        let value = value.map_err(|source| self.unreadable(source))?;
        Ok(OutputLine { position, step_key, value, emitted_at })
    }

    /// Follows the output of the run from this position on, until the run has ended and all is read.
    #[must_use]
    pub fn follow_output(&self, from: u64) -> OutputFollower<J> {
        OutputFollower { handle: self.clone(), from, read: VecDeque::new() }
    }
}

/// Reads the output of a run as it comes, made by [`RunHandle::follow_output`].
#[derive(Debug)]
pub struct OutputFollower<J> {
    handle: RunHandle<J>,
    from: u64,
    read: VecDeque<OutputLine>,
}

impl<J: Job> OutputFollower<J> {
    /// The next line, as soon as there is one; none where the run has ended and all is read. Looks twice a second while there is nothing: two queries.
    ///
    /// # Errors
    /// [`ClientError::NoSuchRun`], or a failure of the database. It may be asked again then, and goes on where it was.
    ///
    /// # Cancel safety
    /// Dropping the future loses no line.
    pub async fn next(&mut self) -> std::result::Result<Option<OutputLine>, ClientError> {
        loop {
            if let Some(line) = self.read.pop_front() {
                self.from = line.position + 1;
                return Ok(Some(line));
            }
            // Asked first: what a run has emitted is there when its end is.
            let has_ended = self.handle.state().await?.is_terminal();
            self.read = self.handle.output(self.from).await?.into();
            if self.read.is_empty() {
                if has_ended {
                    return Ok(None);
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
    }
}
