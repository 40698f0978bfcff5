//! Sealed payloads. A column's text either opens, or is refused with an error that names its place
//! and reveals nothing. A sealed payload opens only at its own place, with every ring that has its
//! key, and not after a change.

use std::fmt::Debug;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use runledger::model::payload::{Plain, Sealer, Stored};
use runledger::model::run::failure::{Failure, FailureKind};
use runledger::model::run::name::check_key;
use runledger::{AesGcm, PayloadError, PayloadKind, Place};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::bytes::Bytes;

/// Every sealed payload contains this word. No other text does.
const WORD: &str = "hunter2";

/// The text before and after the sealer's result.
const BEFORE: &str = "{\"$sealed\":\"";
const BEHIND: &str = "\"}";

const KINDS: [PayloadKind; 11] = [
    PayloadKind::Input,
    PayloadKind::Output,
    PayloadKind::Step,
    PayloadKind::Published,
    PayloadKind::Signal,
    PayloadKind::Error,
    PayloadKind::Emitted,
    PayloadKind::Progress,
    PayloadKind::Compensation,
    PayloadKind::Config,
    PayloadKind::Log,
];

/// Interprets the bytes as the text of a column, as a ciphertext, and as choices of a value, its
/// place and a change.
pub fn sealed(data: &[u8]) {
    if data.windows(WORD.len()).any(|part| part == WORD.as_bytes()) {
        return;
    }
    let mut bytes = Bytes::new(data);
    let (kind, key) = (KINDS[usize::from(bytes.below(11))], key(&mut bytes));
    let place = Place::new(Uuid::from_u128(u128::from(bytes.byte())), kind, &key);
    let text = bytes.text();
    what_is_sealed_opens_at_its_place_alone(&place, &text, &mut bytes);
    a_failure_is_sealed_with_its_words(&place, &text, &mut bytes);
    for key_id in ["2027", "2026", "2025"] {
        nobody_has_sealed(&place, &format!("{key_id}:{}", BASE64.encode(data)));
    }
    if let Ok(text) = str::from_utf8(data) {
        what_is_not_sealed_stays_as_it_is(&place, text);
        nobody_has_sealed(&place, text);
    }
}

/// Seals with the newer of two keys.
fn ring() -> Sealer {
    Sealer::default()
        .with_codec(Arc::new(AesGcm::new("2027", [2; 32]).with_previous_key("2026", [1; 32])), true)
}

/// The ring before the newer key existed, and the ring after that key has become the older one.
fn rings_of_other_years() -> [Sealer; 2] {
    let before = AesGcm::new("2026", [1; 32]).with_previous_key("2027", [2; 32]);
    let later = AesGcm::new("2028", [3; 32]).with_previous_key("2027", [2; 32]);
    [
        Sealer::default().with_codec(Arc::new(before), false),
        Sealer::default().with_codec(Arc::new(later), true),
    ]
}

/// Sealers that cannot open what [`ring`] seals: without its key, with another key of the same
/// name, and without any key.
fn strangers() -> [Sealer; 3] {
    let without = AesGcm::new("2026", [1; 32]);
    let other = AesGcm::new("2027", [1; 32]);
    [
        Sealer::default().with_codec(Arc::new(without), true),
        Sealer::default().with_codec(Arc::new(other), true),
        Sealer::default(),
    ]
}

/// A valid step key.
fn key(bytes: &mut Bytes<'_>) -> String {
    let key = bytes.text();
    if check_key("step key", &key).is_ok() { key } else { "charge".to_owned() }
}

/// No key of the ring has sealed this text, so it must not open in any frame. (Only an input that
/// one of these keys sealed for its own place would open, and a fuzzer cannot find one.)
fn nobody_has_sealed(place: &Place<'_>, text: &str) {
    let payload = json!({ "$sealed": text }).to_string();
    let half = format!("{BEFORE}{text}");
    let failure = json!({ "kind": "error", "message": "its text is sealed", "$sealed": text }).to_string();
    for sealer in [ring(), Sealer::default()] {
        for stored in [&payload, &half] {
            is_refused(place, sealer.open(place, Stored::read(stored.clone())));
        }
        let stored = Stored::read(failure.clone());
        is_refused(place, sealer.open_failure(place, &stored));
        let shown = sealer.show_failure(place, &stored);
        assert!(shown.message.starts_with(&place.to_string()), "{shown:?}");
    }
}

/// A text that does not begin like a sealed payload is returned unchanged.
fn what_is_not_sealed_stays_as_it_is(place: &Place<'_>, text: &str) {
    for sealer in [ring(), Sealer::default()] {
        let opened = sealer.open(place, Stored::read(text.to_owned()));
        assert_eq!(opened.ok(), (!is_frame(text)).then(|| text.to_owned()), "`{text}`");
        if let Err(error) = sealer.open_failure(place, &Stored::read(text.to_owned())) {
            is_refused_in_words(place, &error);
        }
    }
}

/// Whether a text begins like a sealed payload.
fn is_frame(text: &str) -> bool {
    let inside = text.trim_start().strip_prefix('{').map(str::trim_start);
    inside.is_some_and(|inside| inside.starts_with("\"$sealed\""))
}

fn what_is_sealed_opens_at_its_place_alone(place: &Place<'_>, text: &str, bytes: &mut Bytes<'_>) {
    // A text with a NUL is not a payload.
    let Ok(plain) = Plain::of(&(WORD, text)) else { return };
    let sealed = ring().seal(place, plain.clone()).unwrap_or_else(|error| unreachable!("{error}"));
    let stored = sealed.as_str();
    assert!(stored.starts_with(BEFORE) && stored.ends_with(BEHIND) && !stored.contains(WORD), "`{stored}`");
    for sealer in rings_of_other_years().iter().chain([&ring()]) {
        assert_eq!(sealer.open(place, sealed.clone()).ok().as_deref(), Some(&*plain), "`{stored}`");
    }
    for sealer in strangers() {
        is_refused(place, sealer.open(place, sealed.clone()));
    }
    for elsewhere in others(place) {
        is_refused(&elsewhere, ring().open(&elsewhere, sealed.clone()));
    }
    let Some((at, changed)) = changed(stored, bytes) else { return };
    match ring().open(place, Stored::read(changed.clone())) {
        // A change of the frame may only give another spelling, or a text without a frame. The
        // latter is returned unchanged.
        Ok(opened) if opened == *plain => assert_eq!(value(&changed), value(stored), "`{changed}`"),
        Ok(opened) => {
            let is_of_frame = at < BEFORE.len() || at >= stored.len() - BEHIND.len();
            assert!(opened == changed && !is_frame(&changed) && is_of_frame, "`{changed}`");
        }
        Err(error) => is_refused_in_words(place, &error),
    }
}

/// A sealed failure keeps its kind readable. The rest behaves like any payload.
fn a_failure_is_sealed_with_its_words(place: &Place<'_>, text: &str, bytes: &mut Bytes<'_>) {
    let kind = if bytes.is_true() { FailureKind::Error } else { FailureKind::Timeout };
    let failure = Failure { causes: vec![text.to_owned()], ..Failure::new(kind, WORD) };
    let sealed = ring().seal_failure(place, &failure);
    assert!(!sealed.as_str().contains(WORD), "`{}`", sealed.as_str());
    let plain = Sealer::default().seal_failure(place, &failure);
    let opened = ring().open_failure(place, &sealed);
    assert_eq!(opened.ok(), Sealer::default().open_failure(place, &plain).ok());
    for sealer in strangers() {
        is_refused(place, sealer.open_failure(place, &sealed));
        assert_eq!(sealer.show_failure(place, &sealed).kind, kind);
    }
    for elsewhere in others(place) {
        is_refused(&elsewhere, ring().open_failure(&elsewhere, &sealed));
    }
    let Some((_, changed)) = changed(sealed.as_str(), bytes) else { return };
    match ring().open_failure(place, &Stored::read(changed.clone())) {
        // The kind and the words beside it are not sealed and may change. The sealed part opens
        // whole or not at all.
        Ok(opened) => assert!(opened.message == WORD || !format!("{opened:?}").contains(WORD), "`{changed}`"),
        Err(error) => is_refused_in_words(place, &error),
    }
}

/// Places that are close to this one.
fn others<'k>(place: &Place<'k>) -> [Place<'k>; 3] {
    let (run_id, kind, key) = (place.run_id(), place.kind(), place.key());
    let run = Uuid::from_u128(run_id.as_u128() + 1);
    let other_kind = if kind == PayloadKind::Step { PayloadKind::Output } else { PayloadKind::Step };
    [Place::new(run, kind, key), Place::new(run_id, other_kind, key), Place::new(run_id, kind, &key[..0])]
}

/// Changes a text at one position, and returns both: a byte is replaced, incremented, removed or
/// inserted, or the text ends there. Half of the changes hit the last 8 bytes, because base64 does
/// not use all bits of the last ones.
fn changed(text: &str, bytes: &mut Bytes<'_>) -> Option<(usize, String)> {
    let choice = usize::try_from(bytes.wide() >> 1).unwrap_or_default();
    let at = if bytes.is_true() { choice % text.len() } else { text.len() - 1 - choice % 8 };
    // The text is ASCII, before and after the change.
    let (before, old, behind) = (&text[..at], text.as_bytes()[at], &text[at + 1..]);
    let new = char::from(bytes.below(128));
    let changed = match bytes.below(5) {
        0 => format!("{before}{new}{behind}"),
        1 => format!("{before}{}{behind}", char::from(old + 1)),
        2 => format!("{before}{behind}"),
        3 => format!("{before}{new}{}", &text[at..]),
        _ => before.to_owned(),
    };
    (changed != text).then_some((at, changed))
}

/// The JSON value of a text.
fn value(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok()
}

fn is_refused<T: Debug>(place: &Place<'_>, opened: Result<T, PayloadError>) {
    match opened {
        Ok(opened) => unreachable!("{place} is opened: {opened:?}"),
        Err(error) => is_refused_in_words(place, &error),
    }
}

/// The recorded error begins with the place, reveals nothing of the sealed text, and has a bounded
/// length.
fn is_refused_in_words(place: &Place<'_>, error: &PayloadError) {
    let (what, failure) = (place.to_string(), error.to_failure());
    assert_eq!(failure.kind, FailureKind::Sealed, "{failure:?}");
    assert!(failure.message.starts_with(&what), "{failure:?}");
    let told = [&[failure.message], &failure.causes[..]].concat().join(": ");
    assert!(!told.contains(WORD) && !told.chars().any(char::is_control), "{told:?}");
    assert!(told.len() < 500 + what.len(), "{told:?}");
}
