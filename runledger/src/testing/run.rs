//! A run under test.

use std::fmt;

use serde::Serialize;

use super::Testing;
use super::drive::Drive;
use crate::client::signal::SendSignal;
use crate::{ClientError, Payload, RunHandle, StepInfo};

/// A run that a test started. It borrows the test, which owns the database.
pub struct TestRun<'t, T> {
    handle: RunHandle<T>,
    drive: Drive,
    test: &'t Testing,
}

impl<'t, T: Payload> TestRun<'t, T> {
    pub(super) fn new(test: &'t Testing, handle: RunHandle<T>, drive: Drive) -> Self {
        Self { handle, drive, test }
    }

    /// The handle of the run, for all other calls.
    #[must_use]
    pub fn handle(&self) -> &RunHandle<T> {
        &self.handle
    }

    /// Sends a signal to the run, as [`RunHandle::signal`] does.
    pub fn signal<V: Serialize + ?Sized>(&self, name: &str, payload: &V) -> SendSignal {
        self.handle.signal(name, payload)
    }

    /// Waits until the run ends and returns its output. Until then, it sends the signals from
    /// [`Testing::signals`], and skips time if the test enables that.
    ///
    /// # Errors
    /// Same as [`RunHandle::result`], and [`ClientError::Config`]
    ///
    /// - if nothing has happened for [`stall_limit`](Testing::stall_limit), 30 s by default;
    /// - if the run has not progressed for ten times as long while other runs progressed;
    /// - if the test has skipped time 1,000 times without progress of the run, or 5,000 times in
    ///   all.
    ///
    /// The error names what the run waits for, such as a job that the test does not serve.
    pub async fn result(&self) -> Result<T, ClientError> {
        Box::pin(self.drive.to_end(&self.test.hand, self.handle.id())).await?;
        self.handle.result().await
    }

    /// Waits until no run is active: each run has ended, sleeps, or waits for an external event.
    /// Call it to check the state before you skip time or send a signal.
    ///
    /// # Errors
    /// [`ClientError::Config`] if a run is active for longer than
    /// [`stall_limit`](Testing::stall_limit); otherwise a database error.
    pub async fn wait_until_idle(&self) -> Result<(), ClientError> {
        Box::pin(self.drive.wait_until_idle(&self.test.hand, self.handle.id())).await
    }

    /// Returns the recorded steps, as [`RunHandle::steps`] does.
    ///
    /// # Errors
    /// A database error.
    pub async fn steps(&self) -> Result<Vec<StepInfo>, ClientError> {
        self.handle.steps().await
    }
}

impl<T> fmt::Debug for TestRun<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestRun").field("handle", &self.handle).finish_non_exhaustive()
    }
}
