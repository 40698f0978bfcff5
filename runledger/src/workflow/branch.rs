//! Branches: parts of a workflow that execute concurrently.

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
use crate::engine::attempt::stop::StopReason;
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::name::check_name;

impl Wf {
    /// Returns a branch: a view of this run with its own steps, for a concurrent part of the
    /// workflow.
    ///
    /// Its keys are `name/step`, counted within the branch. So they do not depend on the order in
    /// which the branches are polled; `tokio::select!` polls in random order. A second branch with
    /// the same name is `name#2`. A branch costs nothing.
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
        // Branches of a name are counted, but a replay would skip this one.
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

    /// Returns the output of the first step to end, and its index.
    ///
    /// The steps may be calls, sleeps, waits for signals and results of children. The others are
    /// dropped: their bodies may have run, and may be recorded. A [saga](Self::saga) compensates
    /// its dropped steps. A dropped wait for a signal consumes no signal.
    ///
    /// All steps must have the same output type; convert with [`Step::map_ok`]. To mix waits for
    /// signals with other steps, convert them to a [`Step`] with `.into()`.
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
    /// The failure of the step that ended first. Or there are no steps.
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

/// A concurrent part of a workflow, made by [`Wf::branch`]. It is a [`Wf`] with its own keys.
#[derive(Debug)]
pub struct Branch<'wf> {
    wf: Wf,
    /// Lives as long as the workflow's view, so a branch cannot move into a spawned task either.
    marker: PhantomData<&'wf Wf>,
}

impl Deref for Branch<'_> {
    type Target = Wf;

    fn deref(&self) -> &Wf {
        &self.wf
    }
}

/// A race of steps, made by [`Wf::race`].
#[must_use = "a race does nothing until it is awaited"]
#[derive(Debug)]
pub struct Race<'wf, T>(futures_util::future::SelectAll<Step<'wf, T>>);

impl<T> Future for Race<'_, T> {
    type Output = Result<(usize, T), StepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|(result, place, _)| result.map(|output| (place, output)))
    }
}
