//! A run under test.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;

use super::Testing;
use super::drive::Drive;
use crate::api::signal::SendSignal;
use crate::{ClientError, Handle, Job, StepInfo};

/// A run that a test has started. It borrows the test, with which its database goes.
pub struct TestRun<'t, J> {
    handle: Handle<J>,
    drive: Drive,
    test: PhantomData<&'t Testing>,
}

impl<'t, J: Job> TestRun<'t, J> {
    pub(super) fn new(_test: &'t Testing, handle: Handle<J>, drive: Drive) -> Self {
        Self { handle, drive, test: PhantomData }
    }

    /// Its handle, for everything that is not said here.
    #[must_use]
    pub fn handle(&self) -> &Handle<J> {
        &self.handle
    }

    /// Sends a signal to the run, as [`Handle::signal`] does.
    pub fn signal<T: Serialize + ?Sized>(&self, name: &str, payload: &T) -> SendSignal {
        self.handle.signal(name, payload)
    }

    /// Waits until the run ends and gives its output, and meanwhile sends the signals that were named by [`Testing::signals`] and
    /// lets time pass, where the test skips it.
    ///
    /// # Errors
    /// As [`Handle::result`], and [`ClientError::Setup`] where nothing has happened for half a minute, with what the run waits for.
    pub async fn result(&self) -> Result<J::Output, ClientError> {
        Box::pin(self.drive.to_end(self.handle.id())).await?;
        self.handle.result().await
    }

    /// Waits until nothing goes on any more: each run has ended, sleeps, or waits for somebody. For a look at what is there, before time is skipped or a
    /// signal is sent.
    ///
    /// # Errors
    /// [`ClientError::Setup`] where something goes on for half a minute, or a failure of the database.
    pub async fn at_rest(&self) -> Result<(), ClientError> {
        self.drive.at_rest(self.handle.id()).await.map(drop)
    }

    /// The recorded steps, as [`Handle::steps`] gives them.
    ///
    /// # Errors
    /// A failure of the database.
    pub async fn steps(&self) -> Result<Vec<StepInfo>, ClientError> {
        self.handle.steps().await
    }
}

impl<J> fmt::Debug for TestRun<'_, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestRun").field("handle", &self.handle).finish_non_exhaustive()
    }
}
