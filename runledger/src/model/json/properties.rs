//! Checks that every value within the limits survives the round trip, and that every planted fault
//! is found at its path.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde::Serialize;
use serde_json::Value;

use super::path::{push_index, push_key};
use super::{
    DecodeError, EncodeError, Fields, MAX_DEPTH, canonical, decode, encode, encode_object, fingerprint,
    first_difference,
};

/// A value with a place for a fault that `Value` cannot represent.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Node {
    Sound(Value),
    NotFinite(Option<f64>),
    NotFiniteSingle(f32),
    Text(String),
    Items(Vec<Node>),
    Fields(BTreeMap<String, Node>),
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Nan,
    InfiniteSingle,
    Nul,
    NulInKey,
    Deep,
}

#[derive(Clone, Debug)]
enum Step {
    Index { before: Vec<Value>, after: Vec<Value> },
    Key { key: String, others: BTreeMap<String, Value> },
}

/// Text without NUL, with many characters that need escapes.
fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{0,8}", "[\u{1}-\u{1f}\"\\\\/ .é\u{10ffff}\\[\\]]{0,8}", "[^\u{0}]{0,8}"]
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<u64>().prop_map(f64::from_bits).prop_filter("finite", |n| n.is_finite()).prop_map(Value::from),
        text().prop_map(Value::from),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(6, 60, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            btree_map(text(), inner, 0..6).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (vec(scalar(), 0..3), vec(scalar(), 0..3)).prop_map(|(before, after)| Step::Index { before, after }),
        (text(), btree_map(text(), scalar(), 0..3)).prop_map(|(key, others)| Step::Key { key, others }),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Nan),
        Just(Fault::InfiniteSingle),
        Just(Fault::Nul),
        Just(Fault::NulInKey),
        Just(Fault::Deep)
    ]
}

/// The faulty value at the end of `steps`, and its expected error.
fn plant(fault: Fault, steps: &[Step]) -> (Node, EncodeError) {
    let mut path = "$".to_owned();
    for step in steps {
        match step {
            Step::Index { before, .. } => push_index(&mut path, before.len()),
            Step::Key { key, .. } => push_key(&mut path, key),
        }
    }
    let (core, error) = match fault {
        Fault::Nan => (Node::NotFinite(Some(f64::NAN)), EncodeError::NotFinite { path }),
        Fault::InfiniteSingle => (Node::NotFiniteSingle(f32::NEG_INFINITY), EncodeError::NotFinite { path }),
        Fault::Nul => (Node::Text("a\0".to_owned()), EncodeError::Nul { path }),
        Fault::NulInKey => {
            let fields = BTreeMap::from([("\0a".to_owned(), Node::Sound(Value::Null))]);
            (Node::Fields(fields), EncodeError::NulInKey { path })
        }
        Fault::Deep => {
            let n_below = MAX_DEPTH - steps.len();
            (0..n_below).for_each(|_| push_index(&mut path, 0));
            let core = (0..=n_below).fold(Node::Sound(Value::Null), |inner, _| Node::Items(vec![inner]));
            (core, EncodeError::TooDeep { path })
        }
    };
    (steps.iter().rev().fold(core, wrap), error)
}

fn wrap(inner: Node, step: &Step) -> Node {
    match step {
        Step::Index { before, after } => {
            let before = before.iter().cloned().map(Node::Sound);
            Node::Items(before.chain([inner]).chain(after.iter().cloned().map(Node::Sound)).collect())
        }
        Step::Key { key, others } => {
            let mut fields: BTreeMap<_, _> =
                others.iter().map(|(k, v)| (k.clone(), Node::Sound(v.clone()))).collect();
            fields.insert(key.clone(), inner);
            Node::Fields(fields)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_value_within_limits_round_trips(value in value()) {
        let text = encode(&value).unwrap();
        prop_assert_eq!(&text, &serde_json::to_string(&value).unwrap());
        prop_assert_eq!(decode::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn every_finite_float_round_trips_bit_by_bit(bits: u64, single: u32) {
        let (double, single) = (f64::from_bits(bits), f32::from_bits(single));
        prop_assume!(double.is_finite() && single.is_finite());
        let back: (f64, f32) = decode(&encode(&(double, single)).unwrap()).unwrap();
        prop_assert_eq!((back.0.to_bits(), back.1.to_bits()), (double.to_bits(), single.to_bits()));
    }

    #[test]
    fn every_argument_round_trips_by_name(a in value(), b in value()) {
        let text = encode_object(&[("a", &a), ("b", &b)]).unwrap();
        let fields = Fields::parse(&text).unwrap();
        prop_assert_eq!(fields.get::<Value>("b").unwrap(), b);
        prop_assert_eq!(fields.get::<Value>("a").unwrap(), a);
    }

    #[test]
    fn every_planted_fault_is_refused_at_its_path(fault in fault(), steps in vec(step(), 0..8)) {
        let (value, error) = plant(fault, &steps);
        prop_assert_eq!(encode(&value).unwrap_err(), error);
    }

    #[test]
    fn canonical_form_keeps_value_and_is_idempotent(value in value()) {
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        let text = canonical(&pretty).unwrap();
        prop_assert_eq!(&canonical(&encode(&value).unwrap()).unwrap(), &text);
        prop_assert_eq!(&canonical(&text).unwrap(), &text);
        prop_assert_eq!(decode::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn texts_differ_exactly_when_first_difference_exists(a in value(), b in value()) {
        let (a, b) = (canonical(&encode(&a).unwrap()).unwrap(), canonical(&encode(&b).unwrap()).unwrap());
        prop_assert_eq!(first_difference(&a, &b).is_some(), a != b);
        prop_assert_eq!(fingerprint(&a) == fingerprint(&b), a == b);
    }

    #[test]
    fn no_text_makes_reader_panic(text in "[\\[\\]{}\",:\\\\u0d8e1. \u{0}é-]{0,24}") {
        let is_json = serde_json::from_str::<Value>(&text).is_ok();
        let result = canonical(&text);
        prop_assert!(!is_json || result.is_ok(), "{result:?}");
        let is_explained = matches!(result, Ok(_) | Err(DecodeError::Malformed { .. }));
        prop_assert!(is_explained, "{result:?}");
        let _ = (first_difference(&text, "1"), Fields::parse(&text).is_ok());
    }
}
