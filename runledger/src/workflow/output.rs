//! The output of a run: lines that it appends and that other programs can follow.

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
use crate::definition::job::Payload;
use crate::engine::attempt::context::Context;
use crate::engine::attempt::stop::StopReason;
use crate::engine::group_commit::WriteResult;
use crate::engine::output;
use crate::engine::step::stop_reason;
use crate::model::json::{self, DecodeError};
use crate::model::payload::{PayloadKind, Place, Plain};
use crate::model::run::failure::{Failure, FailureKind};
use crate::store::attempt::output::{OutputLine, StoredLine, emitted};

/// The maximum number of lines on a page.
const PAGE: i64 = 1000;

/// How often a follower polls for new lines.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl Context {
    /// Appends a line to the [output](RunHandle::output) of the run.
    ///
    /// It is stored when this call returns, even if the body later fails, or is transactional and
    /// rolled back.
    ///
    /// Each try of the body counts its lines from 1. Line *n* of a later try adds nothing if it
    /// equals line *n* of an earlier try. Otherwise it is appended. So a body that emits the same
    /// lines in every try emits them once. A body that continues from its
    /// [`last_progress`](Self::last_progress) appends its new lines, unless a line equals the
    /// earlier line with the same number.
    ///
    /// # Errors
    /// The value cannot be stored, or the output of the run is full: 10,000 lines or 16 MiB of JSON
    /// text. Neither failure is retried. An attempt that has lost its lease writes nothing and ends
    /// at this call.
    ///
    /// # Cost
    /// One statement, shared with the lines of other runs.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still append the line.
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
    /// Appends a line to the [output](RunHandle::output) of the run.
    ///
    /// The code does not wait for the write. The line is written with the next write of the run, at
    /// the latest when the run ends or waits. It is not a step: you can add or remove it while runs
    /// are in flight. A replay emits its lines again. A line that equals the stored line with the
    /// same number in its branch adds nothing; a different line is appended.
    ///
    /// A value that cannot be stored fails the run, and so does output of more than 10,000 lines or
    /// 16 MiB.
    ///
    /// # Cost
    /// One statement per write of the run, shared with others. A resumed run sends all its lines
    /// again with its first write.
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
    /// Decodes the line.
    ///
    /// # Errors
    /// The value does not fit the type.
    pub fn decode<T: Payload>(&self) -> std::result::Result<T, DecodeError> {
        json::decode(&self.value)
    }
}

impl<T> RunHandle<T> {
    /// Returns up to 1,000 lines that the run emitted, from position `from`. One query.
    ///
    /// [`Context::emit`] and [`Wf::emit`] emit lines. The first has position 1. Positions have no
    /// gaps and never change, so after line `n` continue with `n + 1`. Empty if there are no more
    /// lines yet. It works while the run is live and after its end.
    ///
    /// # Errors
    /// [`ClientError::Unreadable`], or a database error.
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

    /// Follows the output of the run from this position until the run has ended and all lines are
    /// read.
    #[must_use]
    pub fn follow_output(&self, from: u64) -> OutputFollower<T> {
        OutputFollower { handle: self.clone(), from, read: VecDeque::new() }
    }
}

/// Reads the output of a run as it is emitted, made by [`RunHandle::follow_output`].
#[derive(Debug)]
pub struct OutputFollower<T> {
    handle: RunHandle<T>,
    from: u64,
    read: VecDeque<OutputLine>,
}

impl<T> OutputFollower<T> {
    /// Returns the next line, as soon as there is one. `None` after the last line of an ended run.
    ///
    /// # Errors
    /// [`ClientError::NoSuchRun`], or a database error. The next call continues at the same line.
    ///
    /// # Cost
    /// While there is no new line, two queries every 500 ms.
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the future loses no line.
    pub async fn next(&mut self) -> std::result::Result<Option<OutputLine>, ClientError> {
        loop {
            if let Some(line) = self.read.pop_front() {
                self.from = line.position + 1;
                return Ok(Some(line));
            }
            // Read the state first: all lines of a run are committed by the time it has ended.
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
