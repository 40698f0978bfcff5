//! Names of definitions, aliases and queues.

use std::collections::HashSet;

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::{Ident, LitStr};

use super::{Kind, Options};
use crate::problems::Problems;

/// Names are keys of indexes and labels of metrics, and 48 bytes keep both small.
const MAX_LENGTH: usize = 48;

/// Returns the checked stored name. Also checks the aliases.
pub(super) fn of(kind: Kind, options: &Options, function: &Ident, problems: &mut Problems) -> String {
    let name = match &options.name {
        Some(literal) => {
            check("name", literal, problems);
            literal.value()
        }
        None => derived(kind, function, problems),
    };
    let mut seen = HashSet::new();
    for alias in &options.aliases {
        check("alias", alias, problems);
        let value = alias.value();
        if value == name {
            problems
                .at(alias, format!("alias `{value}` is the name of this {} itself; remove it", kind.word()));
        } else if !seen.insert(value.clone()) {
            problems.at(alias, format!("alias `{value}` is given twice; remove one"));
        }
    }
    name
}

/// Reports a literal that is not a valid name. `what` says what it names.
pub(super) fn check(what: &str, literal: &LitStr, problems: &mut Problems) {
    if let Err(fault) = grammar(&literal.value()) {
        report(what, &literal.value(), literal.span(), &fault, "", problems);
    }
}

fn derived(kind: Kind, function: &Ident, problems: &mut Problems) -> String {
    let name = function.unraw().to_string();
    if let Err(fault) = grammar(&name) {
        let remedy = format!("; give one with `#[{}(name = \"…\")]`", kind.word());
        report("name", &name, function.span(), &fault, &remedy, problems);
    }
    name
}

fn report(what: &str, value: &str, at: Span, fault: &str, remedy: &str, problems: &mut Problems) {
    problems.at_span(
        at,
        format!(
            "{what} `{value}` {fault}; a name is 1 to {MAX_LENGTH} of `a-z`, `0-9`, `_`, \
                `.` and `-`, and starts with a letter or `_`{remedy}"
        ),
    );
}

fn grammar(name: &str) -> Result<(), String> {
    let Some(first) = name.chars().next() else {
        return Err("is empty".to_owned());
    };
    if name.trim().is_empty() {
        return Err("is blank".to_owned());
    }
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.-".contains(c);
    if let Some(wrong) = name.chars().find(|c| !allowed(*c)) {
        return Err(format!("contains `{}`", wrong.escape_debug()));
    }
    if !first.is_ascii_lowercase() && first != '_' {
        return Err(format!("starts with `{first}`"));
    }
    if name.len() > MAX_LENGTH {
        return Err(format!("has {} characters", name.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{MAX_LENGTH, grammar};

    #[test]
    fn dots_dashes_and_digits_are_allowed_after_letter_or_underscore() {
        for name in ["a", "_charge", "billing.charge", "thank-you_mail2", &"a".repeat(MAX_LENGTH)] {
            assert_eq!(grammar(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn invalid_name_is_refused_with_its_fault() {
        for (name, fault) in [
            ("", "is empty"),
            ("  ", "is blank"),
            ("Charge", "contains `C`"),
            ("a b", "contains ` `"),
            ("a\n", "contains `\\n`"),
            ("zahlungsüberblick", "contains `ü`"),
            (".charge", "starts with `.`"),
            ("2charge", "starts with `2`"),
            (&"a".repeat(MAX_LENGTH + 1), "has 49 characters"),
        ] {
            assert_eq!(grammar(name), Err(fault.to_owned()), "{name}");
        }
    }
}
