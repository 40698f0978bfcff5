//! Panics of code that is not the engine's, caught.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls such code. Where it panics, what is made of its words: before what it panicked with is dropped, which may panic too.
pub(crate) fn caught<T, E>(code: impl FnOnce() -> T, told: impl FnOnce(String) -> E) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        let error = told(said(payload.as_ref()));
        dispose(payload);
        error
    })
}

/// What a panic said.
fn said(payload: &(dyn Any + Send)) -> String {
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned());
    format!("panicked: {message}")
}

/// Drops the payload of a panic. It may panic in its turn, and so may the payload of that panic, which is leaked: this has to end.
fn dispose(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
}
