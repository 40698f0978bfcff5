//! The encrypting codec: AES-256-GCM, bound to the place of each payload.

use std::fmt;

use ring::aead::{self, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::model::payload::{Codec, CodecError, Place, Sealed};

/// Encrypts payloads with AES-256-GCM. A payload that was moved to another run or step, or
/// modified, does not open.
///
/// Each key has a name, which is stored with the payloads it sealed. The current key seals;
/// previous keys only open. To rotate the key without downtime, first deploy the new key to all
/// programs as a previous key. Then let them seal with it. Remove the old key when no stored
/// payload uses it any more (`docs/reference/schema.md` has the query).
///
/// Each run has its own key, derived from the given key. So random 96-bit nonces do not repeat,
/// whatever the number of runs. The length of a payload remains visible.
///
/// # Cost
/// A few microseconds per payload, plus at most a few nanoseconds per byte.
///
/// ```
/// use runledger::AesGcm;
///
/// let codec = AesGcm::new("2027", [2; 32]).with_previous_key("2026", [1; 32]);
/// ```
pub struct AesGcm {
    present: Key,
    old: Vec<Key>,
}

/// A root key. It encrypts nothing itself; other keys are derived from it.
struct Key {
    id: String,
    sealing: hmac::Key,
    digests: hmac::Key,
}

/// The version of the format: this byte, the nonce, the text, the tag.
const FORM: u8 = 1;

impl AesGcm {
    /// Creates a codec that seals with this key.
    ///
    /// Use 32 bytes from a cryptographic random number generator, stored in a vault and used for
    /// nothing else. `key_id` is stored and shown: 1 to 64 of `A-Z`, `a-z`, `0-9`, `_`, `.` and
    /// `-`. Never reuse the id of another key.
    pub fn new(key_id: impl Into<String>, key: [u8; 32]) -> Self {
        Self { present: Key::new(key_id.into(), &key), old: Vec::new() }
    }

    /// Adds a key that opens old payloads but seals none.
    #[must_use]
    pub fn with_previous_key(mut self, key_id: impl Into<String>, key: [u8; 32]) -> Self {
        self.old.push(Key::new(key_id.into(), &key));
        self
    }

    fn key(&self, key_id: &str) -> Option<&Key> {
        std::iter::once(&self.present).chain(&self.old).find(|key| key.id == key_id)
    }
}

impl Key {
    fn new(id: String, bytes: &[u8; 32]) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        let derived = |purpose: &[u8]| hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&root, purpose).as_ref());
        Self { id, sealing: derived(b"runledger seal"), digests: derived(b"runledger digest") }
    }

    /// Derives the key of a run.
    fn of_run(&self, place: &Place<'_>) -> Option<LessSafeKey> {
        let key = hmac::sign(&self.sealing, place.run_id().as_bytes());
        UnboundKey::new(&aead::AES_256_GCM, key.as_ref()).ok().map(LessSafeKey::new)
    }

    fn digest(&self, bytes: &[u8]) -> [u8; 32] {
        let mut digest = [0; 32];
        digest.copy_from_slice(hmac::sign(&self.digests, bytes).as_ref());
        digest
    }
}

impl Codec for AesGcm {
    fn seal(&self, place: &Place<'_>, plain: &[u8]) -> Result<Sealed, CodecError> {
        let refused = || CodecError::other("the system gives no random numbers, or the payload is too long");
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| refused())?;
        let key = self.present.of_run(place).ok_or_else(refused)?;
        let mut bytes = Vec::with_capacity(1 + NONCE_LEN + plain.len() + MAX_TAG_LEN);
        bytes.push(FORM);
        bytes.extend_from_slice(&nonce);
        bytes.extend_from_slice(plain);
        let bound = Aad::from(place.associated_data());
        let text = &mut bytes[1 + NONCE_LEN..];
        let tag = key
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), bound, text)
            .map_err(|_| refused())?;
        bytes.extend_from_slice(tag.as_ref());
        Ok(Sealed::new(self.present.id.clone(), bytes))
    }

    fn open(&self, place: &Place<'_>, sealed: &Sealed) -> Result<Vec<u8>, CodecError> {
        let key = self.key(sealed.key_id()).ok_or_else(|| CodecError::no_key(sealed))?;
        let opened = || {
            let (form, rest) = sealed.bytes().split_first()?;
            let (nonce, text) = rest.split_first_chunk::<NONCE_LEN>()?;
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let mut text = text.to_vec();
            let bound = Aad::from(place.associated_data());
            let len = key.of_run(place)?.open_in_place(nonce, bound, &mut text).ok()?.len();
            text.truncate(len);
            (*form == FORM).then_some(text)
        };
        opened().ok_or_else(|| CodecError::mismatch(sealed))
    }

    fn digest(&self, bytes: &[u8]) -> [u8; 32] {
        self.present.digest(bytes)
    }

    fn old_digests(&self, bytes: &[u8]) -> Vec<[u8; 32]> {
        self.old.iter().map(|key| key.digest(bytes)).collect()
    }
}

impl fmt::Debug for AesGcm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let old: Vec<&str> = self.old.iter().map(|key| key.id.as_str()).collect();
        f.debug_struct("AesGcm").field("key_id", &self.present.id).field("old", &old).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
