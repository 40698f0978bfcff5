//! Links that let a person outside the program decide a gate. A signature over the content prevents
//! everyone without the key from creating or changing a link.

use std::borrow::Cow;
use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::Sha256;
use uuid::Uuid;

use crate::model::timestamp::Timestamp;

/// The first byte of a link that this version signs.
const FORMAT: u8 = 2;

/// The first byte of a link without epoch and decision, from an earlier version. Such a link stays
/// valid until the first revocation.
const FORMAT_WITHOUT_EPOCH: u8 = 1;

/// The minimum length of a secret in bytes.
const FEWEST: usize = 32;

/// The length of a signature in bytes.
const SIGNATURE: usize = 32;

/// The secret that signs links (HMAC-SHA-256), and older secrets whose links are still accepted.
#[derive(Clone)]
pub struct GateLinkKey {
    secrets: Vec<Vec<u8>>,
}

/// The content of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The graph.
    pub graph_id: Uuid,
    /// The name of the gate.
    pub gate: String,
    /// The person that the link is for.
    pub by: Option<String>,
    /// The expiry, by the database's clock.
    pub expires_at: Timestamp,
    /// The epoch of the gate's links when the link was signed. Nil until the first revocation.
    pub epoch: Uuid,
    /// The only decision that it allows. `None` if it allows every decision.
    pub decision: Option<LinkDecision>,
}

/// The decision that a link is bound to. [`GateLink::decision`](crate::GateLink::decision) returns
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkDecision {
    /// Completes the gate.
    Complete {
        /// The value, as JSON text.
        value: String,
    },
    /// Fails the gate.
    Fail {
        /// The message of the failure.
        message: String,
    },
}

/// A decision as JSON text: `{"complete":true}` or `{"fail":"no"}`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Written<'d> {
    Complete(#[serde(borrow)] &'d RawValue),
    Fail(#[serde(borrow)] Cow<'d, str>),
}

impl LinkDecision {
    /// `None` if the value is not JSON.
    fn to_text(&self) -> Option<String> {
        let written = match self {
            Self::Complete { value } => Written::Complete(serde_json::from_str(value).ok()?),
            Self::Fail { message } => Written::Fail(Cow::Borrowed(message)),
        };
        serde_json::to_string(&written).ok()
    }

    fn read(text: &str) -> Option<Self> {
        Some(match serde_json::from_str(text).ok()? {
            Written::Complete(value) => Self::Complete { value: value.get().to_owned() },
            Written::Fail(message) => Self::Fail { message: message.into_owned() },
        })
    }
}

/// The secret is too short to sign links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a secret of {n} bytes is too short to sign links with: take {FEWEST} random ones, as `openssl rand 32` gives them"
)]
pub struct SecretTooShort {
    /// The length of the secret in bytes.
    pub n: usize,
}

impl GateLinkKey {
    /// Creates a key from a secret of at least 32 bytes, which must be hard to guess.
    ///
    /// # Errors
    /// [`SecretTooShort`].
    pub fn new(secret: impl Into<Vec<u8>>) -> Result<Self, SecretTooShort> {
        Ok(Self { secrets: vec![checked(secret.into())?] })
    }

    /// Accepts links of an older secret too. Use it until those links have expired.
    ///
    /// # Errors
    /// [`SecretTooShort`].
    pub fn or(mut self, older: impl Into<Vec<u8>>) -> Result<Self, SecretTooShort> {
        self.secrets.push(checked(older.into())?);
        Ok(self)
    }

    /// Signs a link. The text has about 120 characters, plus 4 for each 3 bytes of the names and
    /// the decision. All characters are valid in a URL.
    #[must_use]
    pub fn sign(&self, link: &Link) -> String {
        let mut bytes = vec![FORMAT];
        bytes.extend(link.graph_id.as_bytes());
        bytes.extend(link.expires_at.unix_micros().to_be_bytes());
        bytes.extend(link.epoch.as_bytes());
        // A value that is not JSON becomes an empty text, which no reader accepts. So the link is
        // never unbound by mistake.
        let decision = link.decision.as_ref().map(|decision| decision.to_text().unwrap_or_default());
        for text in [Some(&link.gate), link.by.as_ref(), decision.as_ref()] {
            // An impossible length represents `None`.
            let len = text.map_or(u32::MAX, |text| u32::try_from(text.len()).unwrap_or(u32::MAX - 1));
            bytes.extend(len.to_be_bytes());
            bytes.extend(text.map(String::as_bytes).unwrap_or_default());
        }
        let signature = self.secrets.first().and_then(|secret| mac(secret, &bytes));
        bytes.extend(signature.map(|mac| mac.finalize().into_bytes()).unwrap_or_default());
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The content of a signed link. `None` if it was changed, or signed with another key.
    #[must_use]
    pub fn open(&self, signed: &str) -> Option<Link> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(signed).ok()?;
        let (said, signature) = bytes.split_at_checked(bytes.len().checked_sub(SIGNATURE)?)?;
        let is_signed =
            |secret: &Vec<u8>| mac(secret, said).is_some_and(|mac| mac.verify_slice(signature).is_ok());
        if self.secrets.iter().any(is_signed) { read(said) } else { None }
    }
}

fn read(said: &[u8]) -> Option<Link> {
    let (format, said) = said.split_first()?;
    let (graph_id, said) = said.split_first_chunk()?;
    let (expires_at, said) = said.split_first_chunk()?;
    let has_epoch = match *format {
        FORMAT => true,
        FORMAT_WITHOUT_EPOCH => false,
        _ => return None,
    };
    let (epoch, mut said) = if has_epoch { said.split_first_chunk()? } else { (&[0; 16], said) };
    let (gate, by) = (text(&mut said)??, text(&mut said)?);
    let decision = if has_epoch { text(&mut said)? } else { None };
    let decision = match decision {
        Some(decision) => Some(LinkDecision::read(&decision)?),
        None => None,
    };
    let expires_at = Timestamp::from_unix_micros(i64::from_be_bytes(*expires_at));
    let (graph_id, epoch) = (Uuid::from_bytes(*graph_id), Uuid::from_bytes(*epoch));
    said.is_empty().then_some(Link { graph_id, gate, by, expires_at, epoch, decision })
}

/// Reads an optional text. Returns `None` if the bytes end too early.
fn text(said: &mut &[u8]) -> Option<Option<String>> {
    let (len, rest) = said.split_first_chunk()?;
    let len = u32::from_be_bytes(*len);
    if len == u32::MAX {
        *said = rest;
        return Some(None);
    }
    let (text, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    *said = rest;
    Some(Some(String::from_utf8(text.to_vec()).ok()?))
}

fn checked(secret: Vec<u8>) -> Result<Vec<u8>, SecretTooShort> {
    if secret.len() < FEWEST { Err(SecretTooShort { n: secret.len() }) } else { Ok(secret) }
}

/// The HMAC of `said`. It exists for a key of any length.
fn mac(secret: &[u8], said: &[u8]) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
    mac.update(said);
    Some(mac)
}

impl fmt::Debug for GateLinkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateLinkKey").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> GateLinkKey {
        GateLinkKey::new([byte; 32]).unwrap_or_else(|error| panic!("{error}"))
    }

    fn link(by: Option<&str>) -> Link {
        Link {
            graph_id: Uuid::from_u128(7),
            gate: "approved".to_owned(),
            by: by.map(str::to_owned),
            expires_at: Timestamp::from_unix_micros(1_700_000_000_000_000),
            epoch: Uuid::from_u128(8),
            decision: None,
        }
    }

    fn bound() -> Link {
        Link { decision: Some(LinkDecision::Fail { message: "no \"ä\"".to_owned() }), ..link(Some("ann")) }
    }

    #[test]
    fn signed_link_is_url_safe_and_opens_to_its_content() {
        let value = |value: &str| Some(LinkDecision::Complete { value: value.to_owned() });
        let to_complete = |text| Link { decision: value(text), ..link(None) };
        let links = [None, Some(""), Some("ann")].map(link).into_iter();
        let values = [r#"{"a": [1.50]}"#, "null", "18446744073709551615"].map(to_complete);
        for link in links.chain(values).chain([bound()]) {
            let signed = key(1).sign(&link);
            assert_eq!(key(1).open(&signed), Some(link));
            assert!(
                signed.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)),
                "{signed}"
            );
        }
    }

    /// The text is pinned: an earlier version signed it.
    #[test]
    fn link_of_first_format_opens_without_epoch_and_decision() {
        let signed = "AQAAAAAAAAAAAAAAAAAAAAcABgokGB5AAAAAAAhhcHByb3ZlZAAAAANhbm73tgQjPx8pzTLrxw-dbPLRWrYq8GstuyIZWInBaBObtg";
        let expected = Link { epoch: Uuid::nil(), ..link(Some("ann")) };
        assert_eq!(key(1).open(signed), Some(expected));
    }

    #[test]
    fn link_with_unreadable_decision_or_format_is_refused() {
        let decision = Some(LinkDecision::Complete { value: "not JSON".to_owned() });
        assert_eq!(key(1).open(&key(1).sign(&Link { decision, ..link(None) })), None);
        for text in ["", "{}", r#"{"cancel":"no"}"#, r#"{"fail":1}"#, r#"{"fail":"no","complete":1}"#] {
            assert_eq!(LinkDecision::read(text), None, "{text}");
        }
        for format in (0..=u8::MAX).filter(|format| ![FORMAT, FORMAT_WITHOUT_EPOCH].contains(format)) {
            let mut said = BASE64_URL_SAFE_NO_PAD.decode(key(1).sign(&link(None))).unwrap_or_default();
            said.truncate(said.len() - SIGNATURE);
            said[0] = format;
            assert_eq!(read(&said), None, "format {format}");
        }
    }

    #[test]
    fn link_with_any_changed_bit_is_refused() {
        let signed = BASE64_URL_SAFE_NO_PAD.decode(key(1).sign(&bound())).unwrap_or_default();
        assert!(!signed.is_empty());
        for at in 0..signed.len() {
            for bit in 0..8 {
                let mut changed = signed.clone();
                changed[at] ^= 1 << bit;
                assert_eq!(
                    key(1).open(&BASE64_URL_SAFE_NO_PAD.encode(changed)),
                    None,
                    "byte {at}, bit {bit}"
                );
            }
        }
        for end in 0..signed.len() {
            assert_eq!(key(1).open(&BASE64_URL_SAFE_NO_PAD.encode(&signed[..end])), None, "{end} bytes");
        }
        for other in ["", "=", "ä", "not a link"] {
            assert_eq!(key(1).open(other), None);
        }
    }

    #[test]
    fn link_of_previous_secret_opens_only_while_key_keeps_it() {
        let signed = key(1).sign(&link(None));
        assert_eq!(key(2).open(&signed), None);
        assert_eq!(key(2).or([1; 32]).map(|key| key.open(&signed)), Ok(Some(link(None))));
        assert_eq!(GateLinkKey::new([1; 31]).map(|_| ()), Err(SecretTooShort { n: 31 }));
    }
}
