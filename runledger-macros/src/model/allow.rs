//! The option `allow(…)` of a workflow: classes of code in its body that replay does not repeat.

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};

use super::Kind;
use crate::lint::{Allowed, Class};
use crate::parse::{self, Value};
use crate::problems::Problems;
use crate::suggest::{did_you_mean, nearest};

/// Words that users may write instead.
const SYNONYMS: &[(&str, &str)] = &[
    ("time", "wall_clock"),
    ("clock", "wall_clock"),
    ("now", "wall_clock"),
    ("random", "randomness"),
    ("rand", "randomness"),
    ("rng", "randomness"),
    ("uuid", "fresh_uuids"),
    ("uuids", "fresh_uuids"),
    ("ids", "fresh_uuids"),
    ("timeout", "sleep"),
    ("timer", "sleep"),
    ("timers", "sleep"),
    ("tasks", "spawn"),
    ("threads", "spawn"),
    ("env", "io"),
    ("fs", "io"),
    ("files", "io"),
    ("filesystem", "io"),
    ("network", "io"),
    ("hash", "hash_order"),
    ("hashmap", "hash_order"),
    ("hash_map", "hash_order"),
    ("hashset", "hash_order"),
    ("order", "hash_order"),
];

/// Reads the words. A misspelled word counts as the suggested one, so that the body is not reported
/// too.
pub(super) fn check(kind: Kind, option: &Ident, value: &Value, problems: &mut Problems) -> Vec<Allowed> {
    if kind == Kind::Job {
        problems.at_span(
            option.span(),
            "`allow` is for a `#[workflow]`: the body of a `#[job]` is not replayed and may do anything; leave it out",
        );
        return Vec::new();
    }
    let words = match value {
        Value::NotAssigned(tokens) => in_parentheses(tokens),
        Value::Given(_) | Value::Missing | Value::Unreadable(_) => None,
    };
    let Some(words) = words else {
        problems.at_span(option.span(), "`allow` takes words in parentheses; write `allow(wall_clock)`");
        return Vec::new();
    };
    if words.is_empty() {
        problems
            .at_span(option.span(), "`allow()` allows nothing; write `allow(wall_clock)`, or leave it out");
    }
    let mut allowed = Vec::new();
    for part in parse::parts(words) {
        allow(part, &mut allowed, problems);
    }
    allowed
}

fn allow(part: TokenStream, allowed: &mut Vec<Allowed>, problems: &mut Problems) {
    let valid = Class::words();
    let Ok(word) = syn::parse2::<Ident>(part.clone()) else {
        let fault = format!("`allow` takes words, not `{part}`; valid: {}", valid.join(", "));
        return problems.at(part, fault);
    };
    let written = word.to_string();
    let known = Class::of_word(&written);
    let class = known.or_else(|| {
        let meant = nearest(&written, &valid, SYNONYMS);
        let suggestion = did_you_mean(meant);
        problems
            .at(&word, format!("unknown word `{word}` in `allow`{suggestion} valid: {}", valid.join(", ")));
        meant.and_then(Class::of_word)
    });
    let Some(class) = class else { return };
    if allowed.iter().any(|earlier| earlier.class == class) {
        return problems.at(&word, format!("`{word}` is given twice; remove one"));
    }
    allowed.push(Allowed { class, word: known.map(|_| word) });
}

fn in_parentheses(tokens: &TokenStream) -> Option<TokenStream> {
    let mut tokens = tokens.clone().into_iter();
    match (tokens.next(), tokens.next()) {
        (Some(TokenTree::Group(group)), None) if group.delimiter() == Delimiter::Parenthesis => {
            Some(group.stream())
        }
        _ => None,
    }
}
