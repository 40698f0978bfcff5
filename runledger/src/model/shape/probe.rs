//! Derives the shape of a type: its `Deserialize` reads made-up values, and the probe records each
//! request.
//!
//! Each run reads one tree of values. A place without a value is a hole: the run stops there and
//! reports the request of the type. If a run fails elsewhere, the type refused a value; the probe
//! then changes the last choice before that place.

mod reader;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};

use self::reader::{ProbeError, Reader};
use super::{Fields, Items, Range, Shape, Variants};

/// Recursive types: the shape omits places deeper than this.
const SHALLOW: usize = 8;

/// The probe gives up values deeper than this: the type recurses without end.
const DEEPEST: usize = 24;

/// The maximum number of runs for one type. The shape omits the rest.
const MOST_RUNS: u32 = 2_000;

/// A type with a text format may accept one of these texts.
const TEXTS: [&str; 10] = [
    "text",
    "1",
    "00000000-0000-4000-8000-000000000000",
    "2026-01-31T12:00:00Z",
    "2026-01-31",
    "12:00:00",
    "127.0.0.1",
    "https://example.org/",
    "ann@example.org",
    "",
];

/// No type has a field or variant of this name.
const STRANGE: &str = "\u{1}no such name";

/// The request of a type at one place.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hint {
    Any,
    Unit,
    Bool,
    /// The range of an integer type; `None` for a type with fractions.
    Number(Option<(i64, u64)>),
    Text,
    Option,
    List,
    Tuple(usize),
    Map,
    Struct(&'static [&'static str]),
    Enum(&'static [&'static str]),
    /// The content of a newtype variant.
    Content,
}

impl Hint {
    fn n_choices(self) -> usize {
        match self {
            Self::Any => 6,
            Self::Unit | Self::Bool | Self::Tuple(_) | Self::Struct(_) | Self::Content => 1,
            Self::Number(_) | Self::Option | Self::List | Self::Map => 2,
            Self::Text => TEXTS.len(),
            Self::Enum(variants) => variants.len(),
        }
    }
}

/// A made-up value.
#[derive(Clone, Debug, Default)]
struct Node {
    /// `None` for a hole.
    hint: Option<Hint>,
    /// The chosen value, among the values that the hint allows.
    choice: usize,
    /// A number or a name that replaces the choice.
    forced: Option<Forced>,
    /// The parts by name. A single part has an empty name.
    children: Vec<(String, Node)>,
}

#[derive(Clone, Copy, Debug)]
enum Forced {
    Signed(i64),
    Unsigned(u64),
    Fraction(f64),
    StrangeName,
}

type Path = Vec<String>;

/// The records of one run.
#[derive(Default)]
struct Log {
    hints: Vec<(Path, Hint)>,
    /// The path of the hole that stopped the run.
    hole: Option<Path>,
    /// The path of a struct and its missing field.
    missing: Option<(Path, &'static str)>,
    /// The path of the last request.
    last: Path,
}

/// Returns the shape of a type, and a valid value if the probe found one.
pub(super) fn probe<T: DeserializeOwned>() -> (Shape, Option<Value>) {
    // The type's code may panic on made-up values.
    catch_unwind(AssertUnwindSafe(|| {
        let mut probe = Probe { n_left: MOST_RUNS, read: read::<T> };
        let mut root = Node::default();
        if probe.complete(&mut root, &[]) {
            (probe.shape(&root, &mut Vec::new()), Some(example(&root)))
        } else {
            (rough(root.hint), None)
        }
    }))
    .unwrap_or((Shape::Any, None))
}

fn read<T: DeserializeOwned>(root: &Node, log: &RefCell<Log>) -> Result<(), ProbeError> {
    T::deserialize(Reader::new(root, log)).map(drop)
}

/// Runs the probes of one type.
struct Probe {
    n_left: u32,
    read: fn(&Node, &RefCell<Log>) -> Result<(), ProbeError>,
}

impl Probe {
    fn reads(&mut self, root: &Node) -> (bool, Log) {
        let log = RefCell::default();
        self.n_left = self.n_left.saturating_sub(1);
        let is_read = (self.read)(root, &log).is_ok();
        (is_read, log.into_inner())
    }

    /// Fills the holes at and under a path until the type accepts the whole value. Returns false on
    /// failure.
    fn complete(&mut self, root: &mut Node, under: &[String]) -> bool {
        while self.n_left > 0 {
            let (is_read, log) = self.reads(root);
            for (path, hint) in log.hints {
                if let Some(node) = root.at_mut(&path) {
                    node.hint = Some(hint);
                }
            }
            if is_read {
                return true;
            }
            let goes_on = match (log.hole, log.missing) {
                (Some(hole), _) if hole.len() <= DEEPEST => {
                    let is_shallow = hole.len() < SHALLOW;
                    root.at_mut(&hole).is_some_and(|node| {
                        let may_end = matches!(node.hint, Some(Hint::Option | Hint::List | Hint::Map));
                        node.choose(usize::from(!is_shallow && may_end))
                    })
                }
                (Some(hole), _) => root.choose_otherwise(&hole, under),
                (None, Some((path, name))) => root.at_mut(&path).is_some_and(|node| {
                    node.children.push((name.to_owned(), Node::default()));
                    true
                }),
                (None, None) => root.choose_otherwise(&log.last, under),
            };
            if !goes_on {
                return false;
            }
        }
        false
    }

    /// Whether the type accepts the whole value with `forced` at `path`.
    fn reads_with(&mut self, root: &Node, path: &[String], forced: Forced) -> bool {
        let mut root = root.clone();
        let Some(node) = root.at_mut(path) else { return true };
        node.forced = Some(forced);
        self.n_left == 0 || self.reads(&root).0
    }

    /// The shape at one place of an accepted value.
    fn shape(&mut self, root: &Node, path: &mut Path) -> Shape {
        let Some(node) = root.at(path) else { return Shape::Any };
        match node.hint {
            None | Some(Hint::Any) => Shape::Any,
            Some(Hint::Unit) => Shape::Null,
            Some(Hint::Bool) => Shape::Bool,
            Some(Hint::Text) => Shape::Text,
            Some(Hint::Number(integers)) => Shape::Number(self.range(root, path, integers)),
            Some(Hint::Content) => self.below(root, path, ""),
            Some(Hint::Option) => Shape::Option(Box::new(self.below(root, path, ""))),
            Some(Hint::List) => Shape::List(Box::new(self.below(root, path, "0"))),
            Some(Hint::Map) => Shape::Map(Box::new(self.below(root, path, "0"))),
            Some(Hint::Tuple(len)) => Shape::Tuple(Items {
                known: (0..len).map(|at| self.below(root, path, &at.to_string())).collect(),
                required: self.n_required(root, path),
            }),
            Some(Hint::Struct(names)) => Shape::Struct(self.fields(root, path, names)),
            Some(Hint::Enum(names)) => Shape::Enum(self.variants(root, path, names)),
        }
    }

    fn below(&mut self, root: &Node, path: &mut Path, name: &str) -> Shape {
        path.push(name.to_owned());
        let shape = self.shape(root, path);
        path.pop();
        shape
    }

    /// The length of the shortest accepted tuple.
    fn n_required(&mut self, root: &Node, path: &[String]) -> usize {
        let mut root = root.clone();
        while self.n_left > 0 {
            let Some(node) = root.at_mut(path) else { break };
            let len = node.children.len();
            if node.children.pop().is_none() || !self.reads(&root).0 {
                return len;
            }
        }
        0
    }

    fn range(&mut self, root: &Node, path: &[String], integers: Option<(i64, u64)>) -> Range {
        let Some((min, max)) = integers else { return Range { fraction: true, min: None, max: None } };
        let below = min.checked_sub(1).filter(|below| !self.reads_with(root, path, Forced::Signed(*below)));
        let above = max.checked_add(1).filter(|above| !self.reads_with(root, path, Forced::Unsigned(*above)));
        Range {
            fraction: self.reads_with(root, path, Forced::Fraction(0.5)),
            min: below.map(|_| min),
            max: above.map(|_| max),
        }
    }

    fn fields(&mut self, root: &Node, path: &mut Path, names: &[&str]) -> Fields {
        let present: Vec<String> =
            root.at(path).iter().flat_map(|node| &node.children).map(|(name, _)| name.clone()).collect();
        let mut fields = Fields {
            known: present.iter().map(|name| (name.clone(), self.below(root, path, name))).collect(),
            required: present,
            unknown: Vec::new(),
            closed: false,
        };
        let mut optional = Vec::new();
        for name in names.iter().filter(|name| !fields.required.iter().any(|it| it == *name)) {
            if let Some(root) = self.added(root, path, name) {
                fields.known.insert((*name).to_owned(), self.below(&root, path, name));
                let field = root.at(path).and_then(|node| node.children.iter().find(|(its, _)| its == name));
                optional.extend(field.cloned());
            } else {
                // The name is an alias of a present field, or no made-up value fits the field's
                // format.
                fields.unknown.push((*name).to_owned());
            }
        }
        self.drop_alternatives(root, path, optional, &mut fields.required);
        let mut root = root.clone();
        if let Some(node) = root.at_mut(path) {
            node.children.push((STRANGE.to_owned(), Node { hint: Some(Hint::Unit), ..Node::default() }));
            fields.closed = self.n_left > 0 && !self.reads(&root).0;
        }
        fields.loosened()
    }

    /// A hand-written `Deserialize` may accept one of several fields: such a field is not required.
    /// One run for each required field.
    fn drop_alternatives(
        &mut self,
        root: &Node,
        path: &[String],
        optional: Vec<(String, Node)>,
        required: &mut Vec<String>,
    ) {
        let mut root = root.clone();
        let Some(node) = root.at_mut(path).filter(|_| !optional.is_empty()) else { return };
        node.children.extend(optional);
        required.retain(|name| {
            let mut root = root.clone();
            if let Some(node) = root.at_mut(path) {
                node.children.retain(|(its, _)| its != name);
            }
            self.n_left == 0 || !self.reads(&root).0
        });
    }

    /// Adds one field. Returns `None` if the type does not accept the result.
    fn added(&mut self, root: &Node, path: &[String], name: &str) -> Option<Node> {
        let mut root = root.clone();
        let node = root.at_mut(path)?;
        node.children.push((name.to_owned(), Node::default()));
        let under: Path = path.iter().cloned().chain([name.to_owned()]).collect();
        self.complete(&mut root, &under).then_some(root)
    }

    fn variants(&mut self, root: &Node, path: &mut Path, names: &[&str]) -> Variants {
        let mut variants =
            Variants { known: std::collections::BTreeMap::new(), unknown: Vec::new(), closed: false };
        for (choice, name) in names.iter().enumerate() {
            let mut root = root.clone();
            let is_chosen =
                root.at_mut(path).is_some_and(|node| node.choice == choice || node.choose(choice));
            path.push(String::new());
            // The type has this variant, but its shape omits one that recurses without end.
            if is_chosen && path.len() <= SHALLOW && self.complete(&mut root, path) {
                let is_unit = root.at(path).is_some_and(|node| node.hint == Some(Hint::Unit));
                let content = if is_unit { None } else { Some(self.shape(&root, path)) };
                variants.known.insert((*name).to_owned(), content);
            } else {
                variants.unknown.push((*name).to_owned());
            }
            path.pop();
        }
        variants.closed = !self.reads_with(root, path, Forced::StrangeName);
        variants
    }
}

impl Node {
    fn at(&self, path: &[String]) -> Option<&Self> {
        path.iter().try_fold(self, |node, name| {
            node.children.iter().find(|(its, _)| its == name).map(|(_, child)| child)
        })
    }

    fn at_mut(&mut self, path: &[String]) -> Option<&mut Self> {
        path.iter().try_fold(self, |node, name| {
            node.children.iter_mut().find(|(its, _)| its == name).map(|(_, child)| child)
        })
    }

    /// Makes a choice, with holes for its parts.
    fn choose(&mut self, choice: usize) -> bool {
        let Some(hint) = self.hint else { return false };
        self.choice = choice;
        let holes: Vec<String> = match (hint, choice) {
            (Hint::Option | Hint::Content, 0) | (Hint::Enum(_), _) => vec![String::new()],
            (Hint::List | Hint::Map, 0) => vec!["0".to_owned()],
            (Hint::Tuple(len), _) => (0..len).map(|at| at.to_string()).collect(),
            _ => Vec::new(),
        };
        self.children = holes.into_iter().map(|name| (name, Self::default())).collect();
        choice < hint.n_choices()
    }

    /// Advances the deepest choice on the way to `path`, at or under `under`. Returns false if
    /// there is none.
    fn choose_otherwise(&mut self, path: &[String], under: &[String]) -> bool {
        if !path.starts_with(under) {
            return false;
        }
        (under.len()..=path.len()).rev().any(|len| {
            self.at_mut(&path[..len]).is_some_and(|node| {
                let has_more = node.hint.is_some_and(|hint| node.choice + 1 < hint.n_choices());
                has_more && node.choose(node.choice + 1)
            })
        })
    }
}

/// The shape of a type for which the probe found no value.
fn rough(hint: Option<Hint>) -> Shape {
    match hint {
        None | Some(Hint::Any | Hint::Content | Hint::Tuple(_)) => Shape::Any,
        Some(Hint::Unit) => Shape::Null,
        Some(Hint::Bool) => Shape::Bool,
        Some(Hint::Number(_)) => Shape::Number(Range { fraction: true, min: None, max: None }),
        Some(Hint::Text) => Shape::Text,
        Some(Hint::Option) => Shape::Option(Box::new(Shape::Any)),
        Some(Hint::List) => Shape::List(Box::new(Shape::Any)),
        Some(Hint::Map) => Shape::Map(Box::new(Shape::Any)),
        Some(Hint::Struct(_)) => Shape::Struct(Fields {
            known: std::collections::BTreeMap::new(),
            required: Vec::new(),
            unknown: Vec::new(),
            closed: false,
        }),
        Some(Hint::Enum(names)) => Shape::Enum(Variants {
            known: std::collections::BTreeMap::new(),
            unknown: names.iter().map(|name| (*name).to_owned()).collect(),
            closed: false,
        }),
    }
}

/// Converts the made-up value to JSON.
fn example(node: &Node) -> Value {
    let child = |name: &str| node.at(&[name.to_owned()]).map_or(Value::Null, example);
    match (node.hint, node.choice) {
        (None | Some(Hint::Unit), _) | (Some(Hint::Option), 1..) => Value::Null,
        (Some(Hint::Any), choice) => any(choice),
        (Some(Hint::Bool), _) => Value::Bool(true),
        (Some(Hint::Number(_)), choice) => Value::Number(Number::from(number(choice))),
        (Some(Hint::Text), choice) => Value::String(text(choice).to_owned()),
        (Some(Hint::Option | Hint::Content), _) => child(""),
        (Some(Hint::List | Hint::Tuple(_)), _) => {
            Value::Array(node.children.iter().map(|(_, item)| example(item)).collect())
        }
        (Some(Hint::Map | Hint::Struct(_)), _) => {
            Value::Object(node.children.iter().map(|(name, part)| (name.clone(), example(part))).collect())
        }
        (Some(Hint::Enum(names)), choice) => {
            let name = names.get(choice).copied().unwrap_or_default().to_owned();
            match node.children.first() {
                Some((_, content)) if content.hint != Some(Hint::Unit) => {
                    Value::Object(Map::from_iter([(name, example(content))]))
                }
                _ => Value::String(name),
            }
        }
    }
}

fn text(choice: usize) -> &'static str {
    TEXTS.get(choice).copied().unwrap_or_default()
}

fn number(choice: usize) -> u8 {
    u8::from(choice == 0)
}

fn any(choice: usize) -> Value {
    match choice {
        0 => Value::Null,
        1 => Value::String(text(0).to_owned()),
        2 => Value::Number(Number::from(number(0))),
        3 => Value::Bool(true),
        4 => Value::Object(Map::new()),
        _ => Value::Array(Vec::new()),
    }
}
