//! Catches panics of bodies and records them with their place.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll};

use super::code_context::CodeContext;
use crate::model::panic::caught;
use crate::model::run::failure::{Failure, FailureKind};

thread_local! {
    /// Whether this thread is polling a body, so the engine reports its panics.
    static IN_BODY: Cell<bool> = const { Cell::new(false) };
    static LOCATION: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Calls code of the program. Returns a panic as a failure with its place.
pub(crate) fn contained<T>(code: impl FnOnce() -> T) -> Result<T, Failure> {
    install_hook();
    let outer = IN_BODY.replace(true);
    let called = caught(code, failure);
    IN_BODY.set(outer);
    called
}

/// A body whose panics become failures, including a panic while it is dropped.
pub(crate) struct Caught<F> {
    body: Option<F>,
    site: CodeContext,
}

impl<F> Caught<F> {
    /// Wraps a body that runs in this context.
    pub(crate) fn new(site: CodeContext, body: F) -> Self {
        Self { body: Some(body), site }
    }

    /// Drops the body. Returns a failure if a destructor panics.
    pub(crate) fn discard(&mut self) -> Option<Failure> {
        let body = self.body.take()?;
        contained(|| drop(body)).err()
    }
}

impl<F: Future + Unpin> Future for Caught<F> {
    type Output = Result<F::Output, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let site = self.site;
        let Some(body) = &mut self.body else { return Poll::Pending };
        let poll = || {
            let _entered = site.enter();
            Pin::new(body).poll(cx)
        };
        match contained(poll) {
            Ok(poll) => poll.map(Ok),
            Err(failure) => Poll::Ready(Err(failure)),
        }
    }
}

impl<F> Drop for Caught<F> {
    fn drop(&mut self) {
        if let Some(failure) = self.discard() {
            // The log omits the message, which may contain payloads. The program's own hook has
            // already received it.
            let location = failure.location.as_deref().unwrap_or_default();
            tracing::error!(location, "a body that was dropped before its end panicked in a destructor");
        }
    }
}

/// Stores the place of a body's panic for [`failure`]. The program's own hook still receives every
/// panic.
fn install_hook() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if IN_BODY.get() {
                LOCATION.set(info.location().map(ToString::to_string));
            }
            previous(info);
        }));
    });
}

fn failure(said: String) -> Failure {
    Failure { location: LOCATION.take(), ..Failure::new(FailureKind::Panic, said) }
}
