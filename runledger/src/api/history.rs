//! Records of runs as files, and tests that hold the present code against them.

use sqlx::PgConnection;
use uuid::Uuid;

use super::client_error::ClientError;
use super::db::{Db, connection};
use super::handle::Handle;
use super::job::Job;
use crate::model::given;
use crate::model::history::History;
use crate::model::payload::{PayloadKind, Place, Sealer};
use crate::model::recorded;
use crate::store::history::{self, Record};

impl Db {
    /// What is recorded of a run: its input, and what its steps gave. For a file, that a test replays. One query.
    ///
    /// What is sealed is opened: the history is plain, and so is its file.
    ///
    /// # Errors
    /// [`ClientError::NoSuchRun`], [`ClientError::Unreadable`], or a failure of the database.
    pub async fn export(&self, run_id: Uuid) -> Result<History, ClientError> {
        export(&mut *connection(self.pool()).await?, run_id, self.sealer()).await
    }
}

/// What is recorded of a run, opened.
async fn export(
    connection: &mut PgConnection,
    run_id: Uuid,
    sealer: &Sealer,
) -> Result<History, ClientError> {
    let record = history::history(connection, run_id).await?.ok_or(ClientError::NoSuchRun { run_id })?;
    let Record { job, tenant, graph_id, state, attempt, input, given, steps } = record;
    let input = sealer.open(&Place::new(run_id, PayloadKind::Input, ""), input);
    let input = input.and_then(|input| given::fill(input, given, sealer));
    let opened = input.and_then(|input| Ok((input, recorded::open(steps, run_id, sealer)?)));
    let (input, steps) = opened.map_err(|source| ClientError::Unreadable { run_id, source })?;
    let history = History::new(run_id, &job, tenant, state, attempt, input, steps);
    Ok(history.in_graph(graph_id).keyed(sealer.opens()))
}

impl<J: Job> Handle<J> {
    /// As [`Db::export`].
    ///
    /// # Errors
    /// As [`Db::export`].
    pub async fn export(&self) -> Result<History, ClientError> {
        let run_id = self.id();
        export(&mut *connection(self.pool()?).await?, run_id, &self.sealer()).await
    }
}

#[cfg(feature = "testing")]
mod testing {
    use std::sync::Arc;

    use super::{ClientError, Db, History};
    use crate::api::app::App;
    use crate::model::payload::Codec;
    use crate::model::verification::Verdict;
    use crate::runtime::verify::{Script, Stage};

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
            self.db = self.db.with_codec_to_read(codec);
            self
        }
    }

    impl History {
        /// Replays this history against the code of an app, without a database and without side effects, as [`App::verify`] does, and gives the first thing
        /// that it finds. What was taken back when the run had failed or was cancelled is no part of what the workflow has to follow; that it still could be
        /// taken back is.
        ///
        /// # Errors
        /// [`ClientError::Setup`]: the app has no job, or does not provide what its jobs ask for.
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
}

#[cfg(feature = "testing")]
pub use testing::assert_replays;
