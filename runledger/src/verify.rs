//! Whether the present code still follows the record of every run in flight.

#[cfg(feature = "testing")]
pub(crate) mod history;
pub(crate) mod rehearsal;

use std::sync::Arc;

use crate::connection::client_error::ClientError;
use crate::connection::db::Db;
use crate::model::verification::Verification;
use crate::worker::app::App;

impl App {
    /// Replays every run in flight against this program's code, and says which do not replay: what a deploy would block.
    ///
    /// Nothing is written, and no step runs: a step that is not recorded waits for ever, and so the code stops where the run stands. What the code of a
    /// workflow does between its steps is done as in every replay. Of a job only the stored input is read, to see whether it fits. Runs of jobs that this
    /// program does not have are [`Verdict::NoCode`](crate::Verdict::NoCode): where programs share a database, look at the findings.
    ///
    /// A node of a graph that waits for other nodes has no record. `verify` checks that the program has the
    /// node's job in its version, and that every required parameter is in the call or comes from another
    /// node. It does not check the types of the values. For a [map](crate::Graph::map) node that has not
    /// started, it checks that the program has the job of the items, and that an item provides every required
    /// parameter. If the call has the list, it reads each item as it would read a stored input. Gates and
    /// unfinished graphs need no code and are not counted.
    ///
    /// `verify` reads the output of a child or a graph from the record of its workflow. It does not check the output
    /// of one that has ended while the workflow waits for another.
    ///
    /// What the recorded steps of sagas did must still be there to take back: where the job of a recorded undo is gone, or does not read its recorded input, that
    /// is a finding at `undo[key]`, whether the run goes on or is being undone. Undos that are done need nothing more.
    ///
    /// Reads runs in pages of 64, each a statement of its own. A workflow that awaits something of its own, that is no step, is given five seconds.
    ///
    /// # Errors
    /// [`ClientError`]: as [`start`](Self::start) for the code, or a failure of the database.
    pub async fn verify(self) -> Result<Verification, ClientError> {
        let registry = self.code()?;
        rehearsal::verify(&self.db, Arc::new(registry), Arc::new(self.provided)).await
    }
}

/// Calls [`App::verify`] for every job that is linked into the program, on the database of
/// [`Db::from_env_read_only`]. Logs the summary, and prints it to standard error if a run does not replay. It
/// leaves the schema as it is, so a standby works too.
///
/// ```no_run
/// #[tokio::main]
/// async fn main() -> runledger::Result<std::process::ExitCode> {
///     if std::env::args().any(|argument| argument == "--verify") {
///         return Ok(runledger::verify().await?.exit_code());
///     }
///     runledger::serve().await?;
///     Ok(std::process::ExitCode::SUCCESS)
/// }
/// ```
///
/// # Errors
/// Same as [`Db::from_env_read_only`] and [`App::verify`].
pub async fn verify() -> Result<Verification, ClientError> {
    let verification = App::new(Db::from_env_read_only().await?).verify().await?;
    if verification.is_ok() {
        tracing::info!("{verification}");
    } else {
        tracing::error!("{verification}");
        #[expect(
            clippy::print_stderr,
            reason = "whoever deploys must see what breaks, with or without a subscriber"
        )]
        {
            eprintln!("{verification}");
        }
    }
    Ok(verification)
}
