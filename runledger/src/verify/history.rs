//! Test functions that replay recorded histories against the present code.

use std::sync::Arc;

use super::rehearsal::{Script, Stage};
use crate::connection::client_error::ClientError;
use crate::connection::db::Db;
use crate::model::payload::Codec;
use crate::model::replay::history::History;
use crate::model::replay::verification::Verdict;
use crate::worker::app::App;

impl App {
    /// Creates an app without a database, for tests that replay histories. It serves nothing, and
    /// every call that needs a database fails.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn offline() -> Self {
        Self::new(Db::nowhere())
    }

    /// Sets the codec of encrypted runs, for [`offline`](Self::offline). Histories contain plain
    /// payloads, but comparing the inputs of their steps needs the key.
    pub fn codec(mut self, codec: impl Codec) -> Self {
        self.db = self.db.with_decoder(codec);
        self
    }
}

impl History {
    /// Replays this history against the code of an app, as [`App::verify`] does, and returns the
    /// first finding. Needs no database and has no side effects.
    ///
    /// If the run failed or was cancelled and its steps were compensated, the workflow need not
    /// repeat the compensations. It must still be able to compensate those steps.
    ///
    /// # Errors
    /// [`ClientError::Config`] if the app has no job, or does not provide a value that its jobs
    /// need.
    pub async fn replays(&self, app: &App) -> Result<Verdict, ClientError> {
        let registry = app.code()?;
        let sealer = app.db.sealer();
        let stage = Stage::new(Arc::new(app.provided.clone()), Arc::new(registry), sealer);
        let verdicts = stage.verdicts(&Script::of_history(self, sealer)).await;
        let first = verdicts.into_iter().find(|verdict| *verdict != Verdict::Replays);
        Ok(first.unwrap_or(Verdict::Replays))
    }
}

/// Asserts that the code of an app replays a history. Keep the history of a present run as a file
/// to test later versions of the code.
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
/// If the code does not replay the history (the message names the step), if the app has no job, or
/// if it does not provide a value that its jobs need.
#[expect(clippy::panic, reason = "an assertion of a test")]
pub async fn assert_replays(history: &History, app: &App) {
    match history.replays(app).await {
        Ok(Verdict::Replays) => {}
        Ok(verdict) => panic!("run `{}` of `{}` {verdict}", history.run_id, history.job),
        Err(error) => panic!("nothing can be replayed: {error}"),
    }
}
