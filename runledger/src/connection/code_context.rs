//! Where in a program the current code runs. It decides which calls the engine allows, and no type
//! shows it.

use std::cell::Cell;
use std::future::Future;

/// Where the current code of a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeContext {
    /// In the body of a job, or outside the engine.
    Other,
    /// In the body of a workflow, between its steps. Every replay repeats this code.
    BetweenSteps,
    /// In the body of an inline step. Replay skips this code.
    InlineStep,
}

thread_local! {
    static CONTEXT: Cell<CodeContext> = const { Cell::new(CodeContext::Other) };
    /// Whether the engine refused something because of the context.
    static HAS_REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a replay would repeat effects of the current code. The poller of the code can read a
/// refusal afterwards: [`take_refusal`].
pub(crate) fn refuses_effects() -> bool {
    let refuses = CodeContext::BetweenSteps.is_here();
    if refuses {
        HAS_REFUSED.set(true);
    }
    refuses
}

/// Whether the engine refused something on this thread since the last call.
#[cfg(feature = "worker")]
pub(crate) fn take_refusal() -> bool {
    HAS_REFUSED.take()
}

impl CodeContext {
    /// Whether the current code runs in this context.
    pub(crate) fn is_here(self) -> bool {
        CONTEXT.get() == self
    }

    /// Enters the context until the guard is dropped. A panic leaves it too.
    pub(crate) fn enter(self) -> Entered {
        Entered { outer: CONTEXT.replace(self) }
    }

    /// Polls a future in this context.
    pub(crate) async fn of<F: Future>(self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| {
            let _entered = self.enter();
            future.as_mut().poll(cx)
        })
        .await
    }
}

/// Keeps the thread in a context until it is dropped.
pub(crate) struct Entered {
    outer: CodeContext,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CONTEXT.set(self.outer);
    }
}
