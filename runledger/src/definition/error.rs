//! The error that the body of a job returns.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::connection::client_error::ClientError;
use crate::definition::step_error::StepError;
use crate::model::run::failure::{Failure, FailureKind, Retry};

/// The result of a body.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// The error of a job's or workflow's body: any error, and how to retry it.
///
/// `?` converts every error: those of the standard library, of `sqlx` and of `anyhow`, and plain
/// text. Such an error follows the job's retry policy. [`Error::terminal`] prevents retries, and
/// [`Error::retry_after`] sets the delay. [`ResultExt`] does the same for any `Result`.
///
/// Like `anyhow::Error`, this type does not implement [`std::error::Error`]; otherwise `?` could
/// not convert every error.
pub struct Error {
    source: BoxError,
    retry: Retry,
}

impl Error {
    /// Creates an error that is not retried: the run, or the step, fails at once.
    pub fn terminal(error: impl Into<BoxError>) -> Self {
        Self { source: error.into(), retry: Retry::Never }
    }

    /// Creates an error that is retried after `delay`, while attempts are left.
    pub fn retry_after(error: impl Into<BoxError>, delay: Duration) -> Self {
        Self { source: error.into(), retry: Retry::After(delay) }
    }

    /// The wrapped error.
    #[must_use]
    pub fn as_std(&self) -> &(dyn StdError + 'static) {
        self.source.as_ref()
    }

    /// The failure to record.
    pub(crate) fn to_failure(&self) -> Failure {
        Failure::from_chain_of(FailureKind::Error, self.as_std(), parts)
    }

    pub(crate) fn retry(&self) -> Retry {
        match self.retry {
            Retry::Policy => match (find::<Mark>(self.as_std()), find::<StepError>(self.as_std())) {
                (Some(mark), _) => mark.retry,
                // A set-up error of a step would occur again.
                (None, Some(step)) if step.failure().kind == FailureKind::Setup => Retry::Never,
                (None, None) if asks_between_steps(self.as_std()) => Retry::Never,
                (None, _) => Retry::Policy,
            },
            said => said,
        }
    }
}

impl<E: Into<BoxError>> From<E> for Error {
    fn from(error: E) -> Self {
        Self { source: error.into(), retry: Retry::Policy }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_failure())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.source, f)
    }
}

/// Sets how the retry policy treats the error of any `Result`.
pub trait ResultExt<T> {
    /// Prevents retries.
    ///
    /// # Errors
    /// The error, marked as terminal.
    fn terminal(self) -> std::result::Result<T, Classified>;

    /// Retries after `delay`, while attempts are left.
    ///
    /// # Errors
    /// The error, with its delay.
    fn retry_after(self, delay: Duration) -> std::result::Result<T, Classified>;
}

impl<T, E: Into<BoxError>> ResultExt<T> for std::result::Result<T, E> {
    fn terminal(self) -> std::result::Result<T, Classified> {
        self.map_err(|error| Classified::new(error.into(), Retry::Never))
    }

    fn retry_after(self, delay: Duration) -> std::result::Result<T, Classified> {
        self.map_err(|error| Classified::new(error.into(), Retry::After(delay)))
    }
}

/// An error and how to retry it. Unlike [`Error`] it is a [`std::error::Error`], so it can pass
/// through `anyhow` and similar types.
#[derive(Debug)]
pub struct Classified(Mark);

/// The error and its class, as the source of [`Classified`]: wrappers such as `anyhow` hide the
/// type of the wrapped error, but not its source.
#[derive(Debug)]
struct Mark {
    error: BoxError,
    retry: Retry,
}

impl Classified {
    fn new(error: BoxError, retry: Retry) -> Self {
        Self(Mark { error, retry })
    }
}

impl fmt::Display for Classified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl StdError for Classified {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl StdError for Mark {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

/// Whether a workflow used the client between its steps. The next attempt would do it again.
fn asks_between_steps(error: &(dyn StdError + 'static)) -> bool {
    matches!(find::<ClientError>(error), Some(ClientError::BetweenSteps))
}

/// Splits an error whose text includes a recorded failure, so that the causes of the failure are
/// recorded one by one.
fn parts<'e>(error: &'e (dyn StdError + 'static)) -> Option<(String, &'e Failure)> {
    match (error.downcast_ref::<StepError>(), error.downcast_ref::<ClientError>()) {
        (Some(step), _) => Some((step.head(), step.failure())),
        (None, Some(client)) => client.end_of_run(),
        (None, None) => None,
    }
}

/// The first error of type `E` in a chain.
fn find<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(text: &str) -> Result<()> {
        Err(std::io::Error::other(text.to_owned()))?;
        Ok(())
    }

    #[test]
    fn any_error_converts_and_keeps_its_message() {
        let Err(error) = fails("disk") else { unreachable!() };
        assert_eq!(error.to_failure().to_string(), "disk");
        assert_eq!(error.retry(), Retry::Policy);
        let text: Result<()> = (|| Err("plain text")?)();
        assert_eq!(text.map_err(|error| error.to_string()), Err("plain text".to_owned()));
    }

    fn failure() -> Failure {
        Failure { causes: vec!["disk".to_owned()], ..Failure::new(FailureKind::Error, "no") }
    }

    #[test]
    fn step_or_run_failure_shows_reason_once_in_every_format() {
        let run_id = uuid::Uuid::nil();
        let errors: [(anyhow::Error, &str); 4] = [
            (StepError::new("pay", failure()).into(), "step `pay` failed"),
            (ClientError::RunFailed { run_id, failure: failure() }.into(), "failed"),
            (ClientError::RunCancelled { run_id, failure: failure() }.into(), "was cancelled"),
            (ClientError::RunBlocked { run_id, failure: failure() }.into(), "is blocked"),
        ];
        for (error, head) in errors {
            for text in [format!("{error}"), format!("{error:#}"), format!("{error:?}")] {
                assert_eq!(text.matches("no: disk").count(), 1, "{text}");
                assert!(text.contains(head), "{text}");
            }
            let recorded = Error::from(error).to_failure().to_string();
            assert_eq!(recorded.matches("no: disk").count(), 1, "{recorded}");
        }
    }

    #[test]
    fn causes_of_failed_step_or_run_are_recorded_separately() {
        let run_id = uuid::Uuid::nil();
        let errors = [
            Error::from(StepError::new("pay", failure())),
            Error::from(ClientError::RunFailed { run_id, failure: failure() }),
        ];
        for error in errors {
            let recorded = error.to_failure();
            assert_eq!(recorded.causes, ["no", "disk"], "{recorded:?}");
            assert!(recorded.message.ends_with(" failed"), "{recorded:?}");
        }
    }

    #[test]
    fn wrapped_reason_is_recorded_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("charging: {0}")]
        struct Wrapped(#[source] StepError);
        let wrapped = Error::from(Wrapped(StepError::new("pay", failure()))).to_failure();
        assert_eq!(
            (wrapped.message.as_str(), wrapped.causes),
            ("charging: step `pay` failed", vec!["no".to_owned(), "disk".to_owned()])
        );
        let terminal = Err::<(), _>(StepError::new("pay", failure())).terminal().unwrap_err();
        let terminal = Error::from(terminal).to_failure();
        assert_eq!(terminal.to_string(), "step `pay` failed: no: disk");
        let context = anyhow::Error::from(StepError::new("pay", failure())).context("charging");
        assert_eq!(Error::from(context).to_failure().to_string(), "charging: step `pay` failed: no: disk");
    }

    #[test]
    fn retry_class_survives_question_mark_operator() {
        let terminal: Result<()> = (|| Ok(fails("no").map_err(|e| e.to_string()).terminal()?))();
        assert_eq!(terminal.map_err(|error| error.retry()), Err(Retry::Never));
        let through_anyhow =
            anyhow::Error::from(Err::<(), _>("no").terminal().unwrap_err()).context("charging");
        let error = Error::from(through_anyhow);
        assert_eq!(error.retry(), Retry::Never);
        assert_eq!(error.to_failure().to_string(), "charging: no");
    }
}
