//! Panics of bodies, caught and recorded with their place.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll};

use crate::model::failure::{Failure, FailureKind};

thread_local! {
    /// Whether this thread is polling a body, whose panics are ours to report.
    static IN_BODY: Cell<bool> = const { Cell::new(false) };
    static LOCATION: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Calls code of the program: a panic is a failure, with its place.
pub(crate) fn contained<T>(code: impl FnOnce() -> T) -> Result<T, Failure> {
    install_hook();
    let outer = IN_BODY.replace(true);
    let called = catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        let failure = failure(payload.as_ref());
        dispose(payload);
        failure
    });
    IN_BODY.set(outer);
    called
}

/// Drops the payload of a panic. It may panic in its turn, and so may the payload of that panic, which is leaked: this has to end.
fn dispose(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
}

/// A body whose panics become failures, wherever it is dropped too.
pub(crate) struct Caught<F>(Option<F>);

impl<F> Caught<F> {
    pub(crate) fn new(body: F) -> Self {
        Self(Some(body))
    }

    /// Drops the body: its failure, where a destructor panics.
    pub(crate) fn discard(&mut self) -> Option<Failure> {
        let body = self.0.take()?;
        contained(|| drop(body)).err()
    }
}

impl<F: Future + Unpin> Future for Caught<F> {
    type Output = Result<F::Output, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(body) = &mut self.0 else { return Poll::Pending };
        match contained(|| Pin::new(body).poll(cx)) {
            Ok(poll) => poll.map(Ok),
            Err(failure) => Poll::Ready(Err(failure)),
        }
    }
}

impl<F> Drop for Caught<F> {
    fn drop(&mut self) {
        if let Some(failure) = self.discard() {
            // What it said may be what payloads have; the program's own hook has been told.
            let location = failure.location.as_deref().unwrap_or_default();
            tracing::error!(location, "a body that was dropped before its end panicked in a destructor");
        }
    }
}

/// Keeps the place of a panic of a body for [`failure`]. The program's own hook is told of it as of every panic.
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

fn failure(payload: &(dyn Any + Send)) -> Failure {
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned());
    Failure { location: LOCATION.take(), ..Failure::new(FailureKind::Panic, format!("panicked: {message}")) }
}
