//! The options in the attribute's parentheses.

use quote::ToTokens;
use syn::{Expr, ExprArray, Ident, Lit, LitInt, LitStr, Path, UnOp};

use super::{Kind, accepts, allow, duration, name};
use crate::lint::Allowed;
use crate::parse::{Entry, Value};
use crate::problems::Problems;
use crate::suggest::{did_you_mean, nearest};

/// The options of both jobs and workflows that take a value.
const VALID: &[&str] = &[
    "name",
    "aliases",
    "queue",
    "priority",
    "max_attempts",
    "timeout",
    "backoff",
    "deadline",
    "version",
    "accepts",
    "crate",
];

/// The option that only jobs have.
const HEARTBEAT: &str = "heartbeat";

/// The names of these options in other libraries.
const SYNONYMS: &[(&str, &str)] = &[
    ("id", "name"),
    ("rename", "name"),
    ("alias", "aliases"),
    ("lane", "queue"),
    ("retries", "max_attempts"),
    ("retry", "max_attempts"),
    ("max_retries", "max_attempts"),
    ("attempts", "max_attempts"),
    ("max_tries", "max_attempts"),
    ("time_limit", "timeout"),
    ("expires", "deadline"),
    ("ttl", "deadline"),
    ("heartbeat_timeout", "heartbeat"),
    ("keep_alive", "heartbeat"),
    ("delay", "backoff"),
    ("retry_delay", "backoff"),
    ("accept", "accepts"),
    ("compatible", "accepts"),
    ("path", "crate"),
    ("krate", "crate"),
];

/// The options that were given.
#[derive(Default)]
pub(crate) struct Options {
    pub name: Option<LitStr>,
    pub aliases: Vec<LitStr>,
    pub queue: Option<LitStr>,
    pub priority: Option<i16>,
    pub max_attempts: Option<u32>,
    pub timeout: Option<Limit>,
    pub backoff: Option<Backoff>,
    pub deadline: Option<Limit>,
    pub heartbeat: Option<Limit>,
    pub version: Option<u32>,
    /// Earlier versions whose runs this code also serves.
    pub accepts: Vec<u32>,
    /// Classes of code that the body of a workflow may use although replay does not repeat it.
    pub allow: Vec<Allowed>,
}

/// A time limit, and its literal.
pub(crate) struct Limit {
    pub ms: u64,
    literal: LitStr,
}

/// The first and the longest delay between attempts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    pub first_ms: u64,
    pub cap_ms: u64,
}

/// Reads all options. Adds errors to `problems`.
pub(super) fn check(kind: Kind, entries: &[Entry], problems: &mut Problems) -> Options {
    let mut options = Options::default();
    let mut seen: Vec<&Ident> = Vec::new();
    let mut accepts = None;
    for entry in entries {
        let (name, value) = match entry {
            Entry::Option { name, value } => (name, value),
            Entry::Stray(tokens) => {
                problems.at(tokens, stray(kind, &tokens.to_string()));
                continue;
            }
        };
        if kind == Kind::Workflow && name == HEARTBEAT {
            problems.at_span(name.span(), NO_HEARTBEAT);
            continue;
        }
        let is_allow = name == "allow";
        if !is_allow && !valid(kind).any(|valid| name == valid) {
            problems.at_span(name.span(), unknown(kind, name));
            continue;
        }
        if seen.contains(&name) {
            problems.at_span(name.span(), format!("option `{name}` is given twice; remove one"));
            continue;
        }
        seen.push(name);
        if is_allow {
            options.allow = allow::check(kind, name, value, problems);
        } else if name == "accepts" {
            accepts = given(name, value, problems);
        } else if let Some(value) = given(name, value, problems) {
            options.set(name, value, problems);
        }
    }
    options.check_limits(problems);
    // After the loop, because `version` may follow `accepts`.
    if let Some(accepts) = accepts {
        options.accepts = accepts::check(accepts, options.version.unwrap_or(1), problems);
    }
    options
}

const NO_HEARTBEAT: &str = "a `#[workflow]` has no `heartbeat`: its steps are its signs of life; give it to the jobs that it runs, or limit one step with \
                            `.heartbeat_timeout(…)`";

/// The options that take a value. `allow` takes words instead.
fn valid(kind: Kind) -> impl Iterator<Item = &'static str> {
    VALID.iter().copied().chain((kind == Kind::Job).then_some(HEARTBEAT))
}

/// The path of `crate = …`, even if other options are wrong.
pub(super) fn library(entries: &[Entry]) -> Option<Path> {
    entries.iter().find_map(|entry| match entry {
        Entry::Option { name, value: Value::Given(value) } if name == "crate" => modules(value).cloned(),
        _ => None,
    })
}

impl Options {
    fn set(&mut self, option: &Ident, value: &Expr, problems: &mut Problems) {
        match option.to_string().as_str() {
            "name" => self.name = string(option, value, problems),
            "aliases" => self.aliases = strings(value, problems),
            "queue" => {
                self.queue = string(option, value, problems);
                self.queue.iter().for_each(|queue| name::check("queue", queue, problems));
            }
            "priority" => {
                let range = (i16::MIN.into(), i16::MAX.into());
                self.priority = integer(option, value, range, problems);
            }
            "max_attempts" => {
                self.max_attempts = integer(option, value, (1, u32::MAX.into()), problems);
            }
            "timeout" => self.timeout = limit(option, value, problems),
            "deadline" => self.deadline = limit(option, value, problems),
            HEARTBEAT => self.heartbeat = limit(option, value, problems),
            "backoff" => self.backoff = parsed(option, value, duration::range, problems),
            "version" => self.version = integer(option, value, (1, u32::MAX.into()), problems),
            // `library` reads `crate`. This only checks that it is a path.
            _ if modules(value).is_none() => {
                problems.at(value, format!("option `{option}` is a path of modules; {}", example(option)));
            }
            _ => {}
        }
    }

    /// Reports a limit that exceeds an outer limit, because no run would reach it.
    fn check_limits(&self, problems: &mut Problems) {
        let (timeout, deadline) = (("timeout", &self.timeout), ("deadline", &self.deadline));
        let heartbeat = (HEARTBEAT, &self.heartbeat);
        for ((inner, one), (outer, other)) in
            [(timeout, deadline), (heartbeat, timeout), (heartbeat, deadline)]
        {
            let (Some(one), Some(other)) = (one, other) else { continue };
            if one.ms > other.ms {
                let (long, short) = (one.literal.value(), other.literal.value());
                problems.at(
                    &one.literal,
                    format!("option `{inner}`: `{long}` is longer than the `{outer}` of `{short}`, so it would never be reached; write a shorter one"),
                );
            }
        }
    }
}

fn given<'a>(option: &Ident, value: &'a Value, problems: &mut Problems) -> Option<&'a Expr> {
    let example = example(option);
    match value {
        Value::Given(value) => return Some(value),
        Value::Missing => {
            problems.at_span(option.span(), format!("option `{option}` has no value; {example}"));
        }
        Value::NotAssigned(tokens) => {
            problems.at(tokens, format!("option `{option}` takes its value after `=`; {example}"));
        }
        Value::Unreadable(tokens) => {
            problems.at(tokens, format!("the value of option `{option}` cannot be read; {example}"));
        }
    }
    None
}

fn example(option: &Ident) -> String {
    let value = match option.to_string().as_str() {
        "name" => "\"billing.charge\"",
        "aliases" => "[\"old_name\"]",
        "queue" => "\"payments\"",
        "timeout" | "heartbeat" => "\"30s\"",
        "deadline" => "\"1h\"",
        "backoff" => "\"1s..5m\"",
        "version" => "2",
        "accepts" => "\"1..\"",
        "crate" => "facade::runledger",
        _ => "5",
    };
    format!("write `{option} = {value}`")
}

/// A path without types, to which generated code can append names.
fn modules(value: &Expr) -> Option<&Path> {
    match ungrouped(value) {
        Expr::Path(path) => {
            let is_plain = path.path.segments.iter().all(|segment| segment.arguments.is_none());
            (path.attrs.is_empty() && path.qself.is_none() && is_plain).then_some(&path.path)
        }
        _ => None,
    }
}

fn string(option: &Ident, value: &Expr, problems: &mut Problems) -> Option<LitStr> {
    let literal = literal_string(value);
    if literal.is_none() {
        problems.at(value, format!("option `{option}` is a string literal; {}", example(option)));
    }
    literal
}

pub(super) fn literal_string(value: &Expr) -> Option<LitStr> {
    match ungrouped(value) {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(string) => Some(string.clone()),
            _ => None,
        },
        _ => None,
    }
}

fn strings(value: &Expr, problems: &mut Problems) -> Vec<LitStr> {
    let Expr::Array(ExprArray { elems, .. }) = ungrouped(value) else {
        let written = literal_string(value)
            .map_or_else(|| "[\"old_name\"]".to_owned(), |one| format!("[{}]", one.token()));
        problems.at(value, format!("option `aliases` is a list of strings; write `aliases = {written}`"));
        return Vec::new();
    };
    let mut aliases = Vec::new();
    for element in elems {
        match literal_string(element) {
            Some(alias) => aliases.push(alias),
            None => problems.at(element, "an alias is a string literal, such as `\"old_name\"`"),
        }
    }
    aliases
}

fn parsed<T>(
    option: &Ident,
    value: &Expr,
    parse: fn(&str) -> Result<T, String>,
    problems: &mut Problems,
) -> Option<T> {
    let literal = string(option, value, problems)?;
    parse(&literal.value()).map_err(|fault| problems.at(&literal, format!("option `{option}`: {fault}"))).ok()
}

fn limit(option: &Ident, value: &Expr, problems: &mut Problems) -> Option<Limit> {
    let ms = parsed(option, value, duration::milliseconds, problems)?;
    literal_string(value).map(|literal| Limit { ms, literal })
}

fn integer<T: TryFrom<i64>>(
    option: &Ident,
    value: &Expr,
    (least, most): (i64, i64),
    problems: &mut Problems,
) -> Option<T> {
    let Some(number) = literal_integer(value) else {
        problems.at(value, format!("option `{option}` is an integer literal; {}", example(option)));
        return None;
    };
    let within = number.filter(|number| (least..=most).contains(number));
    let converted = within.and_then(|number| T::try_from(number).ok());
    if converted.is_none() {
        let shown = value.to_token_stream().to_string().replace(' ', "");
        problems.at(
            value,
            format!(
                "option `{option}` is `{shown}`, which is out of range; it goes from {least} \
                to {most}"
            ),
        );
    }
    converted
}

/// `Some(None)` is an integer that 64 bits cannot hold.
pub(super) fn literal_integer(value: &Expr) -> Option<Option<i64>> {
    let (sign, literal) = match ungrouped(value) {
        Expr::Unary(negated) if matches!(negated.op, UnOp::Neg(_)) => ("-", &*negated.expr),
        positive => ("", positive),
    };
    match ungrouped(literal) {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(integer) => Some(decimal(sign, integer)),
            _ => None,
        },
        _ => None,
    }
}

fn decimal(sign: &str, integer: &LitInt) -> Option<i64> {
    format!("{sign}{}", integer.base10_digits()).parse().ok()
}

/// Values from a `macro_rules!` macro come in invisible groups.
pub(super) fn ungrouped(mut value: &Expr) -> &Expr {
    while let Expr::Group(group) = value {
        value = &group.expr;
    }
    value
}

fn unknown(kind: Kind, name: &Ident) -> String {
    let mut valid: Vec<&str> = valid(kind).collect();
    valid.extend((kind == Kind::Workflow).then_some("allow"));
    let meant = did_you_mean(nearest(&name.to_string(), &valid, SYNONYMS));
    format!("unknown option `{name}` for `#[{}]`{meant} valid: {}", kind.word(), valid.join(", "))
}

fn stray(kind: Kind, written: &str) -> String {
    if written == "," {
        return "an option is missing before this comma; remove the comma".to_owned();
    }
    let name = if written.starts_with('"') {
        format!("; to give the name, write `name = {written}`")
    } else {
        String::new()
    };
    format!("`#[{}]` takes `option = value`, not `{written}`{name}", kind.word())
}
