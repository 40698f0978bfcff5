//! Values that are not shown.

use std::cell::Cell;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What is shown in the place of a secret.
const SHOWN: &str = "[secret]";

/// A value that neither logs nor errors show: its `Debug` and `Display` are `[secret]`. [`expose`](Self::expose) gives the value.
///
/// As a part of a payload (an argument, an output, a signal, …) it is stored, and so it needs a codec: without one
/// ([`Db::with_codec`](crate::Db::with_codec)) the call that would store it fails, and nothing is written. Any other serializer, such as that of a
/// structured log, is given the text `[secret]`.
///
/// ```
/// # use runledger::Secret;
/// let token = Secret::new("hunter2".to_owned());
/// assert_eq!(format!("{token} {token:?}"), "[secret] [secret]");
/// assert_eq!(serde_json::to_string(&token).unwrap(), "\"[secret]\"");
/// assert_eq!(token.expose(), "hunter2");
/// ```
///
/// The memory that it had is not overwritten.
#[derive(Clone, Default)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Hides a value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value.
    pub const fn expose(&self) -> &T {
        &self.0
    }

    /// The value.
    pub fn into_exposed(self) -> T {
        self.0
    }
}

impl<T> From<T> for Secret<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SHOWN)
    }
}

impl<T> fmt::Display for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SHOWN)
    }
}

impl<T: Serialize> Serialize for Secret<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match PAYLOAD.get() {
            Payload::None => serializer.serialize_str(SHOWN),
            Payload::Open | Payload::WithSecret => {
                PAYLOAD.set(Payload::WithSecret);
                self.0.serialize(serializer)
            }
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Secret<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The error of the value itself would say what it found.
        T::deserialize(deserializer).map(Self).map_err(|_| D::Error::custom("a secret of another type"))
    }
}

/// Whether this thread writes a payload, and has met a secret in it.
#[derive(Clone, Copy)]
enum Payload {
    None,
    Open,
    WithSecret,
}

thread_local! {
    static PAYLOAD: Cell<Payload> = const { Cell::new(Payload::None) };
}

/// Writes a payload, and says whether a secret is in it.
pub(super) fn noting<T>(write: impl FnOnce() -> T) -> (T, bool) {
    /// A payload that is written while another is: by a `Serialize` that keeps text of its own. What is in it counts for both. A panic ends it too.
    struct Outer(Payload);

    impl Drop for Outer {
        fn drop(&mut self) {
            let outer = match (self.0, PAYLOAD.get()) {
                (Payload::Open, Payload::WithSecret) => Payload::WithSecret,
                (outer, _) => outer,
            };
            PAYLOAD.set(outer);
        }
    }

    let _outer = Outer(PAYLOAD.replace(Payload::Open));
    let written = write();
    (written, matches!(PAYLOAD.get(), Payload::WithSecret))
}
