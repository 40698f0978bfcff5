//! Branches: parts of a workflow that go on beside one another.

use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::select_all;

use super::step::Step;
use super::{Wf, nested, refused};
use crate::connection::code_context::CodeContext;
use crate::definition::step_error::StepError;
use crate::engine::stop::StopReason;
use crate::model::failure::{Failure, FailureKind};
use crate::model::name::check_name;

impl Wf {
    /// A branch: a view of this run with steps of its own, for a part of the workflow that goes on beside others. Its keys are `name/step`, counted
    /// within the branch, so they are the same whatever order the branches are polled in: `tokio::select!` begins with any of them.
    ///
    /// Costs nothing. A second branch of a name is `name#2`.
    ///
    /// ```no_run
    /// # use runledger::prelude::*;
    /// # #[job] async fn pick(item: u32) -> Result<u32> { Ok(item) }
    /// # #[job] async fn pack(item: u32) -> Result<u32> { Ok(item) }
    /// #[workflow]
    /// async fn ship(wf: &Wf, item: u32) -> Result<u32> {
    ///     let (goods, papers) = (wf.branch("goods"), wf.branch("papers"));
    ///     let goods = async {
    ///         let picked = goods.run(pick(item)).await?;
    ///         goods.run(pack(picked)).await
    ///     };
    ///     let (packed, _) = tokio::try_join!(goods, papers.run(pick(0)))?;
    ///     Ok(packed)
    /// }
    /// ```
    pub fn branch(&self, name: &str) -> Branch<'_> {
        let checked =
            check_name("branch", name).map_err(|error| Failure::new(FailureKind::Setup, error.to_string()));
        // Branches of a name are counted, and a replay would not count this one.
        let checked = if CodeContext::InlineStep.is_here() { Err(nested("branch")) } else { checked };
        let scope = match checked {
            Ok(()) => self.attempt.branch(&self.scope, name),
            Err(failure) => {
                self.attempt.stop(StopReason::Refused(failure));
                self.scope.clone()
            }
        };
        Branch { wf: Self { attempt: self.attempt.clone(), scope }, marker: PhantomData }
    }

    /// The first of several steps to end, and its place among them: of calls, sleeps, waits for signals and results of children alike. The others are
    /// dropped: their bodies may have run, and may be recorded. Those of a [saga](Self::saga) are taken back with it, and a wait for a signal has taken none.
    ///
    /// All give one type; [`Step::map_ok`] makes one of several. Where waits for signals are among other steps, `.into()` makes a [`Step`] of them.
    ///
    /// ```no_run
    /// # use runledger::prelude::*;
    /// # #[job] async fn ask(name: &str) -> Result<bool> { Ok(name.is_empty()) }
    /// #[workflow]
    /// async fn decide(wf: &Wf) -> Result<bool> {
    ///     let (_, decided) = wf.race([wf.signal("ann"), wf.signal("ben")]).await?;
    ///     let (_, again) = wf.race([wf.run(ask("ann")), wf.signal("ben").into()]).await?;
    ///     Ok(decided && again)
    /// }
    /// ```
    ///
    /// # Errors
    /// That of the step that ended first; there are no steps.
    pub fn race<'wf, T: 'wf, S>(&'wf self, steps: impl IntoIterator<Item = S>) -> Race<'wf, T>
    where
        S: Into<Step<'wf, T>>,
    {
        let mut steps: Vec<Step<'wf, T>> = steps.into_iter().map(Into::into).collect();
        if steps.is_empty() {
            let message = "a race needs a step: none would ever end";
            steps.push(refused("race", Failure::new(FailureKind::Setup, message)));
        }
        Race(select_all(steps))
    }
}

/// A part of a workflow, made by [`Wf::branch`]. It is a [`Wf`] with keys of its own.
#[derive(Debug)]
pub struct Branch<'wf> {
    wf: Wf,
    /// As long as the workflow's own: a branch cannot be moved into a spawned task either.
    marker: PhantomData<&'wf Wf>,
}

impl Deref for Branch<'_> {
    type Target = Wf;

    fn deref(&self) -> &Wf {
        &self.wf
    }
}

/// Steps of which the first to end counts, made by [`Wf::race`].
#[must_use = "a race does nothing until it is awaited"]
#[derive(Debug)]
pub struct Race<'wf, T>(futures_util::future::SelectAll<Step<'wf, T>>);

impl<T> Future for Race<'_, T> {
    type Output = Result<(usize, T), StepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|(result, place, _)| result.map(|output| (place, output)))
    }
}
