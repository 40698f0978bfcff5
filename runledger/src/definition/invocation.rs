//! One execution of a body: its arguments, its injected values and its outcome. Generated code uses
//! only this type.

use std::any::{Any, TypeId};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::error::Error;
use super::job::{JobResult, Payload};
use super::macro_traits::Injectable;
use super::provided::Provided;
use crate::connection::tx::Tx;
use crate::engine::attempt::Attempt;
use crate::engine::attempt::context::Context;
use crate::model::json::{self, Fields};
use crate::model::payload::Plain;
use crate::model::run::failure::{Failure, FailureKind, Retry};
use crate::store::error::{Cause, Class, cause_in_chain};

/// One execution of a body.
#[derive(Debug)]
pub struct Invocation {
    pub(crate) attempt: Arc<Attempt>,
    pub(crate) context: Context,
    pub(crate) provided: Arc<Provided>,
    pub(crate) input: Arc<str>,
    pub(crate) fields: OnceLock<Result<Fields, Failure>>,
    pub(crate) tx: Mutex<Option<Tx>>,
}

/// How one execution of a body ended.
#[derive(Debug)]
pub struct Finished {
    /// The output, or the failure and how to retry it.
    pub(crate) result: Result<Plain, (Failure, Retry)>,
    /// The transaction of a transactional body, still open.
    pub(crate) tx: Option<Tx>,
    /// An error caused by the database and not by the body: a serialization failure, a deadlock, a
    /// lost connection, or a server out of resources. The body's transaction is rolled back.
    pub(crate) undone: Option<Cause>,
}

impl Finished {
    /// An execution that failed before or outside the body. A retry cannot help.
    pub(crate) fn broken(failure: Failure) -> Self {
        Self { result: Err((failure, Retry::Never)), tx: None, undone: None }
    }

    /// An execution that panicked or timed out. The retry policy decides what follows.
    pub(crate) fn failed(failure: Failure) -> Self {
        Self { result: Err((failure, Retry::Policy)), tx: None, undone: None }
    }
}

#[expect(
    clippy::result_large_err,
    reason = "the error is the end of the try, which moves once, to the executor"
)]
impl Invocation {
    pub(crate) fn new(attempt: Arc<Attempt>, context: Context, input: Arc<str>, tx: Option<Tx>) -> Self {
        let provided = Arc::clone(&attempt.provided);
        Self { attempt, context, provided, input, fields: OnceLock::new(), tx: Mutex::new(tx) }
    }

    /// Decodes an argument.
    ///
    /// # Errors
    /// The end of this execution if the argument is missing or does not fit the type.
    pub fn arg<T: Payload>(&self, name: &'static str) -> Result<T, Finished> {
        self.fields()?.get::<T>(name).map_err(|error| self.undecodable(&error))
    }

    /// Decodes an argument that has a default.
    ///
    /// # Errors
    /// The end of this execution if the argument exists and does not fit the type.
    pub fn arg_or<T: Payload>(&self, name: &'static str, default: fn() -> T) -> Result<T, Finished> {
        let fields = self.fields()?;
        if fields.has(name) {
            fields.get::<T>(name).map_err(|error| self.undecodable(&error))
        } else {
            Ok(default())
        }
    }

    /// A provided value, or the context of this attempt.
    ///
    /// # Errors
    /// The end of this execution if the app does not provide the type.
    pub fn inject<T: Injectable>(&self) -> Result<Arc<T>, Finished> {
        if TypeId::of::<T>() == TypeId::of::<Context>() {
            let context: Arc<dyn Any + Send + Sync> = Arc::new(self.context.clone());
            if let Ok(context) = context.downcast() {
                return Ok(context);
            }
        }
        self.provided.get::<T>().ok_or_else(|| {
            let name = std::any::type_name::<T>();
            let message = format!(
                "nothing provides a `{name}`; add `.provide(…)` with one to the app that serves this job"
            );
            Finished::broken(Failure::new(FailureKind::Setup, message))
        })
    }

    /// Records that all arguments are decoded, so the body starts.
    ///
    /// # Errors
    /// The end of this execution if it is a rehearsal of a job, which only decodes the arguments.
    pub fn begin(&self) -> Result<(), Finished> {
        if self.attempt.begin() {
            return Ok(());
        }
        Err(Finished::broken(Failure::new(FailureKind::Setup, "its body is not run in a rehearsal")))
    }

    /// Takes the transaction of a transactional body.
    ///
    /// # Errors
    /// The end of this execution if the transaction was already taken.
    pub fn take_tx(&self) -> Result<Tx, Finished> {
        self.tx.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(|| {
            Finished::broken(Failure::new(FailureKind::Setup, "the transaction of this body was taken twice"))
        })
    }

    /// Ends an execution.
    pub fn finish<R: JobResult>(&self, result: R) -> Finished {
        finished(result, None)
    }

    /// Ends an execution of a transactional body. The caller commits.
    pub fn finish_tx<R: JobResult>(&self, result: R, tx: Tx) -> Finished {
        finished(result, Some(tx))
    }

    fn fields(&self) -> Result<&Fields, Finished> {
        let parsed =
            self.fields.get_or_init(|| Fields::parse(&self.input).map_err(|error| decode_failure(&error)));
        parsed.as_ref().map_err(|failure| Finished::broken(failure.clone()))
    }

    fn undecodable(&self, error: &json::DecodeError) -> Finished {
        Finished::broken(decode_failure(error))
    }
}

fn decode_failure(error: &json::DecodeError) -> Failure {
    Failure::from_chain(FailureKind::Decode, error)
}

/// Converts the result of a body into the end of its execution.
pub(crate) fn finished<R: JobResult>(result: R, tx: Option<Tx>) -> Finished {
    let (result, undone) = match result.into_result() {
        Ok(output) => (
            Plain::of(&output).map_err(|error| {
                (unstorable(Failure::from_chain(FailureKind::Encode, &error)), Retry::Never)
            }),
            None,
        ),
        Err(error) => {
            let cause = cause_in_chain(error.as_std()).filter(|cause| cause.class != Class::Permanent);
            (Err(failed(&error)), cause)
        }
    };
    Finished { result, tx, undone }
}

fn failed(error: &Error) -> (Failure, Retry) {
    (error.to_failure(), error.retry())
}

/// A retry would not help: the body has run, its effects may have happened, and its output would
/// still not be storable.
pub(crate) fn unstorable(failure: Failure) -> Failure {
    let message = format!(
        "the output cannot be stored, though the body ran and its effects may have happened: {}",
        failure.message
    );
    Failure { message, ..failure }
}
