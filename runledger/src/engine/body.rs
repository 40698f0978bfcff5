//! Calls the bodies of jobs. A test can replace them (feature `testing`).

use std::sync::Arc;

use crate::definition::invocation::Invocation;
use crate::definition::{Definition, RunFuture};
use crate::engine::attempt::Attempt;
use crate::engine::step::Try;

/// Starts one try of a job's body.
pub(crate) fn run(definition: &'static Definition, invocation: Invocation) -> RunFuture {
    #[cfg(feature = "testing")]
    if let Some(hooks) = crate::engine::test_hooks::worker_hooks(&invocation.provided) {
        return hooks.run(definition, invocation);
    }
    (definition.run)(invocation)
}

/// Wraps one try of the body of a step, or of a job that is its own run. It begins when it is
/// polled.
#[cfg_attr(not(feature = "testing"), expect(unused_variables, reason = "only a test looks at what is tried"))]
pub(crate) fn around<'a>(
    attempt: &'a Arc<Attempt>,
    key: &'a str,
    in_transaction: bool,
    begin: impl FnOnce() -> Try<'a> + Send + 'a,
) -> Try<'a> {
    #[cfg(feature = "testing")]
    if let Some(hooks) = crate::engine::test_hooks::worker_hooks(&attempt.provided) {
        return Box::pin(async move { hooks.around(attempt.fence.run_id, key, in_transaction, begin).await });
    }
    begin()
}
