use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::model::run::failure::{Failure, FailureKind};

/// Inverts the bits of the text, and prepends a digest of the place.
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

/// A codec that can neither encrypt nor decrypt.
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
    PayloadKind::Compensation,
    PayloadKind::Config,
    PayloadKind::Log,
];

#[test]
fn no_two_places_share_associated_data() {
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

/// The words are pinned: authenticated ciphertexts are bound to them.
#[test]
fn associated_data_of_kind_run_and_key_is_pinned() {
    let words = [
        "input",
        "output",
        "step",
        "published",
        "signal",
        "error",
        "emitted",
        "progress",
        "compensation",
        "config",
        "log",
    ];
    for (kind, word) in KINDS.into_iter().zip(words) {
        let place = Place::new(Uuid::from_u128(7), kind, "a");
        assert_eq!((place.run_id(), place.kind(), place.key()), (Uuid::from_u128(7), kind, "a"));
        let bound = format!("runledger 1 {word} {}\u{7}a", "\0".repeat(15));
        assert_eq!(place.associated_data(), bound.into_bytes());
    }
}

#[test]
fn shared_codec_behaves_like_codec_itself() {
    let shared = Sealer::default().with_codec(std::sync::Arc::new(std::sync::Arc::new(Turns)), true);
    let place = of(PayloadKind::Step);
    let plain = Plain::of("abc").unwrap();
    let sealed = shared.seal(&place, plain.clone()).unwrap();
    assert_eq!(sealed, turns().seal(&place, plain.clone()).unwrap());
    assert_eq!(shared.open(&place, sealed).unwrap(), "\"abc\"");
    let fingerprints = |sealer: &Sealer| sealer.fingerprints(&plain, String::new).unwrap();
    assert_eq!(fingerprints(&shared), fingerprints(&turns()));
}

#[test]
fn publishing_step_is_recognised_by_its_key() {
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
fn plain_payload_resembling_sealed_one_is_refused_unless_sealed() {
    let plain = || Plain::of(&json!({ "$sealed": "turns:AAAA" })).unwrap();
    let error = Sealer::default().seal(&of(PayloadKind::Step), plain()).unwrap_err();
    assert!(matches!(&error, PayloadError::Reserved { .. }), "{error}");
    let sealed = turns().seal(&of(PayloadKind::Step), plain()).unwrap();
    assert_eq!(turns().open(&of(PayloadKind::Step), sealed).unwrap(), *plain());
}

#[test]
fn sealed_payload_opens_despite_whitespace_and_malformed_one_is_refused() {
    let sealed = turns().seal(&of(PayloadKind::Input), Plain::of(&7).unwrap()).unwrap();
    let spelled = Stored::read(sealed.as_str().replacen("{\"$sealed\":", " { \"$sealed\" : ", 1));
    assert_eq!(turns().open(&of(PayloadKind::Input), spelled).unwrap(), "7");
    for cut in [
        "{\"$sealed\":1}",
        "{\"$sealed\":\"turns\"}",
        "{\"$sealed\":\"turns:!\"}",
        "{\"$sealed\":\"a:b\",\"c\":1}",
        // No key has such a name, so the error does not show the text as a name.
        "{\"$sealed\":\":AAAA\"}",
        "{\"$sealed\":\"4111 1111:AAAA\"}",
    ] {
        let error = turns().open(&of(PayloadKind::Input), Stored::read(cut.into())).unwrap_err();
        assert!(matches!(error, PayloadError::Malformed { .. }), "{cut}: {error}");
    }
}

#[test]
fn failure_kind_stays_readable_and_its_text_is_sealed() {
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
fn failure_is_stored_without_its_text_when_sealing_fails() {
    let away = Sealer::default().with_codec(std::sync::Arc::new(Away), true);
    let stored = away.seal_failure(&of(PayloadKind::Error), &Failure::new(FailureKind::Error, "hunter2"));
    let failure = away.open_failure(&of(PayloadKind::Error), &stored).unwrap();
    assert_eq!(failure.kind, FailureKind::Error);
    assert!(failure.to_string().contains("the vault is away"), "{failure}");
    assert!(failure.to_string().starts_with("its text is lost: "), "{failure}");
    assert!(!stored.as_str().contains("hunter2"));
    let error = away.seal(&of(PayloadKind::Step), Plain::of(&1).unwrap()).unwrap_err();
    assert!(error.is_of_codec(), "{error}");
}

#[test]
fn failure_is_resealed_for_other_place_only_if_sealed() {
    let (from, to) = (of(PayloadKind::Error), Place::new(Uuid::nil(), PayloadKind::Error, "other"));
    let failure = Failure::new(FailureKind::Error, "words");
    let plain = Sealer::default().seal_failure(&from, &failure);
    assert_eq!(turns().reseal_failure(&from, &to, plain.clone()).unwrap(), plain);
    let moved = turns().reseal_failure(&from, &to, turns().seal_failure(&from, &failure)).unwrap();
    assert_eq!(turns().open_failure(&to, &moved).unwrap(), failure);
    assert!(turns().open_failure(&from, &moved).is_err());
}

#[test]
fn text_of_engine_failures_is_never_sealed() {
    for kind in [FailureKind::Cancelled, FailureKind::Crash, FailureKind::Sealed, FailureKind::Skipped] {
        let stored = turns().seal_failure(&of(PayloadKind::Error), &Failure::new(kind, "words"));
        assert!(stored.as_str().contains("words"), "{kind:?}");
    }
}

#[test]
fn fingerprint_is_keyed_and_older_fingerprints_still_match() {
    let input = Plain::of(&json!({ "b": 1, "a": 2 })).unwrap();
    let fingerprints = |sealer: &Sealer, plain: &Plain| sealer.fingerprints(plain, String::new).unwrap();
    let bare = fingerprints(&Sealer::default(), &input);
    let keyed = fingerprints(&turns(), &input);
    assert_eq!((bare.len(), keyed.len()), (1, 3));
    let digest = Turns.digest(br#"{"a":2,"b":1}"#);
    assert_eq!(keyed[0].to_be_bytes(), digest[..8], "as it stands in the records of runs");
    assert_ne!(keyed[0], bare[0]);
    assert_eq!(keyed[2], bare[0]);
    let away = Sealer::default().with_codec(std::sync::Arc::new(Away), true);
    assert_eq!(fingerprints(&away, &input), [0, bare[0]], "it has no key of before");
    let reading = Sealer::default().with_codec(std::sync::Arc::new(Turns), false);
    assert_eq!(fingerprints(&reading, &input)[0], bare[0], "others read it without a key");
    let secret = Plain::of(&Secret::new("hunter2")).unwrap();
    assert_eq!(fingerprints(&Sealer::default(), &secret), [0]);
    assert_eq!(fingerprints(&reading, &secret)[0], fingerprints(&turns(), &secret)[0]);
    let bare_hash = crate::model::json::fingerprint(&secret);
    assert!(!fingerprints(&turns(), &secret).contains(&bare_hash));
}

#[test]
fn secret_is_detected_anywhere_in_its_own_payload_only() {
    let with = json!({ "a": [1] });
    assert!(!Plain::of(&with).unwrap().has_secret());
    assert!(Plain::of(&[Some(Secret::new(1))]).unwrap().has_secret());
    assert!(Plain::of_object(&[("a", &1), ("b", &Secret::new(1))]).unwrap().has_secret());
    assert!(!Plain::of(&with).unwrap().has_secret(), "it ends with its payload");
    assert_eq!(serde_json::to_string(&Secret::new(1)).unwrap(), "\"[secret]\"");
    assert_eq!(&*Plain::of(&Secret::new(1)).unwrap(), "1");
}

/// A value whose `Serialize` encodes another payload inside its own.
struct Nested;

impl serde::Serialize for Nested {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&Plain::of(&Secret::new("hunter2")).map_err(serde::ser::Error::custom)?)
    }
}

#[test]
fn secret_in_nested_payload_is_detected() {
    assert!(Plain::of(&Nested).unwrap().has_secret());
}

#[test]
fn debug_output_hides_payload() {
    let plain = Plain::of("hunter2").unwrap();
    let sealed = turns().seal(&of(PayloadKind::Step), plain.clone()).unwrap();
    let text = format!("{plain:?} {sealed:?} {:?}", turns());
    assert!(!text.contains("hunter2") && text.starts_with("9 bytes"), "{text}");
}

#[test]
fn limit_is_set_per_payload_kind() {
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
fn default_limits_match_documentation() {
    let kib = |n: usize| n * 1024;
    assert_eq!(
        KINDS.map(|kind| Limits::default().of(kind)),
        [1024, 1024, 1024, 256, 256, 8, 64, 64, 1024, 256, 16 * 1024].map(kib)
    );
}

#[test]
fn payload_beyond_limit_is_refused_and_failure_is_cut() {
    let sealer = turns().with_limits(Limits::DEFAULT.step(5).error(3));
    let place = of(PayloadKind::Step);
    let sealed = sealer.seal(&place, Plain::of("abc").unwrap()).unwrap();
    assert_eq!(turns().open(&place, sealed).unwrap(), "\"abc\"", "it has kept its codec");
    let error = sealer.seal(&place, Plain::of("abcd").unwrap()).unwrap_err();
    assert!(matches!(error, PayloadError::TooLarge { size: 6, limit: 5, .. }), "{error}");
    assert_eq!(error.to_failure().kind, FailureKind::Encode);
    assert!(sealer.seal_whole(&place, Plain::of("abcd").unwrap()).is_ok(), "it was put together");
    assert!(sealer.seal(&of(PayloadKind::Signal), Plain::of("abcd").unwrap()).is_ok());
    let failure = sealer.storable(&Failure::new(FailureKind::Error, "abcd"));
    assert_eq!(failure.message, "abc… (1 bytes more)");
}

#[test]
fn too_large_payload_names_path_of_excess() {
    let large = Plain::of(&json!({ "a": [1, "éé", 2] })).unwrap();
    for (limit, place) in [(3, "$"), (7, "$.a[0]"), (10, "$.a[1]"), (15, "$.a[2]")] {
        let sealer = Sealer::default().with_limits(Limits::DEFAULT.step(limit));
        let error = sealer.seal(&of(PayloadKind::Step), large.clone()).unwrap_err();
        assert!(matches!(&error, PayloadError::TooLarge { path, .. } if path == place), "{error}");
    }
}

#[test]
fn unopenable_payload_is_shown_as_stored() {
    let place = of(PayloadKind::Step);
    let sealed = turns().seal(&place, Plain::of("abc").unwrap()).unwrap();
    assert_eq!(turns().show(&place, sealed.clone()), "\"abc\"");
    assert_eq!(Sealer::default().show(&place, sealed.clone()), sealed.as_str());
}

#[test]
fn secret_without_codec_is_refused_even_if_only_hashed() {
    let secret = Plain::of(&Secret::new("hunter2")).unwrap();
    for refused in [
        Sealer::default().check_secret("the input", &secret),
        Sealer::default().seal(&of(PayloadKind::Input), secret.clone()).map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(
            matches!(&error, PayloadError::SecretWithoutCodec { what } if what == "the input"),
            "{error}"
        );
    }
    assert!(turns().check_secret("the input", &secret).is_ok());
    assert!(Sealer::default().check_secret("the input", &Plain::of("abc").unwrap()).is_ok());
}

/// A codec that uses this name for its key.
struct Named(&'static str);

impl Codec for Named {
    fn seal(&self, _place: &Place<'_>, plain: &[u8]) -> Result<Sealed, CodecError> {
        Ok(Sealed::new(self.0, plain.to_vec()))
    }

    fn open(&self, _place: &Place<'_>, sealed: &Sealed) -> Result<Vec<u8>, CodecError> {
        if sealed.key_id() == self.0 { Ok(sealed.bytes().to_vec()) } else { Err(CodecError::no_key(sealed)) }
    }

    fn digest(&self, bytes: &[u8]) -> [u8; 32] {
        Self::hash(bytes)
    }
}

#[test]
fn codec_seals_under_valid_name_and_opens_only_its_own() {
    const LONGEST: &str = "0123456789-abcdefghijklmnopqrstuvwxyz_ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let named = |name| Sealer::default().with_codec(std::sync::Arc::new(Named(name)), true);
    let place = of(PayloadKind::Input);
    let seal = |name| named(name).seal(&place, Plain::of(&7).unwrap());
    for name in [LONGEST, "a", "2026.1"] {
        let sealed = seal(name).unwrap();
        assert_eq!(named(name).open(&place, sealed.clone()).unwrap(), "7");
        let error = named("other").open(&place, sealed).unwrap_err();
        let PayloadError::Open { source: CodecError::NoKey { key_id }, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(key_id, name);
    }
    let too_long: &str = Box::leak(format!("{LONGEST}00").into_boxed_str());
    for name in ["", "a:b", "a b", "ä", too_long] {
        let error = seal(name).unwrap_err();
        assert!(matches!(&error, PayloadError::Seal { .. }), "{name}: {error}");
        assert_eq!(error.to_failure().kind, FailureKind::Sealed);
    }
}

#[test]
fn sealed_payload_stays_sealed_when_moved_by_read_only_codec() {
    let (from, to) = (of(PayloadKind::Output), of(PayloadKind::Step));
    let reading = Sealer::default().with_codec(std::sync::Arc::new(Turns), false);
    let sealed = turns().seal(&from, Plain::of("abc").unwrap()).unwrap();
    let taken = reading.take_over(&from, sealed.clone()).unwrap();
    let again = reading.seal(&to, taken).unwrap();
    assert_eq!(turns().open(&to, again.clone()).unwrap(), "\"abc\"");
    assert!(turns().open(&from, again).is_err());
    let resealed = reading.reseal(&from, &to, sealed).unwrap();
    assert_eq!(turns().open(&to, resealed.clone()).unwrap(), "\"abc\"");
    assert!(turns().open(&from, resealed).is_err());
    let plain = Stored::read("\"abc\"".to_owned());
    assert_eq!(turns().reseal(&from, &to, plain.clone()).unwrap(), plain, "it stays as it was stored");
    assert_eq!(reading.seal(&to, Plain::of("abc").unwrap()).unwrap().as_str(), "\"abc\"");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sealed_payload_opens_only_at_its_place(text in "[^\0]*", key in ".{0,20}", other in ".{0,20}", at in 0..9_usize) {
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
    fn any_column_text_is_read_or_refused_without_panic(text in ".*", rest in ".*") {
        let _ = turns().open(&of(PayloadKind::Step), Stored::read(text.clone()));
        let _ = turns().open(&of(PayloadKind::Step), Stored::read(format!("{{\"$sealed\":\"{text}\"{rest}")));
        let _ = turns().show_failure(&of(PayloadKind::Error), &Stored::read(text));
    }
}
