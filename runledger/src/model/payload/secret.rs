//! Values that logs and errors hide.

use std::cell::Cell;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The text that replaces a secret.
const SHOWN: &str = "[secret]";

/// A value that logs and errors hide: its `Debug` and `Display` are `[secret]`.
/// [`expose`](Self::expose) returns the value.
///
/// In a payload (an argument, an output, a signal, …) the value is stored, so it needs a codec
/// ([`Db::with_codec`](crate::Db::with_codec)). Without a codec, the call that would store it
/// fails, and nothing is written. Any other serializer, such as one of a structured log, receives
/// the text `[secret]`.
///
/// ```
/// # use runledger::Secret;
/// let token = Secret::new("hunter2".to_owned());
/// assert_eq!(format!("{token} {token:?}"), "[secret] [secret]");
/// assert_eq!(serde_json::to_string(&token).unwrap(), "\"[secret]\"");
/// assert_eq!(token.expose(), "hunter2");
/// ```
///
/// A dropped secret does not overwrite its memory.
#[derive(Clone, Default)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Hides a value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// Returns a reference to the value.
    pub const fn expose(&self) -> &T {
        &self.0
    }

    /// Returns the value.
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
        // The original error would quote the value.
        T::deserialize(deserializer).map(Self).map_err(|_| D::Error::custom("a secret of another type"))
    }
}

/// Whether this thread is writing a payload, and whether the payload contains a secret.
#[derive(Clone, Copy)]
enum Payload {
    None,
    Open,
    WithSecret,
}

thread_local! {
    static PAYLOAD: Cell<Payload> = const { Cell::new(Payload::None) };
}

/// Runs `write`, which writes a payload. Also returns whether the payload contains a secret.
pub(super) fn noting<T>(write: impl FnOnce() -> T) -> (T, bool) {
    /// The outer payload, if a `Serialize` writes a payload inside another one. A secret in the
    /// inner payload counts for both. The guard also works on a panic.
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
