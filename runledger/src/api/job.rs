//! The trait underneath the macros, and what may be stored.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::definition::Definition;
use super::error::Error;

/// What can be an argument or an output: it is stored as JSON and read back in another process.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored as an argument or output",
    label = "this type does not survive the way through the database",
    note = "derive `serde::Serialize` and `serde::Deserialize`, and hold no references; what cannot be stored belongs into `App::provide` and `#[inject]`"
)]
pub trait Payload: Serialize + DeserializeOwned + Send + 'static {}

impl<T: Serialize + DeserializeOwned + Send + 'static> Payload for T {}

/// A job or workflow. The macros implement it for a hidden type beside the annotated function; libraries and generic code may implement it by
/// hand, with a [`Definition`] of their own.
pub trait Job: 'static {
    /// What a run gives.
    type Output: Payload;
    /// Its name, its options and how to run it.
    const DEFINITION: &'static Definition;
}

/// What a body may return: a `Result` with any error.
#[diagnostic::on_unimplemented(
    message = "a job returns a `Result`, not `{Self}`",
    label = "this is not a `Result` whose value can be stored and whose error can be kept",
    note = "return `runledger::Result<T>`, or a `Result<T, E>` with any error: of the standard library, `anyhow::Error`, or text"
)]
pub trait JobResult {
    /// The output.
    type Ok: Payload;
    /// The output or the error.
    #[doc(hidden)]
    fn into_result(self) -> Result<Self::Ok, Error>;
}

impl<T: Payload, E: Into<Error>> JobResult for Result<T, E> {
    type Ok = T;

    fn into_result(self) -> Result<T, Error> {
        self.map_err(Into::into)
    }
}
