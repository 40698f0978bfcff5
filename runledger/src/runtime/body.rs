//! Where the bodies of jobs are entered. A test can put others in their place (feature `testing`); without it there is nothing here.

use std::sync::Arc;

use super::attempt::Attempt;
use super::step::Try;
use crate::api::definition::{Definition, RunFuture};
use crate::api::invocation::Invocation;

/// Starts one try of a job's body.
pub(crate) fn run(definition: &'static Definition, invocation: Invocation) -> RunFuture {
    #[cfg(feature = "testing")]
    if let Some(part) = super::scene::part(&invocation.provided) {
        return part.run(definition, invocation);
    }
    (definition.run)(invocation)
}

/// One try of the body of a step, or of a job that is a run of its own: it begins when it is polled.
#[cfg(not(feature = "testing"))]
pub(crate) fn around<'a>(
    _attempt: &'a Arc<Attempt>,
    _key: &'a str,
    _in_transaction: bool,
    begin: impl FnOnce() -> Try<'a> + Send + 'a,
) -> Try<'a> {
    begin()
}

/// One try of the body of a step, or of a job that is a run of its own: it begins when it is polled.
#[cfg(feature = "testing")]
pub(crate) fn around<'a>(
    attempt: &'a Arc<Attempt>,
    key: &'a str,
    in_transaction: bool,
    begin: impl FnOnce() -> Try<'a> + Send + 'a,
) -> Try<'a> {
    let Some(part) = super::scene::part(&attempt.provided) else { return begin() };
    Box::pin(async move { part.around(attempt.fence.run_id, key, in_transaction, begin).await })
}
