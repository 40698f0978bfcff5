//! The trait underneath the macros, and what may be stored.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Definition;
use super::error::Error;

/// What can be an argument or an output: it is stored as JSON and read back in another process.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored as an argument or output of a job",
    label = "cannot be written as JSON and read back by another process",
    note = "derive `serde::Serialize` and `serde::Deserialize` for `{Self}`, and let it be `Send` and hold no references; if it belongs to the \
            application, give it to `App::provide` and take it with `#[inject]` and a reference"
)]
pub trait Payload: Serialize + DeserializeOwned + Send + 'static {}

// Otherwise the compiler names every supertrait that is missing, each with the types that have it, and not what they are wanted for.
#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + Send + 'static> Payload for T {}

/// A job or workflow. Only the macros implement it, for a hidden type that they generate with the annotated
/// function; a program cannot make a [`Definition`]. Generic code uses it as a bound.
pub trait Job: 'static {
    /// What a run gives.
    type Output: Payload;
    /// Its name, its options and how to run it.
    const DEFINITION: &'static Definition;
}

/// The parameters of a job. A graph can fill them from the outputs of other nodes. The macros implement it
/// for every job.
pub trait Arguments: Job {
    /// The types of the parameters that are stored, in the order of those of its definition, as a tuple: what owns what a parameter borrows.
    type Types;
}

/// What a body may return: a `Result` with any error.
#[diagnostic::on_unimplemented(
    message = "a job returns a `Result`, not `{Self}`",
    label = "not a `Result`",
    note = "return `runledger::Result<T>`, or a `Result<T, E>` with any error: of the standard library, `anyhow::Error`, or text"
)]
pub trait JobResult {
    /// The output.
    type Ok: Payload;
    /// The output or the error.
    #[doc(hidden)]
    fn into_result(self) -> Result<Self::Ok, Error>;
}

impl<T: Payload, E: JobError> JobResult for Result<T, E> {
    type Ok = T;

    fn into_result(self) -> Result<T, Error> {
        self.map_err(JobError::into_error)
    }
}

/// What converts into an [`Error`], under a name that the compiler can explain.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the error of a job",
    label = "the error of this `Result` does not convert into `runledger::Error`",
    note = "implement `std::error::Error` for `{Self}` (`thiserror` derives it), and let it be `Send + Sync + 'static`; or return \
            `runledger::Error`, `anyhow::Error` or text"
)]
pub trait JobError {
    /// The error.
    #[doc(hidden)]
    fn into_error(self) -> Error;
}

#[diagnostic::do_not_recommend]
impl<E: Into<Error>> JobError for E {
    fn into_error(self) -> Error {
        self.into()
    }
}
