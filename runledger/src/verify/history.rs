//! Tests that hold the present code against the records of runs.

use std::sync::Arc;

use super::rehearsal::{Script, Stage};
use crate::connection::client_error::ClientError;
use crate::connection::db::Db;
use crate::model::history::History;
use crate::model::payload::Codec;
use crate::model::verification::Verdict;
use crate::worker::app::App;

impl App {
    /// An app without a database, for tests that replay histories. It serves nothing: everything that needs a database fails.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn offline() -> Self {
        Self::new(Db::nowhere())
    }

    /// The same with the codec of sealed runs, for [`offline`](Self::offline): their histories are plain, but the inputs of their steps can be compared
    /// by whoever has the key alone.
    pub fn codec(mut self, codec: impl Codec) -> Self {
        self.db = self.db.with_decoder(codec);
        self
    }
}

impl History {
    /// Replays this history against the code of an app, without a database and without side effects, as [`App::verify`] does, and gives the first thing
    /// that it finds. If the run failed or was cancelled, and its steps were undone, the workflow need not repeat the
    /// undos. It must still be able to undo those steps.
    ///
    /// # Errors
    /// [`ClientError::Config`]: the app has no job, or does not provide what its jobs ask for.
    pub async fn replays(&self, app: &App) -> Result<Verdict, ClientError> {
        let registry = app.code()?;
        let sealer = app.db.sealer();
        let stage = Stage::new(Arc::new(app.provided.clone()), Arc::new(registry), sealer);
        let verdicts = stage.verdicts(&Script::of_history(self, sealer)).await;
        let first = verdicts.into_iter().find(|verdict| *verdict != Verdict::Replays);
        Ok(first.unwrap_or(Verdict::Replays))
    }
}

/// Asserts that the code of an app follows a history: kept as a file, the record of a run of today holds every later version of the code.
///
/// ```
/// use runledger::prelude::*;
/// use runledger::{History, assert_replays};
///
/// #[workflow]
/// async fn greet(wf: &Wf, name: String) -> Result<usize> {
///     let len = wf.step("measure", || async { Ok::<_, Error>(name.len()) }).await?;
///     Ok(len)
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<()> {
/// let history = History::from_json(
///     r#"{
///         "format": 1, "run_id": "01890000-0000-7000-8000-000000000000", "job": "greet", "state": "completed", "attempt": 1,
///         "input": {"name": "Ada"},
///         "steps": [{"key": "measure", "ordinal": 0, "fingerprint": 0, "output": 3, "seen_len": 0}]
///     }"#,
/// )?;
/// assert_replays(&history, &App::offline().with(jobs![greet])).await;
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// Where the code does not follow it, with the step; and where the app has no job, or does not provide what its jobs ask for.
#[expect(clippy::panic, reason = "an assertion of a test")]
pub async fn assert_replays(history: &History, app: &App) {
    match history.replays(app).await {
        Ok(Verdict::Replays) => {}
        Ok(verdict) => panic!("run `{}` of `{}` {verdict}", history.run_id, history.job),
        Err(error) => panic!("nothing can be replayed: {error}"),
    }
}
