//! Values of every kind that `Serialize` supports, and what reading them back must return.

use std::collections::BTreeMap;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Number, Value};

use crate::bytes::Bytes;
use crate::jsonb;

/// A value as a user may have it, valid or not.
#[derive(Debug)]
pub(crate) enum Node {
    Unit,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    WideSigned(i128),
    WideUnsigned(u128),
    Single(f32),
    Double(f64),
    Char(char),
    Text(String),
    /// Serialized through `Display`.
    Shown(String),
    Items(Vec<Node>),
    Fields(BTreeMap<String, Node>),
    /// A value inside many arrays: more than a short input could spell out.
    Deep(u8, Box<Node>),
    Ready(Box<RawValue>),
}

/// The depth of values made of bytes, without `Deep`.
const DEPTH: u8 = 8;

impl Node {
    pub(crate) fn new(bytes: &mut Bytes<'_>) -> Self {
        Self::within(DEPTH, bytes)
    }

    fn within(depth: u8, bytes: &mut Bytes<'_>) -> Self {
        let kinds = if depth == 0 { 12 } else { 15 };
        match bytes.below(kinds) {
            1 => Self::Bool(bytes.is_true()),
            2 => Self::Signed(bytes.wide().cast_signed()),
            3 => Self::Unsigned(bytes.wide()),
            4 => Self::WideSigned(bytes.widest().cast_signed()),
            5 => Self::WideUnsigned(bytes.widest()),
            6 => Self::Single(f32::from_bits(u32::from_le_bytes(std::array::from_fn(|_| bytes.byte())))),
            7 => Self::Double(f64::from_bits(bytes.wide())),
            8 => Self::Char(bytes.text().chars().next().unwrap_or_default()),
            9 => Self::Text(bytes.text()),
            10 => Self::Shown(bytes.text()),
            11 => RawValue::from_string(bytes.text()).map_or(Self::Unit, Self::Ready),
            12 => Self::Items((0..bytes.below(5)).map(|_| Self::within(depth - 1, bytes)).collect()),
            13 => Self::Fields(
                (0..bytes.below(5)).map(|_| (bytes.text(), Self::within(depth - 1, bytes))).collect(),
            ),
            14 => Self::Deep(bytes.below(80), Box::new(Self::within(depth - 1, bytes))),
            _ => Self::Unit,
        }
    }

    /// The value that a reader must find. `None` if the value must not be stored.
    pub(crate) fn faithful(&self) -> Option<Value> {
        match self {
            Self::Unit => Some(Value::Null),
            Self::Bool(bool) => Some(Value::from(*bool)),
            Self::Signed(number) => Some(Value::from(*number)),
            Self::Unsigned(number) => Some(Value::from(*number)),
            Self::WideSigned(number) => Number::from_i128(*number).map(Value::Number),
            Self::WideUnsigned(number) => Number::from_u128(*number).map(Value::Number),
            Self::Single(number) => single(*number),
            Self::Double(number) => double(*number),
            Self::Char(char) => text(&char.to_string()),
            Self::Text(written) | Self::Shown(written) => text(written),
            Self::Items(items) => {
                items.iter().map(Self::faithful).collect::<Option<Vec<_>>>().map(Value::from)
            }
            Self::Fields(fields) => {
                let fields: Option<serde_json::Map<_, _>> = fields
                    .iter()
                    .map(|(key, node)| (!key.contains('\0')).then_some((key.clone(), node.faithful()?)))
                    .collect();
                fields.map(Value::Object)
            }
            Self::Deep(levels, node) => {
                node.faithful().map(|inner| (0..*levels).fold(inner, |inner, _| Value::from(vec![inner])))
            }
            Self::Ready(text) => read_back(text.get()).filter(|_| keeps_numbers(text.get())),
        }
    }

    /// The depth of nested arrays and objects.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Self::Items(items) => 1 + items.iter().map(Self::depth).max().unwrap_or(0),
            Self::Fields(fields) => 1 + fields.values().map(Self::depth).max().unwrap_or(0),
            Self::Deep(levels, node) => usize::from(*levels) + node.depth(),
            Self::Ready(text) => depth(text.get()),
            _ => 0,
        }
    }
}

/// The value of a text, if `jsonb` and every JSON reader accept it without loss.
pub(crate) fn read_back(text: &str) -> Option<Value> {
    let vanishes = numbers(text).any(|number| {
        let digits = mantissa(&number);
        number.parse::<f64>().is_ok_and(|read| {
            read.is_infinite() || (read == 0.0 && digits.contains(|digit| ('1'..='9').contains(&digit)))
        })
    });
    if vanishes || !jsonb::reads(text) {
        return None;
    }
    serde_json::from_str(text).ok()
}

/// Whether no reader rounds a number of this text. Integers must fit in 64 bits. Floats must have
/// at most 17 digits, in the shortest or a correctly rounded form.
pub(crate) fn keeps_numbers(text: &str) -> bool {
    numbers(text).all(|number| {
        if !number.contains(['.', 'e', 'E']) {
            return number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok();
        }
        let n_digits = scientific(&number).0.len();
        let Ok(float) = number.parse::<f64>() else { return false };
        let shortest = serde_json::to_string(&float).unwrap_or_default();
        let rounded = format!("{float:.*e}", n_digits.saturating_sub(1));
        n_digits == 0
            || n_digits <= 17
                && [shortest, rounded].iter().any(|form| scientific(form) == scientific(&number))
    })
}

/// The digits of a number without zeros at both ends, and the power of ten of the first digit.
fn scientific(number: &str) -> (String, i64) {
    let number = number.trim_start_matches('-');
    let (digits, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, behind) = digits.split_once('.').unwrap_or((digits, ""));
    let all = [whole, behind].concat();
    let first = all.find(|digit| digit != '0').unwrap_or_default();
    let power = exponent.parse::<i64>().unwrap_or_default() + whole.len() as i64 - first as i64;
    (all.trim_matches('0').to_owned(), power)
}

/// The most brackets open at once.
pub(crate) fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in outside_texts(text).bytes() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn mantissa(number: &str) -> &str {
    number.split(['e', 'E']).next().unwrap_or_default()
}

fn numbers(text: &str) -> impl Iterator<Item = String> {
    let outside = outside_texts(text);
    let parts: Vec<String> =
        outside.split(|c: char| "[]{},: \t\r\n".contains(c)).map(str::to_owned).collect();
    parts.into_iter().filter(|part| part.starts_with(|c: char| c == '-' || c.is_ascii_digit()))
}

/// A JSON text without the contents of its strings.
fn outside_texts(text: &str) -> String {
    let (mut outside, mut is_inside, mut is_escaped) = (String::new(), false, false);
    for c in text.chars() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_inside => is_escaped = true,
            '"' => is_inside = !is_inside,
            _ if !is_inside => outside.push(c),
            _ => {}
        }
    }
    outside
}

/// The shortest digits of an `f32`, which differ from those of the same number as an `f64`. Of two
/// equally short forms it takes serde_json's, because the standard library may choose the other.
fn single(number: f32) -> Option<Value> {
    let shortest = serde_json::to_string(&number).ok()?;
    let read: f64 = shortest.parse().ok()?;
    assert_eq!(shortest.parse(), Ok(number), "`{shortest}`");
    double(read)
}

fn double(number: f64) -> Option<Value> {
    Number::from_f64(number).map(Value::Number)
}

fn text(text: &str) -> Option<Value> {
    (!text.contains('\0')).then(|| Value::from(text))
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unit => to.serialize_unit(),
            Self::Bool(bool) => to.serialize_bool(*bool),
            Self::Signed(number) => to.serialize_i64(*number),
            Self::Unsigned(number) => to.serialize_u64(*number),
            Self::WideSigned(number) => to.serialize_i128(*number),
            Self::WideUnsigned(number) => to.serialize_u128(*number),
            Self::Single(number) => to.serialize_f32(*number),
            Self::Double(number) => to.serialize_f64(*number),
            Self::Char(char) => to.serialize_char(*char),
            Self::Text(text) => to.serialize_str(text),
            Self::Shown(text) => to.collect_str(text),
            Self::Items(items) => to.collect_seq(items),
            Self::Fields(fields) => {
                let mut map = to.serialize_map(None)?;
                fields.iter().try_for_each(|(key, node)| map.serialize_entry(key, node))?;
                map.end()
            }
            Self::Deep(0, node) => node.serialize(to),
            Self::Deep(levels, node) => to.collect_seq([Around(levels - 1, node)]),
            Self::Ready(text) => text.serialize(to),
        }
    }
}

/// A value inside arrays.
struct Around<'n>(u8, &'n Node);

impl Serialize for Around<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self(0, node) => node.serialize(to),
            Self(levels, node) => to.collect_seq([Self(levels - 1, node)]),
        }
    }
}
