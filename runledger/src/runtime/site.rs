//! Where in a program its code stands: what may be asked of the engine depends on that, and no type tells.

use std::cell::Cell;
use std::future::Future;

/// Where the code stands that a thread runs just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// In the body of a job, or in no code of the engine's at all.
    Elsewhere,
    /// In the body of a workflow, between its steps: a replay does it again.
    BetweenSteps,
    /// In the body of an inline step: a replay skips it.
    InlineStep,
}

thread_local! {
    static SITE: Cell<Site> = const { Cell::new(Site::Elsewhere) };
}

impl Site {
    /// Whether the code stands here.
    pub(crate) fn is_here(self) -> bool {
        SITE.get() == self
    }

    /// Enters it, until the guard is dropped. A panic leaves it too.
    pub(crate) fn enter(self) -> Entered {
        Entered { outer: SITE.replace(self) }
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
    outer: Site,
}

impl Drop for Entered {
    fn drop(&mut self) {
        SITE.set(self.outer);
    }
}
