//! Where in a program its code stands: what may be asked of the engine depends on that, and no type tells.

use std::cell::Cell;
use std::future::Future;

/// Where the code stands that a thread runs just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeContext {
    /// In the body of a job, or in no code of the engine's at all.
    Other,
    /// In the body of a workflow, between its steps: a replay does it again.
    BetweenSteps,
    /// In the body of an inline step: a replay skips it.
    InlineStep,
}

thread_local! {
    static CONTEXT: Cell<CodeContext> = const { Cell::new(CodeContext::Other) };
    /// Whether something was refused because of the site.
    static HAS_REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is no place for what is done again at every replay. Who polls the code can ask for it afterwards: [`take_refusal`].
pub(crate) fn refuses_effects() -> bool {
    let refuses = CodeContext::BetweenSteps.is_here();
    if refuses {
        HAS_REFUSED.set(true);
    }
    refuses
}

/// Whether anything was refused on this thread since the last question.
#[cfg(feature = "worker")]
pub(crate) fn take_refusal() -> bool {
    HAS_REFUSED.take()
}

impl CodeContext {
    /// Whether the code stands here.
    pub(crate) fn is_here(self) -> bool {
        CONTEXT.get() == self
    }

    /// Enters it, until the guard is dropped. A panic leaves it too.
    pub(crate) fn enter(self) -> Entered {
        Entered { outer: CONTEXT.replace(self) }
    }

    /// A future that is polled here.
    pub(crate) async fn of<F: Future>(self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| {
            let _entered = self.enter();
            future.as_mut().poll(cx)
        })
        .await
    }
}

/// While it lives, this thread runs code of another site.
pub(crate) struct Entered {
    outer: CodeContext,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CONTEXT.set(self.outer);
    }
}
