use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::model::failure::{Failure, FailureKind};

/// Seals by turning the bits of the text round, and writes a digest of the place before it.
struct Turns;

impl Codec for Turns {
    fn seal(&self, place: &Place<'_>, plain: &[u8]) -> Result<Sealed, CodecError> {
        let mut bytes = Self::hash(&place.associated_data()).to_vec();
        bytes.extend(plain.iter().map(|byte| !byte));
        Ok(Sealed::new("turns", bytes))
    }

    fn open(&self, place: &Place<'_>, sealed: &Sealed) -> Result<Vec<u8>, CodecError> {
        let text = sealed.bytes().strip_prefix(&Self::hash(&place.associated_data())[..]);
        Ok(text.ok_or_else(|| CodecError::mismatch(sealed))?.iter().map(|byte| !byte).collect())
    }

    fn digest(&self, bytes: &[u8]) -> [u8; 32] {
        Self::hash(&[b"key", bytes].concat())
    }

    fn old_digests(&self, bytes: &[u8]) -> Vec<[u8; 32]> {
        vec![Self::hash(&[b"old", bytes].concat())]
    }
}

/// One that can neither seal nor open.
struct Away;

impl Codec for Away {
    fn seal(&self, _place: &Place<'_>, _plain: &[u8]) -> Result<Sealed, CodecError> {
        Err(CodecError::other("the vault is away"))
    }

    fn open(&self, _place: &Place<'_>, _sealed: &Sealed) -> Result<Vec<u8>, CodecError> {
        Err(CodecError::other("the vault is away"))
    }

    fn digest(&self, _bytes: &[u8]) -> [u8; 32] {
        [0; 32]
    }
}

fn turns() -> Sealer {
    Sealer::default().with_codec(std::sync::Arc::new(Turns), true)
}

fn of(kind: PayloadKind) -> Place<'static> {
    Place::new(Uuid::nil(), kind, "key")
}

const KINDS: [PayloadKind; 11] = [
    PayloadKind::Input,
    PayloadKind::Output,
    PayloadKind::Step,
    PayloadKind::Published,
    PayloadKind::Signal,
    PayloadKind::Error,
    PayloadKind::Emitted,
    PayloadKind::Progress,
    PayloadKind::Undo,
    PayloadKind::Config,
    PayloadKind::Log,
];

#[test]
fn no_two_places_are_alike() {
    let runs = [Uuid::nil(), Uuid::from_u128(1)];
    let places: Vec<Vec<u8>> = runs
        .into_iter()
        .flat_map(|run_id| KINDS.into_iter().map(move |kind| (run_id, kind)))
        .flat_map(|(run_id, kind)| ["", "a", "a/b", "a#1"].map(|key| Place::new(run_id, kind, key)))
        .map(|place| place.associated_data())
        .collect();
    let distinct: std::collections::HashSet<_> = places.iter().collect();
    assert_eq!((distinct.len(), places.len()), (88, 88));
}

#[test]
fn a_step_that_publishes_is_known_by_its_key() {
    for (key, kind) in [
        ("publish:state", PayloadKind::Published),
        ("left/publish:state#2", PayloadKind::Published),
        ("charge", PayloadKind::Step),
        ("publish/charge", PayloadKind::Step),
    ] {
        assert_eq!(Place::of_step(Uuid::nil(), key).kind(), kind, "{key}");
    }
}

#[test]
fn a_plain_payload_that_would_be_taken_for_a_sealed_one_is_refused_unless_it_is_sealed() {
    let plain = || Plain::of(&json!({ "$sealed": "turns:AAAA" })).unwrap();
    let error = Sealer::default().seal(&of(PayloadKind::Step), plain()).unwrap_err();
    assert!(matches!(&error, PayloadError::Reserved { .. }), "{error}");
    let sealed = turns().seal(&of(PayloadKind::Step), plain()).unwrap();
    assert_eq!(turns().open(&of(PayloadKind::Step), sealed).unwrap(), *plain());
}

#[test]
fn a_sealed_payload_is_found_in_whatever_spelling_and_one_that_is_cut_is_named() {
    let sealed = turns().seal(&of(PayloadKind::Input), Plain::of(&7).unwrap()).unwrap();
    let spelled = Stored::read(sealed.as_str().replacen("{\"$sealed\":", " { \"$sealed\" : ", 1));
    assert_eq!(turns().open(&of(PayloadKind::Input), spelled).unwrap(), "7");
    for cut in [
        "{\"$sealed\":1}",
        "{\"$sealed\":\"turns\"}",
        "{\"$sealed\":\"turns:!\"}",
        "{\"$sealed\":\"a:b\",\"c\":1}",
        // No key has such a name, so the text is not shown as one.
        "{\"$sealed\":\":AAAA\"}",
        "{\"$sealed\":\"4111 1111:AAAA\"}",
    ] {
        let error = turns().open(&of(PayloadKind::Input), Stored::read(cut.into())).unwrap_err();
        assert!(matches!(error, PayloadError::Malformed { .. }), "{cut}: {error}");
    }
}

#[test]
fn a_failure_keeps_its_kind_readable_and_its_words_sealed() {
    let failure = Failure { causes: vec!["why".into()], ..Failure::new(FailureKind::Timeout, "words") };
    let place = of(PayloadKind::Error);
    let stored = turns().seal_failure(&place, &failure);
    assert!(
        stored
            .as_str()
            .starts_with("{\"kind\":\"timeout\",\"message\":\"its text is sealed\",\"$sealed\":\"turns:")
    );
    assert_eq!(turns().open_failure(&place, &stored).unwrap(), failure);
    assert_eq!(
        turns().open_failure(&place, &Sealer::default().seal_failure(&place, &failure)).unwrap(),
        failure
    );
    let blind = Sealer::default().show_failure(&place, &stored);
    assert_eq!(blind.kind, FailureKind::Timeout);
    assert!(blind.message.contains("under key `turns`, and this program has no codec"), "{blind}");
}

#[test]
fn a_failure_that_cannot_be_sealed_is_stored_without_its_words() {
    let away = Sealer::default().with_codec(std::sync::Arc::new(Away), true);
    let stored = away.seal_failure(&of(PayloadKind::Error), &Failure::new(FailureKind::Error, "hunter2"));
    let failure = away.open_failure(&of(PayloadKind::Error), &stored).unwrap();
    assert_eq!(failure.kind, FailureKind::Error);
    assert!(failure.to_string().contains("the vault is away"), "{failure}");
    assert!(!stored.as_str().contains("hunter2"));
    let error = away.seal(&of(PayloadKind::Step), Plain::of(&1).unwrap()).unwrap_err();
    assert!(error.is_of_codec(), "{error}");
}

#[test]
fn the_words_of_the_engine_are_never_sealed() {
    for kind in [FailureKind::Cancelled, FailureKind::Crash, FailureKind::Sealed, FailureKind::Skipped] {
        let stored = turns().seal_failure(&of(PayloadKind::Error), &Failure::new(kind, "words"));
        assert!(stored.as_str().contains("words"), "{kind:?}");
    }
}

#[test]
fn a_fingerprint_is_keyed_and_known_under_old_keys_and_from_before_the_codec() {
    let input = Plain::of(&json!({ "b": 1, "a": 2 })).unwrap();
    let fingerprints = |sealer: &Sealer, plain: &Plain| sealer.fingerprints(plain, String::new).unwrap();
    let bare = fingerprints(&Sealer::default(), &input);
    let keyed = fingerprints(&turns(), &input);
    assert_eq!((bare.len(), keyed.len()), (1, 3));
    assert_ne!(keyed[0], bare[0]);
    assert_eq!(keyed[2], bare[0]);
    let reading = Sealer::default().with_codec(std::sync::Arc::new(Turns), false);
    assert_eq!(fingerprints(&reading, &input)[0], bare[0], "others read it without a key");
    let secret = Plain::of(&Secret::new("hunter2")).unwrap();
    assert_eq!(fingerprints(&Sealer::default(), &secret), [0]);
    assert_eq!(fingerprints(&reading, &secret)[0], fingerprints(&turns(), &secret)[0]);
    let bare_hash = crate::model::json::fingerprint(&secret);
    assert!(!fingerprints(&turns(), &secret).contains(&bare_hash));
}

#[test]
fn a_secret_is_noticed_wherever_it_is_and_only_there() {
    let with = json!({ "a": [1] });
    assert!(!Plain::of(&with).unwrap().has_secret());
    assert!(Plain::of(&[Some(Secret::new(1))]).unwrap().has_secret());
    assert!(Plain::of_object(&[("a", &1), ("b", &Secret::new(1))]).unwrap().has_secret());
    assert!(!Plain::of(&with).unwrap().has_secret(), "it ends with its payload");
    assert_eq!(serde_json::to_string(&Secret::new(1)).unwrap(), "\"[secret]\"");
    assert_eq!(&*Plain::of(&Secret::new(1)).unwrap(), "1");
}

/// The text of another payload, as a part of its own.
struct Nested;

impl serde::Serialize for Nested {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&Plain::of(&Secret::new("hunter2")).map_err(serde::ser::Error::custom)?)
    }
}

#[test]
fn a_secret_in_a_payload_within_a_payload_is_noticed() {
    assert!(Plain::of(&Nested).unwrap().has_secret());
}

#[test]
fn nothing_shows_a_payload_in_its_debug() {
    let plain = Plain::of("hunter2").unwrap();
    let sealed = turns().seal(&of(PayloadKind::Step), plain.clone()).unwrap();
    let text = format!("{plain:?} {sealed:?} {:?}", turns());
    assert!(!text.contains("hunter2") && text.starts_with("9 bytes"), "{text}");
}

#[test]
fn the_limit_of_each_kind_is_its_own() {
    let limits = Limits::DEFAULT
        .input(1)
        .output(2)
        .step(3)
        .published(4)
        .signal(5)
        .error(6)
        .emitted(7)
        .progress(8)
        .config(9);
    assert_eq!(
        KINDS.map(|kind| limits.of(kind)),
        [1, 2, 3, 4, 5, 6, 7, 8, 1, 9, crate::model::json::MAX_BYTES]
    );
    let beyond = Limits::DEFAULT.input(usize::MAX);
    assert_eq!(beyond.of(PayloadKind::Input), crate::model::json::MAX_BYTES);
}

#[test]
fn what_is_taken_over_stays_sealed_in_a_program_that_seals_nothing_yet() {
    let (from, to) = (of(PayloadKind::Output), of(PayloadKind::Step));
    let reading = Sealer::default().with_codec(std::sync::Arc::new(Turns), false);
    let sealed = turns().seal(&from, Plain::of("abc").unwrap()).unwrap();
    let taken = reading.take_over(&from, sealed.clone()).unwrap();
    let again = reading.seal(&to, taken).unwrap();
    assert_eq!(turns().open(&to, again.clone()).unwrap(), "\"abc\"");
    assert!(turns().open(&from, again).is_err());
    assert_eq!(turns().open(&to, reading.reseal(&from, &to, sealed).unwrap()).unwrap(), "\"abc\"");
    assert_eq!(reading.seal(&to, Plain::of("abc").unwrap()).unwrap().as_str(), "\"abc\"");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_sealed_opens_at_its_place_and_nowhere_else(text in "[^\0]*", key in ".{0,20}", other in ".{0,20}", at in 0..9_usize) {
        let plain = Plain::of(&text).unwrap();
        let place = Place::new(Uuid::nil(), KINDS[at], &key);
        let sealed = turns().seal(&place, plain.clone()).unwrap();
        prop_assert_eq!(turns().open(&place, sealed.clone()).unwrap(), &*plain);
        if key != other {
            prop_assert!(turns().open(&Place::new(Uuid::nil(), KINDS[at], &other), sealed.clone()).is_err());
        }
        prop_assert!(turns().open(&Place::new(Uuid::nil(), KINDS[(at + 1) % 9], &key), sealed).is_err());
    }

    #[test]
    fn whatever_a_column_has_is_read_or_refused(text in ".*", rest in ".*") {
        let _ = turns().open(&of(PayloadKind::Step), Stored::read(text.clone()));
        let _ = turns().open(&of(PayloadKind::Step), Stored::read(format!("{{\"$sealed\":\"{text}\"{rest}")));
        let _ = turns().show_failure(&of(PayloadKind::Error), &Stored::read(text));
    }
}
