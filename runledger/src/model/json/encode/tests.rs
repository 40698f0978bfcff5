//! Refused and accepted values, with their paths.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::{Fields, MAX_BYTES, MAX_DEPTH, decode};
use super::*;

#[derive(Serialize)]
enum Shape {
    Unit,
    Newtype(Option<f64>),
    Tuple(u8, f32),
    Struct { deep: [f64; 2] },
}

fn path_of_infinite(value: &impl Serialize) -> String {
    match encode(value) {
        Err(EncodeError::NotFinite { path }) => path,
        other => panic!("{other:?}"),
    }
}

fn nested(depth: usize) -> Value {
    (1..depth)
        .fold(json!([]), |inner, level| if level % 2 == 0 { json!([inner]) } else { json!({ "a": inner }) })
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

#[test]
fn non_finite_float_is_refused_at_its_path() {
    assert_eq!(path_of_infinite(&f64::NAN), "$");
    assert_eq!(path_of_infinite(&f32::INFINITY), "$");
    assert_eq!(path_of_infinite(&(1, Some(f64::NEG_INFINITY))), "$[1]");
    assert_eq!(path_of_infinite(&BTreeMap::from([("a b", vec![0.0, f64::NAN])])), "$[\"a b\"][1]");
    assert_eq!(path_of_infinite(&BTreeMap::from([(7, BTreeMap::from([(true, f32::NAN)]))])), "$[\"7\"].true");
    assert_eq!(path_of_infinite(&[Shape::Unit, Shape::Tuple(1, f32::NAN)]), "$[1].Tuple[1]");
    assert_eq!(path_of_infinite(&Shape::Struct { deep: [0.0, f64::NAN] }), "$.Struct.deep[1]");
    assert_eq!(path_of_infinite(&Shape::Newtype(Some(f64::NAN))), "$.Newtype");
}

#[test]
fn none_float_is_encoded_as_null() {
    assert_eq!(encode(&(None::<f64>, Some(1.5), ())).unwrap(), "[null,1.5,null]");
}

#[test]
fn value_is_encoded_in_human_readable_form() {
    assert_eq!(encode(&std::net::Ipv4Addr::LOCALHOST).unwrap(), "\"127.0.0.1\"");
}

#[test]
fn nul_character_is_refused_in_strings_and_keys() {
    let error = encode(&json!({ "order": { "note": ["", "a\0b"] } })).unwrap_err();
    assert_eq!(error, EncodeError::Nul { path: "$.order.note[1]".into() });
    assert_eq!(encode(&'\0').unwrap_err(), EncodeError::Nul { path: "$".into() });
    let error = encode(&json!({ "order": { "no\0te": 1 } })).unwrap_err();
    assert_eq!(error, EncodeError::NulInKey { path: "$.order".into() });
    assert_eq!(encode("\u{1}\\u0000").unwrap(), r#""\u0001\\u0000""#);
}

#[test]
fn value_at_maximum_depth_passes_and_deeper_is_refused() {
    let deepest = nested(MAX_DEPTH);
    assert_eq!(decode::<Value>(&encode(&deepest).unwrap()).unwrap(), deepest);
    let Err(EncodeError::TooDeep { path }) = encode(&nested(MAX_DEPTH + 1)) else { panic!() };
    assert_eq!(path.matches(['[', '.']).count(), MAX_DEPTH);
    let shallow = encode(&vec![nested(MAX_DEPTH - 1); 3]);
    assert!(shallow.is_ok(), "depth is counted down again: {shallow:?}");
}

#[test]
fn argument_object_counts_as_one_level() {
    assert!(encode_object(&[("a", &nested(MAX_DEPTH - 1)), ("b", &nested(MAX_DEPTH - 1))]).is_ok());
    let error = encode_object(&[("a", &nested(MAX_DEPTH))]).unwrap_err();
    assert!(matches!(&error, EncodeError::TooDeep { path } if path.starts_with("$.a.")), "{error}");
}

#[test]
fn value_at_maximum_size_passes_and_larger_is_refused() {
    let text = "x".repeat(MAX_BYTES - 2);
    assert_eq!(encode(&text).unwrap().len(), MAX_BYTES);
    assert_eq!(encode(&(text + "x")).unwrap_err(), EncodeError::TooLarge { path: "$".into() });
}

#[test]
fn endless_value_stops_at_size_limit() {
    struct Endless;
    impl Serialize for Endless {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.collect_seq((0_u64..).map(|_| "0123456789"))
        }
    }
    let error = encode(&json!({ "a": 1 })).and_then(|_| encode(&[Endless])).unwrap_err();
    assert_eq!(error, EncodeError::TooLarge { path: format!("$[0][{}]", (MAX_BYTES - 2) / 13) });
}

#[test]
fn integer_beyond_64_bits_is_refused_except_as_key() {
    let highest = u128::from(u64::MAX);
    assert_eq!(encode(&(highest, i128::from(i64::MIN))).unwrap(), format!("[{highest},{}]", i64::MIN));
    assert_eq!(encode(&[highest + 1]).unwrap_err(), EncodeError::WideInteger { path: "$[0]".into() });
    assert_eq!(
        encode(&(i128::from(i64::MIN) - 1)).unwrap_err(),
        EncodeError::WideInteger { path: "$".into() }
    );
    let keys = BTreeMap::from([(u128::MAX, 1)]);
    assert_eq!(decode::<BTreeMap<u128, u8>>(&encode(&keys).unwrap()).unwrap(), keys);
}

#[test]
fn number_losing_precision_is_refused_in_raw_json() {
    let highest = u64::MAX.to_string();
    for kept in [
        highest.as_str(),
        "-9223372036854775808",
        "0.10000000000000001",
        "9007199254740992.0",
        "9007199254740994.0",
        "5.684341886080802e-14",
        "5.6843418860808015e-14",
        "1.7976931348623157e308",
        "123456789012345.6",
        "1e25",
        "1.50000000000000000000",
        "-0",
    ] {
        assert_eq!(encode(&[raw(kept)]).unwrap(), format!("[{kept}]"));
    }
    assert_eq!(encode(&raw(r#"{"18446744073709551616":1}"#)).unwrap(), r#"{"18446744073709551616":1}"#);
    for wide in [
        "18446744073709551616",
        "-9223372036854775809",
        r#"{"a":[123456789012345678901234567890]}"#,
        r#"{"a":18446744073709551616,"a":1}"#,
    ] {
        assert_eq!(
            encode(&[raw(wide)]).unwrap_err(),
            EncodeError::WideInteger { path: "$[0]".into() },
            "{wide}"
        );
    }
    for long in [
        "12345678901234567.89",
        "123456789012345678e0",
        "0.3333333333333333333",
        "-1.00000000000000000001",
        "9007199254740993.0",
        "-9007199254740993e0",
        "0.09007199254740993e17",
        "9223372036854775807.0",
    ] {
        assert_eq!(
            encode(&[raw(long)]).unwrap_err(),
            EncodeError::LongNumber { path: "$[0]".into() },
            "{long}"
        );
    }
}

#[test]
fn key_not_representable_in_json_is_refused() {
    let error = encode(&json!({})).and_then(|_| encode(&[HashMap::from([((1, 2), 3)])])).unwrap_err();
    assert_eq!(error, EncodeError::Key { path: "$[0]".into() });
}

#[test]
fn raw_json_obeys_same_rules() {
    let nul = encode(&[raw(r#"{"a":"\u0000"}"#)]).unwrap_err();
    assert_eq!(nul, EncodeError::Nul { path: "$[0]".into() });
    let key = encode(&[raw(r#"{"\u0000":1}"#)]).unwrap_err();
    assert_eq!(key, EncodeError::NulInKey { path: "$[0]".into() });
    for unreadable in [r#""\ud800""#, "1e400", "[-1e999]", "1e-200000"] {
        let error = encode(&[raw(unreadable)]).unwrap_err();
        assert_eq!(error, EncodeError::Fragment { path: "$[0]".into() }, "{unreadable}");
    }
    let many_digits = format!("1.{}", "0".repeat(20_000));
    for unreadable in
        ["0e-20000", &many_digits, "0e1500000000", "0e99999999999999999999", r#"{"a":1e400,"a":1}"#]
    {
        let error = encode(&raw(unreadable)).unwrap_err();
        assert_eq!(error, EncodeError::Fragment { path: "$".into() }, "{unreadable}");
    }
    let replaced = encode(&raw(r#"{"a":{"b":"\u0000"},"a":1}"#)).unwrap_err();
    assert_eq!(replaced, EncodeError::Nul { path: "$".into() });
    let deep = "[".repeat(MAX_DEPTH) + &"]".repeat(MAX_DEPTH);
    assert!(encode(&raw(&deep)).is_ok());
    assert_eq!(encode(&[raw(&deep)]).unwrap_err(), EncodeError::TooDeep { path: "$[0]".into() });
    assert_eq!(encode(&raw("[0e-9,-0.0,5e-324,0e+9]")).unwrap(), "[0e-9,-0.0,5e-324,0e+9]");
    assert_eq!(encode(&raw(r#"{ "a": [1.50, "\u00e9"] }"#)).unwrap(), r#"{ "a": [1.50, "\u00e9"] }"#);
}

#[test]
fn error_of_user_serialize_is_reported_with_its_path() {
    struct Broken;
    impl Serialize for Broken {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(S::Error::custom("no connection"))
        }
    }
    let error = encode(&BTreeMap::from([("a", [Broken])])).unwrap_err();
    assert_eq!(error, EncodeError::Failed { path: "$.a[0]".into(), reason: "no connection".into() });
}

#[test]
fn failing_display_is_error_and_not_panic() {
    struct Broken;
    impl fmt::Display for Broken {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            Err(fmt::Error)
        }
    }
    impl Serialize for Broken {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.collect_str(self)
        }
    }
    let error = encode(&[Broken]).unwrap_err();
    assert!(matches!(&error, EncodeError::Failed { path, .. } if path == "$[0]"), "{error}");
}

#[test]
fn nul_or_excess_size_written_by_display_is_refused() {
    struct Shown(char, usize);
    impl fmt::Display for Shown {
        fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            (0..self.1).try_for_each(|_| write!(to, "{}", self.0))
        }
    }
    impl Serialize for Shown {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.collect_str(self)
        }
    }
    assert_eq!(encode(&Shown('a', 3)).unwrap(), r#""aaa""#);
    assert_eq!(encode(&[Shown('\0', 1)]).unwrap_err(), EncodeError::Nul { path: "$[0]".into() });
    assert_eq!(encode(&[Shown('a', MAX_BYTES)]).unwrap_err(), EncodeError::TooLarge { path: "$[0]".into() });
}

#[test]
fn refusal_swallowed_by_serialize_is_still_reported() {
    struct Lenient;
    impl Serialize for Lenient {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            use serde::ser::SerializeSeq;
            let mut items = to.serialize_seq(Some(2))?;
            items.serialize_element(&1)?;
            let _ = items.serialize_element(&f64::NAN);
            items.end()
        }
    }
    assert_eq!(encode(&[Lenient]).unwrap_err(), EncodeError::NotFinite { path: "$".into() });
}

#[test]
fn arguments_are_encoded_as_object_in_order() {
    let (order, cents, note) = ("o-1", 250_u32, None::<String>);
    let text = encode_object(&[("order", &order), ("cents", &cents), ("a", &note)]).unwrap();
    assert_eq!(text, r#"{"order":"o-1","cents":250,"a":null}"#);
    assert_eq!(Fields::parse(&text).unwrap().get::<u32>("cents").unwrap(), cents);
    assert_eq!(encode_object(&[]).unwrap(), "{}");
}

#[test]
fn refused_argument_is_named() {
    let bad = json!({ "note": ["\0"] });
    let error = encode_object(&[("qty", &1), ("order", &bad), ("rate", &f64::NAN)]).unwrap_err();
    assert_eq!(error, EncodeError::Nul { path: "$.order.note[0]".into() });
    let error = encode_object(&[("qty", &1), ("rate", &f64::NAN)]).unwrap_err();
    assert_eq!(error, EncodeError::NotFinite { path: "$.rate".into() });
    assert!(error.to_string().starts_with("the number at `$.rate` is infinite or not a number: "));
}

#[test]
fn size_limit_covers_all_arguments_together() {
    let half = "x".repeat(MAX_BYTES / 2);
    let error = encode_object(&[("a", &half), ("b", &half)]).unwrap_err();
    assert_eq!(error, EncodeError::TooLarge { path: "$.b".into() });
}
