//! The `tracing` spans of bodies. They add the run and the step to every log line of a body.

use std::future::Future;
use std::pin::Pin;

use tracing::Instrument;

use crate::engine::attempt::Attempt;

/// A running body.
type Work<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Executes work in the span of a step, or in the span of the run if the key is empty. Costs
/// nothing without a subscriber for these spans.
///
/// The spans have the level `ERROR`, so that a subscriber for errors only also gets the run of each
/// line.
pub(crate) fn within_span<'a, T: 'a>(attempt: &Attempt, step: &str, work: Work<'a, T>) -> Work<'a, T> {
    let make = || {
        let (job, number) = (attempt.definition.name, attempt.counters.attempt);
        if step.is_empty() {
            tracing::error_span!(target: "runledger::run", "run", run_id = %attempt.fence.run_id, job, attempt = number)
        } else {
            tracing::error_span!(target: "runledger::run", "step", run_id = %attempt.fence.run_id, job, attempt = number, step)
        }
    };
    #[cfg(feature = "logs")]
    let span = {
        let of = || crate::engine::logs::Of {
            run_id: attempt.fence.run_id,
            attempt: attempt.counters.attempt.unsigned_abs(),
            step_key: step.to_owned(),
        };
        crate::engine::logs::made_for(attempt.logs.as_ref(), of, make)
    };
    #[cfg(not(feature = "logs"))]
    let span = make();
    if span.is_disabled() { work } else { Box::pin(work.instrument(span)) }
}
