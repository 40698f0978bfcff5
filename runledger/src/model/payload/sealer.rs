//! The one way of payloads into the database and out of it.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use super::codec::{Codec, CodecError, Place, Sealed};
use super::error::PayloadError;
use super::limits::Limits;
use super::text::{Plain, Stored};
use crate::model::failure::Failure;
use crate::model::json::{self, fingerprint};
use crate::model::panic::caught;

/// The longest name of a key, in bytes.
const MAX_KEY_ID: usize = 64;

/// Seals what is written, opens what is read, and holds the limits of both. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Sealer(Option<Arc<Inner>>);

#[derive(Clone, Default)]
struct Inner {
    codec: Option<Arc<dyn Codec>>,
    /// Whether what is written is sealed; what is read is opened either way.
    seals: bool,
    limits: Limits,
}

impl Sealer {
    /// The same with a codec.
    #[must_use]
    pub fn with_codec(&self, codec: Arc<dyn Codec>, seals: bool) -> Self {
        Self(Some(Arc::new(Inner { codec: Some(codec), seals, limits: *self.limits() })))
    }

    /// The same with other limits.
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

    /// Whether what is written is sealed, and must not be shown elsewhere either.
    #[must_use]
    pub fn seals(&self) -> bool {
        self.0.as_ref().is_some_and(|inner| inner.seals)
    }

    /// Whether what is read is opened.
    #[must_use]
    pub fn opens(&self) -> bool {
        self.codec().is_some()
    }

    /// A payload as it is stored at this place.
    ///
    /// # Errors
    /// [`PayloadError`]: it is too large, the codec refuses it, or it needs one.
    pub fn seal(&self, place: &Place<'_>, plain: Plain) -> Result<Stored, PayloadError> {
        self.check_size(place, &plain)?;
        self.seal_whole(place, plain)
    }

    /// The same of what is put together of payloads, each of which is within its limit: it is as large as any JSON text may be.
    ///
    /// # Errors
    /// As [`seal`](Self::seal).
    pub fn seal_whole(&self, place: &Place<'_>, plain: Plain) -> Result<Stored, PayloadError> {
        // A program that seals nothing yet seals what must be.
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

    /// The text of what is stored at this place.
    ///
    /// # Errors
    /// [`PayloadError`]: it is sealed, and does not open.
    pub fn open(&self, place: &Place<'_>, stored: Stored) -> Result<String, PayloadError> {
        if !is_envelope(&stored.0) {
            return Ok(stored.0);
        }
        match serde_json::from_str::<Envelope>(&stored.0) {
            Ok(envelope) => self.open_sealed(place, &envelope.sealed),
            Err(_) => Err(PayloadError::Malformed { what: place.to_string() }),
        }
    }

    /// What is stored at this place, to be stored at another: what was sealed needs to be sealed again.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn take_over(&self, place: &Place<'_>, stored: Stored) -> Result<Plain, PayloadError> {
        let is_sealed = is_envelope(&stored.0);
        let text = self.open(place, stored)?;
        Ok(if is_sealed { Plain::hidden(text) } else { Plain::ready(text) })
    }

    /// What is stored at this place as it is stored at another, whatever its size: it was stored before.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`seal`](Self::seal).
    pub fn reseal(&self, from: &Place<'_>, to: &Place<'_>, stored: Stored) -> Result<Stored, PayloadError> {
        match self.codec() {
            Some(codec) if is_envelope(&stored.0) => {
                let plain = self.take_over(from, stored)?;
                Ok(enveloped(self.sealed_by(codec, to, &plain)?))
            }
            // Plain, or an error.
            _ => self.open(from, stored).map(Stored),
        }
    }

    /// As [`open`](Self::open), for people: what does not open is given as it is stored.
    #[must_use]
    pub fn show(&self, place: &Place<'_>, stored: Stored) -> String {
        self.open(place, stored.clone()).unwrap_or(stored.0)
    }

    /// What identifies an input or a line by its canonical text: the first number is that which is stored, the others are those that equal texts may be on
    /// record with. Of a secret there is never a bare hash.
    ///
    /// # Errors
    /// [`PayloadError::Digest`], with the name of the payload: the codec has panicked.
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
        // From before the codec, or from programs that do not seal yet.
        all.push(if plain.has_secret() { 0 } else { fingerprint(text) });
        if !self.seals() && !plain.has_secret() {
            all.rotate_right(1);
        }
        Ok(all)
    }

    /// Why an input that is not stored is refused all the same: of a secret nothing may be kept without a key, and beside its step its hash would be.
    ///
    /// # Errors
    /// [`PayloadError::SecretWithoutCodec`].
    pub fn check_secret(&self, what: &str, plain: &Plain) -> Result<(), PayloadError> {
        if plain.has_secret() && !self.opens() {
            return Err(PayloadError::SecretWithoutCodec { what: what.to_owned() });
        }
        Ok(())
    }

    /// A failure as a log may show it: without its text where that is sealed.
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

    /// The name of the key, a colon, and the bytes in base64: what `split_part(…, ':', 1)` tells apart in a query.
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
        // No payload is sealed under another name, and what stands there otherwise is nobody's to repeat.
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

/// Calls the codec. A panic of it is an error of it: who has the payload in hand may be a worker, whose run would begin again and again.
fn guarded<T>(call: impl FnOnce() -> Result<T, CodecError>) -> Result<T, CodecError> {
    caught(call, |said| CodecError::other(format!("the codec {said}"))).flatten()
}

/// A sealed payload in a `json` column.
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

/// Whether a text begins as a sealed payload does, in whatever spelling of white space.
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
        // The text is stored, sealed: `RunHandle::info` and `RunHandle::attempts` give it.
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
