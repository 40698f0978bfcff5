//! The only path of payloads to and from the database.
//!
//! In this module, to encrypt means to call [`Codec::seal`], and to decrypt means to call
//! [`Codec::open`]. A codec may also compress only.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use super::codec::{Codec, CodecError, Place, Sealed};
use super::error::PayloadError;
use super::limits::Limits;
use super::text::{Plain, Stored};
use crate::model::json::{self, fingerprint};
use crate::model::panic::caught;
use crate::model::run::failure::Failure;

/// The maximum length of a key's name, in bytes.
const MAX_KEY_ID: usize = 64;

/// Encrypts payloads before writes, decrypts them after reads, and checks their limits. Cloning is
/// cheap.
#[derive(Clone, Debug, Default)]
pub struct Sealer(Option<Arc<Inner>>);

#[derive(Clone, Default)]
struct Inner {
    codec: Option<Arc<dyn Codec>>,
    /// Whether writes are encrypted. Reads are decrypted in both cases.
    seals: bool,
    limits: Limits,
}

impl Sealer {
    /// Returns a sealer with this codec.
    #[must_use]
    pub fn with_codec(&self, codec: Arc<dyn Codec>, seals: bool) -> Self {
        Self(Some(Arc::new(Inner { codec: Some(codec), seals, limits: *self.limits() })))
    }

    /// Returns a sealer with these limits.
    #[must_use]
    pub fn with_limits(&self, limits: Limits) -> Self {
        let inner = self.0.as_deref().cloned().unwrap_or_default();
        Self(Some(Arc::new(Inner { limits, ..inner })))
    }

    pub(super) fn limits(&self) -> &Limits {
        self.0.as_ref().map_or(&Limits::DEFAULT, |inner| &inner.limits)
    }

    fn codec(&self) -> Option<&dyn Codec> {
        self.0.as_ref()?.codec.as_deref()
    }

    pub(super) fn sealing(&self) -> Option<&dyn Codec> {
        self.codec().filter(|_| self.seals())
    }

    /// Whether writes are encrypted. If so, payloads must not be shown elsewhere either.
    #[must_use]
    pub fn seals(&self) -> bool {
        self.0.as_ref().is_some_and(|inner| inner.seals)
    }

    /// Whether reads are decrypted.
    #[must_use]
    pub fn opens(&self) -> bool {
        self.codec().is_some()
    }

    /// Encrypts a payload for this place.
    ///
    /// # Errors
    /// [`PayloadError`] if the payload is too large, if the codec refuses it, or if it needs a
    /// codec.
    pub fn seal(&self, place: &Place<'_>, plain: Plain) -> Result<Stored, PayloadError> {
        self.check_size(place, &plain)?;
        self.seal_whole(place, plain)
    }

    /// Encrypts a text composed of payloads, each of which is within its limit. The whole may be as
    /// large as any JSON text.
    ///
    /// # Errors
    /// Same as [`seal`](Self::seal).
    pub fn seal_whole(&self, place: &Place<'_>, plain: Plain) -> Result<Stored, PayloadError> {
        // A program that only decrypts still encrypts secrets.
        if let Some(codec) = self.codec().filter(|_| self.seals() || plain.has_secret()) {
            return Ok(enveloped(self.sealed_by(codec, place, &plain)?));
        }
        if plain.has_secret() {
            return Err(PayloadError::SecretWithoutCodec { what: place.to_string() });
        }
        if is_envelope(&plain) {
            return Err(PayloadError::Reserved { what: place.to_string() });
        }
        Ok(Stored(plain.into_text()))
    }

    /// Decrypts a stored payload of this place.
    ///
    /// # Errors
    /// [`PayloadError`] if the payload is encrypted and cannot be decrypted.
    pub fn open(&self, place: &Place<'_>, stored: Stored) -> Result<String, PayloadError> {
        if !is_envelope(&stored.0) {
            return Ok(stored.0);
        }
        match serde_json::from_str::<Envelope>(&stored.0) {
            Ok(envelope) => self.open_sealed(place, &envelope.sealed),
            Err(_) => Err(PayloadError::Malformed { what: place.to_string() }),
        }
    }

    /// Decrypts a stored payload for storage at another place. If it was encrypted, the result must
    /// be encrypted again.
    ///
    /// # Errors
    /// Same as [`open`](Self::open).
    pub fn take_over(&self, place: &Place<'_>, stored: Stored) -> Result<Plain, PayloadError> {
        let is_sealed = is_envelope(&stored.0);
        let text = self.open(place, stored)?;
        Ok(if is_sealed { Plain::hidden(text) } else { Plain::ready(text) })
    }

    /// Encrypts a stored payload again, for another place. Ignores the size limits, because the
    /// payload was already stored.
    ///
    /// # Errors
    /// Same as [`open`](Self::open) and [`seal`](Self::seal).
    pub fn reseal(&self, from: &Place<'_>, to: &Place<'_>, stored: Stored) -> Result<Stored, PayloadError> {
        match self.codec() {
            Some(codec) if is_envelope(&stored.0) => {
                let plain = self.take_over(from, stored)?;
                Ok(enveloped(self.sealed_by(codec, to, &plain)?))
            }
            // Returns a plain payload, or the error.
            _ => self.open(from, stored).map(Stored),
        }
    }

    /// Decrypts a payload for display. If that fails, returns the stored text.
    #[must_use]
    pub fn show(&self, place: &Place<'_>, stored: Stored) -> String {
        self.open(place, stored.clone()).unwrap_or(stored.0)
    }

    /// The fingerprints of an input or a line, from its canonical text. The first is the one to
    /// store. An equal text may be recorded with any of the others. A secret never has a plain
    /// hash.
    ///
    /// # Errors
    /// [`PayloadError::Digest`], with the name of the payload, if the codec panicked.
    pub fn fingerprints(
        &self,
        plain: &Plain,
        what: impl FnOnce() -> String,
    ) -> Result<Vec<i64>, PayloadError> {
        let canonical = json::canonical(plain);
        let text = canonical.as_deref().unwrap_or(plain);
        let Some(codec) = self.codec() else {
            return Ok(vec![if plain.has_secret() { 0 } else { fingerprint(text) }]);
        };
        let bytes = text.as_bytes();
        let keyed = || std::iter::once(codec.digest(bytes)).chain(codec.old_digests(bytes)).map(number_of);
        let mut all: Vec<i64> = guarded(|| Ok(keyed().collect()))
            .map_err(|source| PayloadError::Digest { what: what(), source })?;
        // For records from before the codec, or from programs that do not encrypt yet.
        all.push(if plain.has_secret() { 0 } else { fingerprint(text) });
        if !self.seals() && !plain.has_secret() {
            all.rotate_right(1);
        }
        Ok(all)
    }

    /// Refuses an input with a secret if there is no codec. Even if the input itself is not stored,
    /// its step stores a hash of it, and the hash of a secret needs a key.
    ///
    /// # Errors
    /// [`PayloadError::SecretWithoutCodec`].
    pub fn check_secret(&self, what: &str, plain: &Plain) -> Result<(), PayloadError> {
        if plain.has_secret() && !self.opens() {
            return Err(PayloadError::SecretWithoutCodec { what: what.to_owned() });
        }
        Ok(())
    }

    /// A failure for a log, without its text if the text is encrypted.
    #[must_use]
    pub fn loggable<'f>(&self, failure: &'f Failure) -> impl fmt::Display + use<'f> {
        Loggable { failure, hides: self.seals() }
    }

    fn check_size(&self, place: &Place<'_>, plain: &Plain) -> Result<(), PayloadError> {
        let (size, limit) = (plain.len(), self.limits().of(place.kind()));
        if size <= limit {
            return Ok(());
        }
        let path = json::path_at(plain, limit);
        Err(PayloadError::TooLarge { what: place.to_string(), size, limit, path })
    }

    /// The name of the key, a colon, and the bytes in base64. In a query, `split_part(…, ':', 1)`
    /// returns the name.
    pub(super) fn sealed_by(
        &self,
        codec: &dyn Codec,
        place: &Place<'_>,
        plain: &Plain,
    ) -> Result<String, PayloadError> {
        let refused = |source| PayloadError::Seal { what: place.to_string(), source };
        let sealed = guarded(|| codec.seal(place, plain.as_bytes())).map_err(refused)?;
        if !is_key_id(sealed.key_id()) {
            let reason = format!(
                "the codec names its key `{}`, which breaks the rule for such names",
                sealed.key_id()
            );
            return Err(refused(CodecError::other(reason)));
        }
        Ok(format!("{}:{}", sealed.key_id(), BASE64.encode(sealed.bytes())))
    }

    pub(super) fn open_sealed(&self, place: &Place<'_>, text: &str) -> Result<String, PayloadError> {
        let what = || place.to_string();
        let malformed = || PayloadError::Malformed { what: what() };
        // Keys have only valid names. Any other text is unknown data, so the error does not repeat
        // it.
        let (key_id, bytes) =
            text.split_once(':').filter(|(key_id, _)| is_key_id(key_id)).ok_or_else(malformed)?;
        let Some(codec) = self.codec() else {
            return Err(PayloadError::NoCodec { what: what(), key_id: key_id.to_owned() });
        };
        let sealed = Sealed::new(key_id, BASE64.decode(bytes).map_err(|_| malformed())?);
        let opened = guarded(|| codec.open(place, &sealed))
            .map_err(|source| PayloadError::Open { what: what(), source })?;
        String::from_utf8(opened).map_err(|_| malformed())
    }
}

/// Calls the codec. A panic becomes an error: in a worker, it would otherwise restart the run again
/// and again.
fn guarded<T>(call: impl FnOnce() -> Result<T, CodecError>) -> Result<T, CodecError> {
    caught(call, |said| CodecError::other(format!("the codec {said}"))).flatten()
}

/// An encrypted payload in a `json` column.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    #[serde(rename = "$sealed")]
    sealed: String,
}

fn enveloped(sealed: String) -> Stored {
    // A struct of one string always has a JSON form.
    Stored(serde_json::to_string(&Envelope { sealed }).unwrap_or_default())
}

/// Whether a text begins like an encrypted payload, with any white space.
fn is_envelope(text: &str) -> bool {
    let inside = text.trim_start().strip_prefix('{').map(str::trim_start);
    inside.is_some_and(|inside| inside.starts_with("\"$sealed\""))
}

fn is_key_id(key_id: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=MAX_KEY_ID).contains(&key_id.len()) && key_id.bytes().all(is_allowed)
}

fn number_of([a, b, c, d, e, f, g, h, ..]: [u8; 32]) -> i64 {
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

struct Loggable<'f> {
    failure: &'f Failure,
    hides: bool,
}

impl fmt::Display for Loggable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.hides {
            return self.failure.fmt(f);
        }
        // The encrypted text is stored. `RunHandle::info` and `RunHandle::attempts` return it.
        write!(f, "{:?} (its text is sealed)", self.failure.kind)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (opens, seals, limits) = (self.codec.is_some(), self.seals, &self.limits);
        f.debug_struct("Sealer")
            .field("opens", &opens)
            .field("seals", &seals)
            .field("limits", limits)
            .finish()
    }
}
