//! The spans of `tracing` in which bodies work: what they log says of which run and which step it is.

use std::future::Future;
use std::pin::Pin;

use tracing::Instrument;

use super::attempt::Attempt;

/// A body on its way.
type Work<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Does this work in the span of a step, or with an empty key in that of the run itself. Costs nothing where nobody listens to such spans.
///
/// They are of the level of errors, so that who listens to errors alone is told of which run each is.
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
        let of = || super::logs::Of {
            run_id: attempt.fence.run_id,
            attempt: attempt.counters.attempt.unsigned_abs(),
            step_key: step.to_owned(),
        };
        super::logs::made_for(attempt.logs.as_ref(), of, make)
    };
    #[cfg(not(feature = "logs"))]
    let span = make();
    if span.is_disabled() { work } else { Box::pin(work.instrument(span)) }
}
