//! The content of shapes, and the rule that a shape accepts every value that its type accepts.

use std::collections::{BTreeMap, HashMap};
use std::num::{NonZeroU8, Saturating};
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use uuid::Uuid;

use super::GateType;

#[derive(Deserialize)]
#[allow(dead_code, reason = "only read")]
struct Decision {
    approved: bool,
    #[serde(alias = "by_whom")]
    by: String,
    limit: Option<u8>,
    #[serde(default)]
    notes: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "only read")]
struct Strict {
    id: Uuid,
    at: NonZeroU8,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code, reason = "only read")]
enum Choice {
    Reject,
    Accept(u32),
    Split(u8, u8),
    Postpone { days: u16, why: Option<String> },
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "only read")]
enum Open {
    Known,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "kind")]
#[allow(dead_code, reason = "only read")]
enum Tagged {
    One { n: u8 },
    Two,
}

#[derive(Deserialize)]
#[serde(tag = "t", content = "c")]
#[allow(dead_code, reason = "only read")]
enum Adjacent {
    One(u8),
    Two,
}

#[derive(Deserialize)]
#[serde(tag = "t", content = "c")]
#[allow(dead_code, reason = "only read")]
enum AdjacentOfOneKind {
    One(u8),
    Two(u32),
}

#[derive(Deserialize)]
#[serde(untagged)]
#[allow(dead_code, reason = "only read")]
enum Untagged {
    Number(u8),
    Text(String),
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "only read")]
struct Tree {
    value: i64,
    children: Vec<Tree>,
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "only read")]
enum Sum {
    Of(Box<Sum>, Box<Sum>),
    Number(i64),
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "only read")]
struct Flat {
    a: u8,
    #[serde(flatten)]
    rest: HashMap<String, Value>,
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "only read")]
struct WithDefaults(u8, #[serde(default)] Option<u8>, #[serde(default)] u8);

/// Reads either field, as only hand-written code can.
struct OneOf;

impl<'de> Deserialize<'de> for OneOf {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = OneOf;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("`a` or `b`")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<OneOf, A::Error> {
                let mut is_given = false;
                while let Some(name) = map.next_key::<String>()? {
                    map.next_value::<u8>()?;
                    is_given |= name == "a" || name == "b";
                }
                is_given.then_some(OneOf).ok_or_else(|| serde::de::Error::missing_field("a"))
            }
        }
        deserializer.deserialize_struct("OneOf", &["a", "b"], Visitor)
    }
}

macro_rules! broad {
    ($($required:ident)*; $($optional:ident)*) => {
        /// Has many required and many optional fields.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code, reason = "only read")]
        struct Broad {
            $($required: (),)*
            $($optional: Option<()>,)*
        }
    };
}

broad! {
    a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13 a14 a15 a16 a17 a18 a19 a20 a21 a22 a23 a24 a25 a26 a27 a28 a29;
    b0 b1 b2 b3 b4 b5 b6 b7 b8 b9 b10 b11 b12 b13 b14 b15 b16 b17 b18 b19 b20 b21 b22 b23 b24 b25 b26 b27 b28 b29
}

/// Has no value, because it contains itself.
#[derive(Deserialize)]
#[allow(dead_code, reason = "only read")]
struct Endless(Box<Endless>);

/// Accepts only a value that no probe tries.
struct Picky;

impl<'de> Deserialize<'de> for Picky {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "open sesame" => Ok(Self),
            _ => Err(serde::de::Error::custom("no")),
        }
    }
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "only read")]
enum Door {
    Shut,
    Open(Picky),
}

#[derive(Deserialize)]
#[allow(dead_code, reason = "only read")]
struct WithChoice {
    choice: Choice,
    days: u8,
}

/// Panics on every value.
struct Panics;

impl<'de> Deserialize<'de> for Panics {
    #[allow(clippy::panic, reason = "that is what it is for")]
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("not expected here")
    }
}

/// Values of every kind. Each type reads some of them.
fn corpus() -> Vec<Value> {
    let scalars = vec![
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(255),
        json!(256),
        json!(70_000),
        json!(5_000_000_000_u64),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(0.5),
        json!(1e300),
        json!(""),
        json!("a"),
        json!("text"),
        json!("open sesame"),
        json!("Known"),
        json!("Strange"),
        json!("reject"),
        json!("accept"),
        json!("Two"),
        json!("67e55044-10b1-426f-9247-bb680e5fe0c8"),
    ];
    let mut values = scalars.clone();
    values.extend(scalars.iter().map(|value| json!([value])));
    values.extend(scalars.iter().map(|value| json!([value, value])));
    let names = [
        "approved", "by", "by_whom", "limit", "id", "at", "a", "0", "accept", "reject", "split", "Number",
        "Of", "value", "kind", "t", "c",
    ];
    for name in names {
        values.extend(scalars.iter().map(|value| json!({name: value})));
        values.extend(scalars.iter().map(|value| json!({name: [value, value]})));
    }
    values.extend([
        json!({}),
        json!([]),
        json!({"approved": true, "by": "ann"}),
        json!({"approved": true, "by_whom": "ann"}),
        json!({"approved": false, "by": "ann", "limit": 3, "notes": ["x"], "more": 1}),
        json!({"approved": "yes", "by": "ann"}),
        json!({"approved": true, "by": "ann", "limit": 300}),
        json!([true, "ann", null, []]),
        json!({"id": "67e55044-10b1-426f-9247-bb680e5fe0c8", "at": 3}),
        json!({"id": "67e55044-10b1-426f-9247-bb680e5fe0c8", "at": 3, "more": 1}),
        json!({"postpone": {"days": 3}}),
        json!({"postpone": {"days": 3, "why": "rain"}}),
        json!({"postpone": [3, null]}),
        json!({"split": [1, 2]}),
        json!({"kind": "One", "n": 1}),
        json!({"kind": "Two"}),
        json!({"t": "One", "c": 1}),
        json!({"t": "Two"}),
        json!({"c": 1, "t": "One"}),
        json!({"t": "Two", "c": 70_000}),
        json!({"value": 1, "children": [{"value": 2, "children": [{"value": 3, "children": []}]}]}),
        json!({"Of": [{"Number": 1}, {"Of": [{"Number": 1}, {"Number": 2}]}]}),
        json!({"a": 1, "rest": 2}),
        json!({"secs": 1, "nanos": 2}),
        json!({"secs_since_epoch": 1, "nanos_since_epoch": 2}),
        json!({"Ok": 1}),
        json!({"Err": "no"}),
        json!({"a": [1, 2], "b": []}),
        json!({"1": true}),
        json!({"x": true}),
    ]);
    values
}

/// Fails if the shape refuses a value that the type accepts. Returns how many values only the shape
/// accepts.
fn loose<T: DeserializeOwned + 'static>() -> usize {
    let shape = GateType::of::<T>();
    let stored: GateType = serde_json::from_str(&serde_json::to_string(&shape).unwrap()).unwrap();
    assert_eq!(stored, shape, "it is read as it was stored");
    if let Some(example) = shape.example() {
        assert!(serde_json::from_str::<T>(example).is_ok(), "the example of {shape} is not read: {example}");
    }
    let mut n_loose = 0;
    for value in corpus() {
        let (is_accepted, is_read) = (shape.check(&value), T::deserialize(&value).is_ok());
        let is_read = is_read || serde_json::from_str::<T>(&value.to_string()).is_ok();
        assert!(is_accepted.is_ok() || !is_read, "{shape} refuses {value}: {is_accepted:?}");
        n_loose += usize::from(is_accepted.is_ok() && !is_read);
    }
    n_loose
}

#[test]
fn shapes_of_plain_types_accept_exactly_readable_values() {
    assert_eq!(loose::<bool>(), 0);
    assert_eq!(loose::<()>(), 0);
    assert_eq!(loose::<u8>(), 0);
    assert_eq!(loose::<i64>(), 0);
    assert_eq!(loose::<u64>(), 0);
    assert_eq!(loose::<f64>(), 0);
    assert_eq!(loose::<String>(), 0);
    assert_eq!(loose::<Option<bool>>(), 0);
    assert_eq!(loose::<Vec<u32>>(), 0);
    assert_eq!(loose::<(u8, String)>(), 0);
    assert_eq!(loose::<[u8; 2]>(), 0);
    assert_eq!(loose::<BTreeMap<String, bool>>(), 0);
    assert_eq!(loose::<Choice>(), 0);
    assert_eq!(loose::<Value>(), 0);
    assert_eq!(loose::<Box<Option<Vec<Option<bool>>>>>(), 0);
    assert_eq!(loose::<Result<u8, String>>(), 0);
}

#[test]
fn shapes_of_unusual_types_accept_every_readable_value() {
    loose::<Decision>();
    loose::<Strict>();
    loose::<Open>();
    loose::<Tagged>();
    loose::<Adjacent>();
    loose::<AdjacentOfOneKind>();
    loose::<Untagged>();
    loose::<Tree>();
    loose::<Sum>();
    loose::<Flat>();
    loose::<WithDefaults>();
    loose::<Picky>();
    loose::<Option<Picky>>();
    assert!(GateType::of::<Panics>().check(&json!(1)).is_ok());
    loose::<NonZeroU8>();
    loose::<Saturating<u8>>();
    loose::<HashMap<u64, bool>>();
    loose::<Box<serde_json::value::RawValue>>();
    loose::<Uuid>();
    loose::<Duration>();
    loose::<SystemTime>();
    loose::<char>();
}

fn refusal<T: DeserializeOwned + 'static>(value: &Value) -> String {
    GateType::of::<T>().check(value).unwrap_err().to_string()
}

#[test]
fn refusal_names_place_and_expected_value() {
    assert_eq!(refusal::<bool>(&json!(null)), "`$` takes `true` or `false`");
    assert_eq!(refusal::<u8>(&json!(300)), "`$` takes an integer from 0 to 255");
    assert_eq!(
        refusal::<Vec<Option<u8>>>(&json!([1, null, "x"])),
        "`$[2]` takes `null` or an integer from 0 to 255"
    );
    let by = refusal::<Decision>(&json!({"approved": true, "by": 3}));
    assert_eq!(by, "`$.by` takes a string");
    assert_eq!(refusal::<Decision>(&json!({"approved": true})), "`$` takes an object with the field `by`");
    assert_eq!(
        refusal::<Choice>(&json!({"postpone": {"days": -1}})),
        "`$.postpone.days` takes an integer from 0 to 65535"
    );
    assert!(
        refusal::<Choice>(&json!("maybe")).starts_with("`$` takes one of `accept`, `postpone`, `reject`")
    );
    let strict = json!({"id": "67e55044-10b1-426f-9247-bb680e5fe0c8", "at": 3, "more": 1});
    assert!(refusal::<Strict>(&strict).contains("and no field `more`"));
}

#[test]
fn misspelt_field_is_not_accepted_as_alias() {
    let misspelt = json!({"aproved": true, "by": "ann"});
    assert_eq!(refusal::<Decision>(&misspelt), "`$` takes an object with the field `approved`");
    let with_alias = json!({"approved": true, "by_whom": "ann", "more": 1});
    assert_eq!(GateType::of::<Decision>().check(&with_alias), Ok(()));
}

#[test]
fn array_without_required_fields_does_not_fit_struct() {
    let shape = GateType::of::<Decision>();
    for value in [json!([true, "ann"]), json!([true, "ann", null, []])] {
        assert_eq!(shape.check(&value), Ok(()), "{value}");
    }
    for value in [json!([]), json!([true]), json!([true, "ann", null, [], 5, 6])] {
        assert!(shape.check(&value).is_err(), "{value}");
    }
}

#[test]
fn either_of_two_fields_fits_hand_written_type() {
    let shape = GateType::of::<OneOf>();
    for value in [json!({"a": 1}), json!({"b": 1})] {
        assert_eq!(shape.check(&value), Ok(()), "{value}");
    }
}

#[test]
fn probe_of_broad_struct_finds_all_fields_within_limit() {
    let with = |name: &str| {
        let required = (0..30).map(|n| (format!("a{n}"), Value::Null));
        Value::Object(required.chain([(name.to_owned(), Value::Null)]).collect())
    };
    assert_eq!(GateType::of::<Broad>().check(&with("b7")), Ok(()));
    assert!(refusal::<Broad>(&with("c")).contains("and no field `c`"));
    assert!(refusal::<Broad>(&json!({"a1": null})).contains("with the field `a0`"));
}

#[test]
fn type_without_values_is_probed_without_overflow() {
    assert_eq!(GateType::of::<Endless>().example(), None);
}

#[test]
fn short_array_fits_tuple_struct_with_trailing_defaults() {
    let shape = GateType::of::<WithDefaults>();
    for value in [json!([1]), json!([1, null]), json!([1, 2, 3])] {
        assert_eq!(shape.check(&value), Ok(()), "{value}");
    }
    for value in [json!([]), json!([1, 2, 3, 4])] {
        let refusal = shape.check(&value).unwrap_err().to_string();
        assert_eq!(refusal, "`$` takes an array of 1 to 3 items", "{value}");
    }
}

#[test]
fn example_and_advice_match_type() {
    assert_eq!(GateType::of::<bool>().example(), Some("true"));
    assert_eq!(GateType::of::<Decision>().example(), Some(r#"{"approved":true,"by":"text"}"#));
    assert_eq!(GateType::of::<Choice>().example(), Some(r#""reject""#));
    assert_eq!(GateType::of::<Picky>().example(), None);
    assert_eq!(GateType::of::<bool>().advice(), "give it `true` or `false`, such as `true`");
    assert_eq!(GateType::of::<Picky>().advice(), "give it a string");
    assert!(GateType::of::<()>().is_unit() && !GateType::of::<Option<()>>().is_unit());
}

#[test]
fn unprobeable_variant_content_is_accepted_and_unknown_variant_refused() {
    let shape = GateType::of::<Door>();
    for value in [json!("Shut"), json!({"Open": "open sesame"})] {
        assert_eq!(shape.check(&value), Ok(()), "{value}");
    }
    for value in [json!("Ajar"), json!({"Ajar": "open sesame"})] {
        assert_eq!(
            shape.check(&value).unwrap_err().to_string(),
            "`$` takes one of `Shut`, `Open`",
            "{value}"
        );
    }
}

#[test]
fn struct_containing_enum_is_checked_like_any_other() {
    assert_eq!(GateType::of::<WithChoice>().check(&json!({"choice": "reject", "days": 1})), Ok(()));
    let other = refusal::<WithChoice>(&json!({"choice": "maybe", "days": 1}));
    assert!(other.starts_with("`$.choice` takes one of"), "{other}");
    let missing = refusal::<WithChoice>(&json!({"choice": "reject"}));
    assert_eq!(missing, "`$` takes an object with the field `days`");
    let wrong = refusal::<WithChoice>(&json!({"choice": "reject", "days": "x"}));
    assert_eq!(wrong, "`$.days` takes an integer from 0 to 255");
}
