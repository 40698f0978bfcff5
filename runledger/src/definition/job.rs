//! The traits of jobs, and of the types that the engine can store.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Definition;
use super::error::Error;

/// A type that can be an argument or an output. It is stored as JSON, and another process reads it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored as an argument or output of a job",
    label = "cannot be written as JSON and read back by another process",
    note = "derive `serde::Serialize` and `serde::Deserialize` for `{Self}`, and let it be `Send` and hold no references; if it belongs to the \
            application, give it to `App::provide` and take it with `#[inject]` and a reference"
)]
pub trait Payload: Serialize + DeserializeOwned + Send + 'static {}

// Without this attribute, the compiler lists every missing supertrait with the types that implement
// it, instead of the message above.
#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned + Send + 'static> Payload for T {}

/// A job or workflow. Only the macros implement it, for a hidden type that they generate with the
/// annotated function; a program cannot make a [`Definition`]. Generic code uses it as a bound.
pub trait Job: 'static {
    /// The output of a run.
    type Output: Payload;
    /// The name, the options and the body.
    const DEFINITION: &'static Definition;
}

/// The parameters of a job. A graph can fill them from the outputs of other nodes. The macros
/// implement it for every job.
pub trait Arguments: Job {
    /// The types of the stored parameters as a tuple, in the order of the definition. For a
    /// borrowed parameter, this is the owned type.
    type Types;
}

/// The return type of a body: a `Result` with any error.
#[diagnostic::on_unimplemented(
    message = "a job returns a `Result`, not `{Self}`",
    label = "not a `Result`",
    note = "return `runledger::Result<T>`, or a `Result<T, E>` with any error: of the standard library, `anyhow::Error`, or text"
)]
pub trait JobResult {
    /// The output.
    type Ok: Payload;
    /// Converts into the output or the error.
    #[doc(hidden)]
    fn into_result(self) -> Result<Self::Ok, Error>;
}

impl<T: Payload, E: JobError> JobResult for Result<T, E> {
    type Ok = T;

    fn into_result(self) -> Result<T, Error> {
        self.map_err(JobError::into_error)
    }
}

/// A type that converts into an [`Error`]. The trait exists for the compiler's message.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the error of a job",
    label = "the error of this `Result` does not convert into `runledger::Error`",
    note = "implement `std::error::Error` for `{Self}` (`thiserror` derives it), and let it be `Send + Sync + 'static`; or return \
            `runledger::Error`, `anyhow::Error` or text"
)]
pub trait JobError {
    /// Converts into the error.
    #[doc(hidden)]
    fn into_error(self) -> Error;
}

#[diagnostic::do_not_recommend]
impl<E: Into<Error>> JobError for E {
    fn into_error(self) -> Error {
        self.into()
    }
}
