//! Values as text and back: a stored value comes back unchanged, and both readers of the column
//! accept it.

use std::collections::BTreeMap;

use runledger::__private::ErasedArg;
use runledger::model::json::{
    DecodeError, Fields, MAX_BYTES, MAX_DEPTH, canonical, decode, encode, encode_object, fingerprint,
    first_difference,
};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::bytes::Bytes;
use crate::jsonb;
use crate::value::{Node, depth, keeps_numbers, read_back};

/// Interprets the bytes as JSON, and as choices that make a value.
pub fn payload(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        readers_never_panic(text);
        a_canonical_text_stays_and_has_no_order(text);
        ready_made_json_is_stored_as_it_is_or_refused(text);
    }
    let node = Node::new(&mut Bytes::new(data));
    what_is_stored_comes_back(&node);
    arguments_are_found_by_their_names(&node);
}

/// An error names a remedy, and its length is bounded.
fn readers_never_panic(text: &str) {
    let _ = first_difference(text, "1");
    let _ = first_difference("{\"a\":[1]}", text);
    for result in [
        decode::<Value>(text).map(drop),
        decode::<Vec<(String, u64)>>(text).map(drop),
        decode::<BTreeMap<String, Option<f64>>>(text).map(drop),
        Fields::parse(text).and_then(|fields| fields.get::<Vec<u8>>("a").map(drop)),
    ] {
        if let Err(error) = result {
            let told = error.to_string();
            assert!(told.contains("; ") && told.chars().count() < 1000 + 4 * text.len(), "{told}");
        }
    }
}

fn a_canonical_text_stays_and_has_no_order(text: &str) {
    let once = match canonical(text) {
        Ok(once) => once,
        Err(DecodeError::TooDeep) => return assert!(depth(text) > MAX_DEPTH),
        Err(error) => {
            return assert!(!jsonb::reads(text) || read_back(text).is_none(), "`{text}` is JSON: {error}");
        }
    };
    assert_eq!(canonical(&once).as_deref(), Ok(once.as_str()));
    if let Ok(value) = decode::<Value>(text) {
        assert_eq!(decode::<Value>(&once), Ok(value));
    }
    let turned = turned(text).unwrap_or_else(|| text.to_owned());
    let of_turned = canonical(&turned).unwrap_or_else(|error| unreachable!("`{turned}`: {error}"));
    assert_eq!(of_turned, once, "`{turned}`");
    assert_eq!(first_difference(&of_turned, &once), None);
    assert_eq!(fingerprint(&of_turned), fingerprint(&once));
}

/// The same JSON with the keys of every object reversed and other white space. Of a duplicate key
/// only the last value remains.
fn turned(text: &str) -> Option<String> {
    let text = text.trim();
    let parts: Vec<String> = match text.as_bytes().first()? {
        b'[' => {
            let items: Vec<Box<RawValue>> = serde_json::from_str(text).ok()?;
            items.iter().map(|item| turned(item.get())).collect::<Option<_>>()?
        }
        b'{' => {
            let fields: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text).ok()?;
            let fields = fields.iter().rev().map(|(key, value)| {
                Some(format!("{} : {}", Value::from(key.as_str()), turned(value.get())?))
            });
            fields.collect::<Option<_>>()?
        }
        _ => return Some(text.to_owned()),
    };
    Some(format!("{}\n{} {}", &text[..1], parts.join(" ,\t"), &text[text.len() - 1..]))
}

fn ready_made_json_is_stored_as_it_is_or_refused(text: &str) {
    let Ok(ready) = RawValue::from_string(text.to_owned()) else { return };
    let is_storable = read_back(ready.get()).is_some()
        && keeps_numbers(text)
        && depth(text) <= MAX_DEPTH
        && text.len() <= MAX_BYTES;
    match encode(&ready) {
        Ok(stored) => {
            assert!(is_storable, "`{text}` is stored");
            assert_eq!(stored, ready.get());
        }
        Err(error) => {
            assert!(!is_storable, "`{text}`: {error}");
            assert!(error.to_string().contains("`$"), "{error}");
        }
    }
}

fn what_is_stored_comes_back(node: &Node) {
    let wanted = node.faithful().filter(|_| node.depth() <= MAX_DEPTH);
    match (encode(node), wanted) {
        (Ok(text), Some(wanted)) => {
            assert!(text.len() <= MAX_BYTES && depth(&text) <= MAX_DEPTH);
            assert!(jsonb::reads(&text), "`{text}`");
            assert_eq!(decode::<Value>(&text), Ok(wanted));
            a_canonical_text_stays_and_has_no_order(&text);
        }
        (Err(error), None) => assert!(error.to_string().contains("`$"), "{error}"),
        (Ok(text), None) => unreachable!("{node:?} is stored as `{text}`"),
        (Err(error), Some(_)) => unreachable!("{node:?}: {error}"),
    }
}

fn arguments_are_found_by_their_names(node: &Node) {
    let arguments: [(&str, &dyn ErasedArg); 3] = [("a", node), ("b", &1), ("c", node)];
    let Ok(text) = encode_object(&arguments) else {
        return assert!(node.faithful().is_none() || node.depth() >= MAX_DEPTH);
    };
    let fields = Fields::parse(&text).unwrap_or_else(|error| unreachable!("`{text}`: {error}"));
    assert_eq!(fields.get::<Value>("c").ok(), node.faithful(), "`{text}`");
    assert_eq!(fields.get::<u8>("b"), Ok(1));
}
