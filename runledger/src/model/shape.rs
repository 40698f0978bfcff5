//! The shape of a type in JSON. The engine stores the shape with a gate, so that a program without
//! the type can check a value before it decides the gate.
//!
//! A shape accepts every value that the type accepts. It may accept more: it omits the type's own
//! checks, such as text formats.

mod probe;

use std::any::TypeId;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The values that a gate accepts: the shape of its type in JSON, and an example.
///
/// It accepts every value that the type accepts. It may accept more, because it omits text formats,
/// list lengths, untagged and internally tagged enums, and every other check of the type's own,
/// such as a range narrower than its integer type. `Display` describes the values: `true` or
/// `false`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GateType {
    shape: Shape,
    /// A valid value as JSON text. `None` if the probe found none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    example: Option<String>,
}

/// The shape of a type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Shape {
    /// Any value. Also used if the probe could not determine the shape.
    Any,
    Null,
    Bool,
    Number(Range),
    Text,
    /// `null`, or a value of the inner shape.
    Option(Box<Shape>),
    List(Box<Shape>),
    Tuple(Items),
    Map(Box<Shape>),
    Struct(Fields),
    Enum(Variants),
}

/// The items of a tuple.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Items {
    known: Vec<Shape>,
    /// The number of leading items that a value must have: a tuple struct may have defaults for the
    /// others.
    required: usize,
}

/// The numbers that a type accepts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Range {
    /// Whether the type accepts fractions.
    fraction: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max: Option<u64>,
}

/// The fields of a struct.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Fields {
    known: BTreeMap<String, Shape>,
    required: Vec<String>,
    /// Names that the type accepts but the probe could not resolve, such as aliases.
    unknown: Vec<String>,
    /// Whether the type refuses other names.
    closed: bool,
}

/// The variants of an enum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Variants {
    /// The shape of each variant's content; `None` for a unit variant.
    known: BTreeMap<String, Option<Shape>>,
    /// Names that the type accepts but the probe could not resolve.
    unknown: Vec<String>,
    /// Whether the type refuses other names.
    closed: bool,
}

/// A value that does not fit a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    path: String,
    takes: String,
}

impl GateType {
    /// Probes the `Deserialize` of a type with made-up values, once per type and process. Takes
    /// microseconds for a small type, some milliseconds for a type with hundreds of fields, and at
    /// most a few seconds for a type with thousands of places.
    #[must_use]
    pub fn of<T: DeserializeOwned + 'static>() -> Self {
        static PROBED: Mutex<BTreeMap<TypeId, GateType>> = Mutex::new(BTreeMap::new());
        let probed = || PROBED.lock().unwrap_or_else(PoisonError::into_inner);
        let known = probed().get(&TypeId::of::<T>()).cloned();
        known.unwrap_or_else(|| {
            // Not under the lock: the code of the type may itself ask for a gate type.
            let (shape, example) = probe::probe::<T>();
            let gate_type = Self { shape, example: example.as_ref().map(ToString::to_string) };
            probed().entry(TypeId::of::<T>()).or_insert(gate_type).clone()
        })
    }

    /// Whether the type accepts only `null`, so that a decision needs no value.
    #[must_use]
    pub fn is_unit(&self) -> bool {
        self.shape == Shape::Null
    }

    /// A valid value as JSON text. `None` if the probe found none.
    #[must_use]
    pub fn example(&self) -> Option<&str> {
        self.example.as_deref()
    }

    /// Describes the accepted values and gives an example.
    pub(crate) fn advice(&self) -> String {
        match &self.example {
            Some(example) => format!("give it {self}, such as `{example}`"),
            None => format!("give it {self}"),
        }
    }

    /// Checks a value.
    ///
    /// # Errors
    /// The first place where the value does not fit the shape.
    pub fn check(&self, value: &Value) -> Result<(), Mismatch> {
        self.shape.check(value, &mut "$".to_owned())
    }
}

impl fmt::Display for GateType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shape.fmt(f)
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} takes {}", self.path, self.takes)
    }
}

impl Shape {
    fn check(&self, value: &Value, path: &mut String) -> Result<(), Mismatch> {
        let fits = match (self, value) {
            (Self::Any, _)
            | (Self::Null | Self::Option(_), Value::Null)
            | (Self::Bool, Value::Bool(_))
            | (Self::Text, Value::String(_)) => true,
            // Derived code accepts an array for a struct.
            (Self::Struct(fields), Value::Array(items)) => fields.may_have(items.len()),
            (Self::Option(shape), value) => {
                let here = self.refuses(path);
                let at_place = |other: Mismatch| if other.path == here.path { here } else { other };
                return shape.check(value, path).map_err(at_place);
            }
            (Self::Number(range), Value::Number(number)) => range.has(number),
            (Self::List(shape), Value::Array(items)) => {
                return each(
                    items.iter().enumerate().map(|(at, item)| (format!("[{at}]"), shape.as_ref(), item)),
                    path,
                );
            }
            (Self::Tuple(shapes), Value::Array(items))
                if (shapes.required..=shapes.known.len()).contains(&items.len()) =>
            {
                let items = shapes.known.iter().zip(items).enumerate();
                return each(items.map(|(at, (shape, item))| (format!("[{at}]"), shape, item)), path);
            }
            (Self::Map(shape), Value::Object(entries)) => {
                return each(
                    entries.iter().map(|(name, value)| (format!(".{name}"), shape.as_ref(), value)),
                    path,
                );
            }
            (Self::Struct(fields), Value::Object(entries)) => return fields.check(entries, path),
            (Self::Enum(variants), Value::String(name)) => variants.has(name, false),
            (Self::Enum(variants), Value::Object(entries)) if entries.len() == 1 => {
                return variants.check(self, entries, path);
            }
            _ => false,
        };
        if fits { Ok(()) } else { Err(self.refuses(path)) }
    }

    fn refuses(&self, path: &str) -> Mismatch {
        Mismatch { path: format!("`{path}`"), takes: self.to_string() }
    }
}

/// Checks parts of a value. Each part has its place relative to `path`.
fn each<'v>(
    parts: impl Iterator<Item = (String, &'v Shape, &'v Value)>,
    path: &mut String,
) -> Result<(), Mismatch> {
    let len = path.len();
    for (place, shape, value) in parts {
        path.push_str(&place);
        shape.check(value, path)?;
        path.truncate(len);
    }
    Ok(())
}

impl Range {
    fn has(&self, number: &serde_json::Number) -> bool {
        let is_above = |max: u64| number.as_u64().is_some_and(|number| number > max);
        let is_below = |min: i64| number.as_i64().is_some_and(|number| number < min);
        (self.fraction || !number.is_f64())
            && !self.max.is_some_and(is_above)
            && !self.min.is_some_and(is_below)
    }
}

impl Fields {
    /// In an adjacently tagged enum, the tag decides the type of the content field. The shape then
    /// checks only the tag. A struct of a unit-only enum and one other field looks the same, and is
    /// checked as little.
    fn loosened(mut self) -> Self {
        let is_tag = |shape: &Shape| matches!(shape, Shape::Enum(variants) if variants.known.values().all(Option::is_none));
        let mut is_tagged = self.known.len() == 2 && self.known.values().any(is_tag);
        for shape in self.known.values_mut() {
            if let Shape::Enum(variants) = shape
                && !variants.unknown.is_empty()
            {
                (variants.closed, is_tagged) = (false, true);
            }
        }
        if is_tagged {
            self.required.clear();
            for shape in self.known.values_mut().filter(|shape| !matches!(shape, Shape::Enum(_))) {
                *shape = Shape::Any;
            }
        }
        self
    }

    /// Whether an array of `n_items` has all required fields, and no extra items.
    fn may_have(&self, n_items: usize) -> bool {
        (self.required.len()..=self.known.len() + self.unknown.len()).contains(&n_items)
    }

    fn check(&self, entries: &serde_json::Map<String, Value>, path: &mut String) -> Result<(), Mismatch> {
        let mismatch = |what: String| Mismatch { path: format!("`{path}`"), takes: what };
        let strange =
            entries.keys().find(|name| !self.known.contains_key(*name) && !self.unknown.contains(name));
        if let Some(name) = strange.filter(|_| self.closed) {
            return Err(mismatch(format!(
                "{}, and no field `{name}`",
                list("an object with", self.known.keys())
            )));
        }
        // A name that the probe could not resolve may be an alias of the missing field.
        let may_have_aliases = entries.keys().any(|name| self.unknown.contains(name));
        let missing = self.required.iter().find(|name| !entries.contains_key(*name));
        if let Some(name) = missing.filter(|_| !may_have_aliases) {
            return Err(mismatch(format!("an object with the field `{name}`")));
        }
        let known = self.known.iter().filter_map(|(name, shape)| Some((name, shape, entries.get(name)?)));
        each(known.map(|(name, shape, value)| (format!(".{name}"), shape, value)), path)
    }
}

impl Variants {
    /// Whether the type accepts a variant of this name, with or without content.
    fn has(&self, name: &str, has_content: bool) -> bool {
        match self.known.get(name) {
            Some(content) => has_content || content.is_none(),
            None => !self.closed || self.unknown.iter().any(|other| other == name),
        }
    }

    fn check(
        &self,
        shape: &Shape,
        entries: &serde_json::Map<String, Value>,
        path: &mut String,
    ) -> Result<(), Mismatch> {
        for (name, content) in entries {
            if !self.has(name, true) {
                return Err(shape.refuses(path));
            }
            let known = match self.known.get(name) {
                Some(Some(known)) => known,
                Some(None) => &Shape::Null,
                None => &Shape::Any,
            };
            each(std::iter::once((format!(".{name}"), known, content)), path)?;
        }
        Ok(())
    }
}

fn list<'n>(before: &str, names: impl Iterator<Item = &'n String>) -> String {
    let mut text = before.to_owned();
    for (at, name) in names.enumerate() {
        let _ = write!(text, "{} `{name}`", if at == 0 { "" } else { "," });
    }
    text
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("a value"),
            Self::Null => f.write_str("`null`"),
            Self::Bool => f.write_str("`true` or `false`"),
            Self::Number(range) => range.fmt(f),
            Self::Text => f.write_str("a string"),
            Self::Option(shape) => write!(f, "`null` or {shape}"),
            Self::List(_) => f.write_str("an array"),
            Self::Tuple(Items { known, required }) if known.len() > *required => {
                write!(f, "an array of {required} to {} items", known.len())
            }
            Self::Tuple(items) => write!(f, "an array of {} items", items.required),
            Self::Map(_) => f.write_str("an object"),
            Self::Struct(fields) if fields.known.is_empty() => f.write_str("an object"),
            Self::Struct(fields) => f.write_str(&list("an object with", fields.known.keys())),
            Self::Enum(variants) => {
                f.write_str(&list("one of", variants.known.keys().chain(&variants.unknown)))
            }
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.fraction { "a number" } else { "an integer" })?;
        match (self.min, self.max) {
            (Some(min), Some(max)) => write!(f, " from {min} to {max}"),
            (Some(min), None) => write!(f, " of at least {min}"),
            (None, Some(max)) => write!(f, " of at most {max}"),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
