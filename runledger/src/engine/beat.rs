//! Bodies with a heartbeat: they must report progress within a limit.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::definition::invocation::Finished;
use crate::engine::attempt::Attempt;
use crate::engine::step::Try;
use crate::model::run::failure::{Failure, FailureKind};

/// Wraps a try. Drops and fails it when it has reported no progress for longer than the limit.
pub(crate) fn watched<'a>(
    attempt: &'a Attempt,
    key: &'a str,
    limit: Option<Duration>,
    body: Try<'a>,
) -> Try<'a> {
    match limit {
        None => body,
        Some(limit) => Box::pin(beating(attempt, key, limit, body)),
    }
}

async fn beating(attempt: &Attempt, key: &str, limit: Duration, mut body: Try<'_>) -> Finished {
    let mut heard_at = attempt.beat(key);
    loop {
        if let Ok(finished) = timeout_at(heard_at + limit, &mut body).await {
            return finished;
        }
        heard_at = attempt.last_beat(key);
        if heard_at + limit <= Instant::now() {
            let message = format!(
                "said nothing of its progress for {limit:?} and was dropped at its last await; call `context.progress` more often, or raise \
                 its `heartbeat` (of a job) or `heartbeat_timeout` (of a step)"
            );
            return Finished::failed(Failure::new(FailureKind::Timeout, message));
        }
    }
}
