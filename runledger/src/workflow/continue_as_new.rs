//! Continuation: the same run continues with a fresh history, or with a fresh attempt.

use std::future::{Future, pending};
use std::time::Duration;

use super::{Wf, nested, not_for_a_step};
use crate::connection::code_context::CodeContext;
use crate::definition::call::{Call, is_workflow};
use crate::definition::job::Job;
use crate::engine::attempt::Attempt;
use crate::engine::attempt::context::Context;
use crate::engine::attempt::stop::StopReason;
use crate::model::payload::{PayloadKind, Place};
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::timestamp::FURTHEST;

impl Wf {
    /// Continues this run as new: the same run executes the workflow again with other arguments.
    ///
    /// The run keeps its handle, its unreceived signals and its children. Its recorded steps are
    /// deleted, and its count of attempts starts over. Use it for endless loops, whose history
    /// would grow forever:
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use runledger::prelude::*;
    /// # #[job] async fn report(day: u32) -> Result<()> { drop(day.to_string()); Ok(()) }
    /// #[workflow]
    /// async fn nightly(wf: &Wf, day: u32) -> Result<()> {
    ///     wf.run(report(day)).await?;
    ///     wf.sleep(Duration::from_secs(24 * 60 * 60)).await?;
    ///     wf.continue_as_new(nightly(day + 1)).await
    /// }
    /// ```
    ///
    /// The future never completes: the attempt ends when it is awaited, including all steps in
    /// flight. `call` must be of this workflow. Of its options, only `delay` is allowed. The steps
    /// of a [`Saga`](crate::Saga) are no longer compensated. Published values are deleted; publish
    /// them again.
    ///
    /// In the body of a step, this call fails the run: a replay would skip it together with the
    /// step.
    ///
    /// # Cost
    /// One statement, and the deletion of the recorded steps. Afterwards a step of the same key has
    /// another [`idempotency_key`](Context::idempotency_key) and starts another child.
    pub fn continue_as_new<J: Job, T>(&self, call: Call<J>) -> impl Future<Output = T> {
        let was_inside = CodeContext::InlineStep.is_here();
        async move {
            let stop = if was_inside || CodeContext::InlineStep.is_here() {
                StopReason::Refused(nested("continue_as_new"))
            } else {
                anew(&self.attempt, call).unwrap_or_else(|stop| stop)
            };
            self.attempt.stop(stop);
            pending().await
        }
    }
}

impl Context {
    /// Ends this attempt after a part of the work. The run continues at once or after a delay.
    ///
    /// It is the same run with the same arguments, and its count of attempts starts over. The next
    /// attempt finds the position in [`last_progress`](Self::last_progress). The future never
    /// completes, so the body cannot return an output as well.
    ///
    /// In a step, a workflow or a transactional job, this call fails the run with the reason. A
    /// workflow has [`Wf::continue_as_new`]. A transaction would be lost.
    ///
    /// # Cost
    /// One statement.
    pub async fn continue_later<T>(&self, delay: Duration) -> T {
        let definition = self.of_attempt().definition;
        let stop = if self.step_key().is_some() || is_workflow(definition) || definition.transactional {
            let message = "`continue_later` ends an attempt of a job's own run: it means nothing in a step, a workflow or a transaction";
            StopReason::Refused(Failure::new(FailureKind::Setup, message))
        } else {
            StopReason::Continued { input: None, delay: delay.min(FURTHEST) }
        };
        self.of_attempt().stop(stop);
        pending().await
    }
}

fn anew<J: Job>(attempt: &Attempt, call: Call<J>) -> Result<StopReason, StopReason> {
    let refused = StopReason::Refused;
    let own = attempt.definition;
    if J::DEFINITION.stored_name() != own.stored_name() {
        let message = format!(
            "workflow `{}` cannot continue as `{}`: a run stays one of its own workflow and version; start the other as a child, or enqueue it",
            own.stored_name(),
            J::DEFINITION.stored_name()
        );
        return Err(refused(Failure::new(FailureKind::Setup, message)));
    }
    if let Some(option) = call.request.said_beyond(&["delay"]) {
        return Err(refused(not_for_a_step(own.name, option)));
    }
    let delay = call.request.options.delay_us.and_then(|micros| u64::try_from(micros).ok()).unwrap_or(0);
    let input =
        call.request.input.map_err(|error| refused(Failure::from_chain(FailureKind::Encode, &error)))?;
    let place = Place::new(attempt.fence.run_id, PayloadKind::Input, "");
    let input = attempt.sealer().seal(&place, input).map_err(|error| StopReason::of_payload(&error))?;
    Ok(StopReason::Continued { input: Some(input), delay: Duration::from_micros(delay).min(FURTHEST) })
}
