//! The canonical text of a JSON value, so equal requests compare equal in any `HashMap` order.

use std::borrow::Cow;
use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::error::DecodeError;
use super::tree::{Fault, Tree};
use super::{MAX_DEPTH, path};

/// The same JSON with sorted keys, without insignificant white space, and with one spelling of
/// every escape.
///
/// Numbers keep their text, so no digit is lost (`1` and `1.0` differ). Only the spelling of
/// exponents is unified (`1E+9` becomes `1e9`). If a key occurs twice, the last value counts.
///
/// # Errors
/// [`DecodeError::Malformed`] if the text is not JSON, [`DecodeError::TooDeep`] beyond
/// [`MAX_DEPTH`].
pub fn canonical(text: &str) -> Result<String, DecodeError> {
    let tree = Tree::parse(text, MAX_DEPTH).map_err(|fault| match fault {
        Fault::Malformed(reason) => DecodeError::Malformed { reason },
        Fault::TooDeep => DecodeError::TooDeep,
    })?;
    let mut out = String::with_capacity(text.len());
    push_tree(&mut out, &tree);
    Ok(out)
}

/// The path of the first difference of two canonical texts, like `order.cents` or `items[2]`; `$`
/// if they differ as a whole or are not JSON. `None` if they are equal.
#[must_use]
pub fn first_difference(a: &str, b: &str) -> Option<String> {
    if a == b {
        return None;
    }
    let mut path = String::new();
    if let (Ok(a), Ok(b)) = (Tree::parse(a, MAX_DEPTH), Tree::parse(b, MAX_DEPTH)) {
        if a == b {
            return None;
        }
        descend(&mut path, &a, &b);
    }
    Some(if path.is_empty() { "$".to_owned() } else { path })
}

/// The first 8 bytes of the text's SHA-256, big-endian. The same in every process, version and
/// platform. Use a canonical text to compare meanings, and any text to compare bytes.
///
/// A fast hash such as FNV would be enough against chance, but requests come from outside. For such
/// a hash, an attacker can write two different requests with one fingerprint in a second, and the
/// second would pass as a repetition of the first. SHA-256 needs 2^32 tries for any pair, and 2^64
/// for a given request. The fingerprint does not protect secrets: a guessable text can be found by
/// trying.
#[must_use]
pub fn fingerprint(text: &str) -> i64 {
    let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    let [a, b, c, d, e, f, g, h, ..] = digest;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

fn push_tree(out: &mut String, tree: &Tree<'_>) {
    match tree {
        Tree::Literal(literal) => push_literal(out, literal),
        Tree::Text(text) => push_text(out, text),
        Tree::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                push_comma(out, index);
                push_tree(out, item);
            }
            out.push(']');
        }
        Tree::Object(fields) => {
            out.push('{');
            for (index, (key, value)) in fields.iter().enumerate() {
                push_comma(out, index);
                push_text(out, key);
                out.push(':');
                push_tree(out, value);
            }
            out.push('}');
        }
    }
}

fn push_comma(out: &mut String, index: usize) {
    if index > 0 {
        out.push(',');
    }
}

/// Versions of `serde_json` and other programs spell exponents differently: `1e16`, `1e+16`,
/// `1E16`.
fn push_literal(out: &mut String, literal: &str) {
    match literal.split_once(['e', 'E']) {
        // `true` and `false` have nothing after the `e`, so they do not change.
        Some((digits, exponent)) => {
            out.push_str(digits);
            out.push('e');
            out.push_str(exponent.strip_prefix('+').unwrap_or(exponent));
        }
        None => out.push_str(literal),
    }
}

fn push_text(out: &mut String, text: &str) {
    if text.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        out.push_str(&serde_json::Value::from(text).to_string());
    } else {
        out.push('"');
        out.push_str(text);
        out.push('"');
    }
}

/// Extends `path` to the first difference of two different trees.
fn descend(path: &mut String, a: &Tree<'_>, b: &Tree<'_>) {
    match (a, b) {
        (Tree::Object(a), Tree::Object(b)) => {
            if let Some(key) = first_key(a, b) {
                path::push_key(path, key);
                if let (Some(a), Some(b)) = (a.get(key), b.get(key)) {
                    descend(path, a, b);
                }
            }
        }
        (Tree::Array(a), Tree::Array(b)) => {
            let index = a.iter().zip(b).take_while(|(a, b)| a == b).count();
            path::push_index(path, index);
            if let (Some(a), Some(b)) = (a.get(index), b.get(index)) {
                descend(path, a, b);
            }
        }
        _ => {}
    }
}

type Object<'a> = BTreeMap<Cow<'a, str>, Tree<'a>>;

/// The first key, in key order, that only one object has, or whose values differ.
fn first_key<'k>(a: &'k Object<'_>, b: &'k Object<'_>) -> Option<&'k str> {
    let in_a = a.iter().find(|(key, value)| b.get(key.as_ref()) != Some(value)).map(|(key, _)| key.as_ref());
    let in_b = b.keys().map(Cow::as_ref).find(|key| !a.contains_key(*key));
    match (in_a, in_b) {
        (Some(in_a), Some(in_b)) => Some(in_a.min(in_b)),
        (in_a, in_b) => in_a.or(in_b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical_of(text: &str) -> String {
        canonical(text).unwrap()
    }

    #[test]
    fn canonical_form_ignores_key_order_whitespace_and_escapes() {
        let a = canonical_of(" { \"b\" : [ 1 , { } , [ ] ] ,\n\"\\u0061\":\"\\u00e9\\/\\n\" } ");
        assert_eq!(a, "{\"a\":\"é/\\n\",\"b\":[1,{},[]]}");
        assert_eq!(canonical_of(&a), a);
    }

    #[test]
    fn digits_of_number_stay_as_written() {
        assert_eq!(
            canonical_of("[123456789012345678901234567890, 1.0, 1, -0.0, 0.10, true, false, null]"),
            "[123456789012345678901234567890,1.0,1,-0.0,0.10,true,false,null]"
        );
    }

    #[test]
    fn exponent_has_one_spelling() {
        assert_eq!(canonical_of("[1E+16, 1e16, 1.5E-7, -1E+9]"), "[1e16,1e16,1.5e-7,-1e9]");
    }

    #[test]
    fn last_value_of_repeated_key_wins() {
        assert_eq!(canonical_of(r#"{"a":1,"a":2}"#), r#"{"a":2}"#);
    }

    #[test]
    fn invalid_json_has_no_canonical_form() {
        for text in ["", " ", "{", "[1,]", "{\"a\" 1}", "\"a", "[1] 2", "nul", "\"\\ud800\"", "1e", "[}"] {
            assert!(matches!(canonical(text), Err(DecodeError::Malformed { .. })), "{text}");
        }
    }

    #[test]
    fn text_at_maximum_depth_passes_and_deeper_is_refused() {
        let deepest = "[".repeat(MAX_DEPTH) + &"]".repeat(MAX_DEPTH);
        assert_eq!(canonical_of(&deepest), deepest);
        for depth in [MAX_DEPTH + 1, 100_000] {
            let deeper = "[".repeat(depth) + &"]".repeat(depth);
            assert_eq!(canonical(&deeper), Err(DecodeError::TooDeep));
        }
    }

    #[test]
    fn first_difference_is_named_by_its_path() {
        let cases = [
            (r#"{"order":{"cents":1,"id":7}}"#, r#"{"order":{"cents":2,"id":8}}"#, "order.cents"),
            (r#"{"items":[1,2,3]}"#, r#"{"items":[1,2]}"#, "items[2]"),
            (r#"{"items":[1,{"a":null}]}"#, r#"{"items":[1,{"a":0}]}"#, "items[1].a"),
            (r#"{"b":1}"#, r#"{"a":1,"b":1}"#, "a"),
            (r#"{"a":1,"c":1}"#, r#"{"b":1,"c":1}"#, "a"),
            (r#"{"a b":1}"#, r#"{"a b":2}"#, "[\"a b\"]"),
            ("[[0]]", "[[1]]", "[0][0]"),
            ("1", "2", "$"),
            ("[]", "{}", "$"),
            ("no json", "1", "$"),
        ];
        for (a, b, path) in cases {
            assert_eq!(first_difference(a, b).as_deref(), Some(path), "{a} {b}");
            assert_eq!(first_difference(b, a).as_deref(), Some(path), "{b} {a}");
        }
    }

    #[test]
    fn equal_texts_have_no_difference() {
        assert_eq!(first_difference("no json", "no json"), None);
        assert_eq!(first_difference("{\"a\":1,\"b\":2}", "{\"b\":2, \"a\":1}"), None);
    }

    #[test]
    fn fingerprint_is_first_eight_bytes_of_sha_256() {
        // The first 8 bytes of SHA-256 of the empty text and of `abc`, from FIPS 180-4's examples.
        assert_eq!(fingerprint(""), 0xe3b0_c442_98fc_1c14_u64.cast_signed());
        assert_eq!(fingerprint("abc"), 0xba78_16bf_8f01_cfea_u64.cast_signed());
    }
}
