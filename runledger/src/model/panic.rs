//! Catches panics of code outside the engine.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls code that may panic. On a panic, converts the message with `told` before it drops the
/// payload, because the drop may panic too.
pub(crate) fn caught<T, E>(code: impl FnOnce() -> T, told: impl FnOnce(String) -> E) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        let error = told(said(payload.as_ref()));
        dispose(payload);
        error
    })
}

/// The message of a panic.
fn said(payload: &(dyn Any + Send)) -> String {
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned());
    format!("panicked: {message}")
}

/// Drops the payload of a panic. The drop may panic, and so may the drop of that second payload.
/// The second payload is leaked, so that this ends.
fn dispose(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    fn told(code: fn()) -> Result<(), String> {
        caught(code, |said| said)
    }

    #[test]
    fn panic_payload_of_any_type_is_reported() {
        assert_eq!(told(|| ()), Ok(()));
        assert_eq!(told(|| panic!("no")), Err("panicked: no".to_owned()));
        assert_eq!(told(|| panic!("no {}", 1)), Err("panicked: no 1".to_owned()));
        assert_eq!(told(|| panic_any(1)), Err("panicked: a panic without a message".to_owned()));
    }

    /// Panics when it is dropped, with a payload that panics in its drop, `self.0` levels deep.
    struct Panics(u32);

    impl Drop for Panics {
        fn drop(&mut self) {
            if let Some(left) = self.0.checked_sub(1) {
                panic_any(Self(left));
            }
            panic!("dropped");
        }
    }

    #[test]
    fn panic_while_dropping_panic_payload_is_contained() {
        for code in [|| panic_any(Panics(0)), || panic_any(Panics(1)), || panic_any(Panics(9))] {
            assert_eq!(told(code), Err("panicked: a panic without a message".to_owned()));
        }
    }
}
