use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::model::payload::PayloadKind;

fn place(run: u128, key: &str) -> Place<'_> {
    Place::new(Uuid::from_u128(run), PayloadKind::Step, key)
}

#[test]
fn sealing_same_payload_twice_gives_different_bytes() {
    let codec = AesGcm::new("a", [1; 32]);
    let seal = || codec.seal(&place(1, "k"), b"text").unwrap().bytes().to_vec();
    assert_ne!(seal(), seal());
}

/// Another implementation computed both: HMAC, and AES-256-GCM with the nonce 0, 1, …, 11.
const DIGEST: &str = "493b0edc227b67ddbab958bad0c08bf0b7db89b2be9f283d213eea027f59d8b7";
const SEALED: [u8; 33] = [
    1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255, 76, 250, 20, 182, 6, 102, 230, 230, 80, 1, 49, 191, 118,
    102, 70, 64, 104, 177, 222,
];

/// The stored format: later versions must open it.
#[test]
fn payload_sealed_by_earlier_version_opens() {
    let codec = AesGcm::new("a", [1; 32]);
    let bytes = codec.seal(&place(1, "k"), b"text").unwrap();
    assert_eq!((bytes.bytes()[0], bytes.bytes().len()), (FORM, 1 + NONCE_LEN + 4 + MAX_TAG_LEN));
    let digest: String = codec.digest(b"text").iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest, DIGEST);
    let sealed = Sealed::new("a", SEALED.to_vec());
    assert_eq!(codec.open(&place(1, "k"), &sealed).unwrap(), b"text");
}

#[test]
fn codec_distinguishes_keys_key_names_forms_and_digests() {
    let sealed = AesGcm::new("a", [1; 32]).seal(&place(1, "k"), b"text").unwrap();
    let error = AesGcm::new("b", [1; 32]).open(&place(1, "k"), &sealed).unwrap_err();
    assert!(matches!(error, CodecError::NoKey { ref key_id } if key_id == "a"), "{error}");
    let error = AesGcm::new("a", [2; 32]).open(&place(1, "k"), &sealed).unwrap_err();
    assert!(matches!(error, CodecError::Mismatch { .. }), "{error}");
    let rotated = AesGcm::new("b", [2; 32]).with_previous_key("a", [1; 32]);
    assert_eq!(rotated.open(&place(1, "k"), &sealed).unwrap(), b"text");
    assert_eq!(rotated.old_digests(b"x"), [AesGcm::new("a", [1; 32]).digest(b"x")]);
    assert_ne!(rotated.digest(b"x"), rotated.old_digests(b"x")[0]);
    let other_form = Sealed::new("a", [&[2], &sealed.bytes()[1..]].concat());
    assert!(AesGcm::new("a", [1; 32]).open(&place(1, "k"), &other_form).is_err());
}

#[test]
fn debug_output_hides_keys() {
    let text = format!("{:?}", AesGcm::new("a", [7; 32]).with_previous_key("b", [8; 32]));
    assert_eq!(text, "AesGcm { key_id: \"a\", old: [\"b\"], .. }");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sealed_payload_opens_only_unchanged_at_its_place(
        text in proptest::collection::vec(any::<u8>(), 0..300), key in ".{0,9}", at in any::<usize>(), bit in 0..8_u8,
    ) {
        let codec = AesGcm::new("a", [1; 32]);
        let sealed = codec.seal(&place(1, &key), &text).unwrap();
        prop_assert_eq!(codec.open(&place(1, &key), &sealed).unwrap(), text);
        prop_assert!(codec.open(&place(2, &key), &sealed).is_err());
        let longer = format!("{key}x");
        prop_assert!(codec.open(&place(1, &longer), &sealed).is_err());
        let mut changed = sealed.bytes().to_vec();
        let at = at % changed.len();
        changed[at] ^= 1 << bit;
        prop_assert!(codec.open(&place(1, &key), &Sealed::new("a", changed)).is_err());
        let cut = sealed.bytes()[..at].to_vec();
        prop_assert!(codec.open(&place(1, &key), &Sealed::new("a", cut)).is_err());
    }
}
