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

/// A body whose panics become failures.
pub(crate) struct Caught<F>(pub(crate) F);

impl<F: Future + Unpin> Future for Caught<F> {
    type Output = Result<F::Output, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        install_hook();
        let nested = IN_BODY.replace(true);
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut self.0).poll(cx)));
        IN_BODY.set(nested);
        match polled {
            Ok(poll) => poll.map(Ok),
            Err(payload) => Poll::Ready(Err(failure(payload.as_ref()))),
        }
    }
}

/// Keeps the place of a panic for [`failure`], and leaves every other panic to the program's own hook.
fn install_hook() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if IN_BODY.get() {
                LOCATION.set(info.location().map(ToString::to_string));
            } else {
                previous(info);
            }
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
