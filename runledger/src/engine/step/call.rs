//! Calls of jobs as steps.

use std::sync::Arc;
use std::time::Duration;

use crate::definition::Definition;
use crate::definition::invocation::Invocation;
use crate::definition::registry::Registry;
use crate::engine::attempt::Attempt;
use crate::engine::attempt::context::Context;
use crate::engine::body::run;
use crate::engine::step::{Body, StepPolicy, Try};
use crate::model::run::request::RequestOptions;
use crate::model::run::settle::RetryPolicy;

/// The body of a job, as a step of this attempt.
pub(crate) fn body_of<'a>(
    definition: &'static Definition,
    attempt: Arc<Attempt>,
    key: Arc<str>,
    input: Arc<str>,
) -> Body<'a> {
    let invoke = move |number: u32, tx| -> Try<'static> {
        let context = Context::new(Arc::clone(&attempt), definition, Some(Arc::clone(&key)), number);
        run(definition, Invocation::new(Arc::clone(&attempt), context, Arc::clone(&input), tx))
    };
    if definition.transactional {
        Body::OwnTransaction(Arc::new(move |number, tx| invoke(number, Some(tx))))
    } else {
        Body::Code(Box::new(move |number| invoke(number, None)))
    }
}

/// The policy of a call, as a step or as its own run. The options of the call come first, then the
/// operator's override, then the job's definition.
pub(crate) fn policy_of(
    said: &RequestOptions,
    definition: &'static Definition,
    registry: &Registry,
) -> StepPolicy {
    let retry = registry.policy(definition);
    StepPolicy {
        retry: RetryPolicy {
            max_attempts: said.max_attempts.unwrap_or(retry.max_attempts),
            backoff: said.backoff().unwrap_or(retry.backoff),
        },
        timeout: said.timeout_ms.map(Duration::from_millis).or_else(|| registry.timeout(definition)),
        deadline: None,
        heartbeat: definition.heartbeat,
    }
}
