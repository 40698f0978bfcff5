//! Checks that this program's code still replays every run in flight.

#[cfg(feature = "testing")]
pub(crate) mod history;
pub(crate) mod rehearsal;

use std::sync::Arc;

use crate::connection::client_error::ClientError;
use crate::connection::db::Db;
use crate::model::replay::verification::Verification;
use crate::worker::app::App;

impl App {
    /// Replays every run in flight against this program's code, and reports each run that a deploy
    /// would block.
    ///
    /// `verify` writes nothing and executes no step. An unrecorded step stays pending, so the code
    /// stops where the run stands. Workflow code between steps executes, as in every replay. For a
    /// plain job, `verify` only checks that the job can read the stored input. A run whose job this
    /// program does not have is reported as [`Verdict::NoCode`](crate::Verdict::NoCode). If
    /// programs share a database, each reports the runs of the others this way: inspect the
    /// findings.
    ///
    /// A run keeps the queue of its enqueue. If this app does not serve the queue, as after a
    /// change of the job's `queue`, `verify` reports [`Verdict::NoQueue`](crate::Verdict::NoQueue).
    /// Verify with the same [`queues`](Self::queues) as the worker.
    ///
    /// A node of a graph that waits for other nodes has no record. `verify` checks that the program
    /// has the node's job in its version, and that every required parameter is in the call or comes
    /// from another node. It does not check the types of the values. For a [map](crate::Graph::map)
    /// node that has not started, it checks that the program has the job of the items, and that an
    /// item provides every required parameter. If the call has the list, `verify` reads each item
    /// like a stored input. Gates and unfinished graphs need no code and are not counted.
    ///
    /// `verify` reads the output of a child or a graph from the record of its workflow. It does not
    /// check the output of a child or graph that has ended while the workflow waits for another
    /// one.
    ///
    /// The program must still be able to compensate the recorded steps of sagas. If the job of a
    /// recorded compensation is missing, or cannot read its recorded input, `verify` reports a
    /// finding at `compensate[key]`. It does so for running and for compensating runs. It does not
    /// check finished compensations.
    ///
    /// If a workflow awaits something other than a step, `verify` waits up to 5 s for it.
    ///
    /// # Errors
    /// [`ClientError`] for invalid code, as in [`start`](Self::start), or for a database error.
    ///
    /// # Cost
    /// At most three statements for each page of up to 64 runs. Pages of large runs are smaller.
    pub async fn verify(self) -> Result<Verification, ClientError> {
        let registry = self.code()?;
        let queues = self.served_queues(&registry);
        rehearsal::verify(&self.db, Arc::new(registry), Arc::new(self.provided), &queues).await
    }
}

/// Calls [`App::verify`] for every job that is linked into the program, on the database of
/// [`Db::from_env_read_only`]. Logs the summary, and also prints it to standard error if a run does
/// not replay. Does not change the schema, so it works on a standby too.
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
