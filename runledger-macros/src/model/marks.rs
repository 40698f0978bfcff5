//! The attributes of parameters.

use syn::{Attribute, Meta, PatType};

use super::parameters::Presence;
use crate::problems::Problems;
use crate::suggest::{did_you_mean, nearest};

/// The compiler's attributes that a parameter may also have.
const LINTS: &[&str] = &["allow", "expect", "warn", "deny", "forbid"];

/// Our attributes on one parameter.
#[derive(Default)]
pub(super) struct Marks<'a> {
    pub inject: Option<&'a Attribute>,
    pub default: Option<(&'a Attribute, Presence)>,
}

/// Reads the attributes of one parameter. Reports all except ours and the compiler's lints.
pub(super) fn marks<'a>(typed: &'a PatType, problems: &mut Problems) -> Marks<'a> {
    let mut marks = Marks::default();
    for attribute in &typed.attrs {
        let path = attribute.path();
        if is_lint(attribute) {
            continue;
        }
        let twice = if is_inject(attribute) {
            if !matches!(attribute.meta, Meta::Path(_)) {
                problems.at(
                    &attribute.meta,
                    "`#[inject]` takes no value: the type of the parameter says what is injected; \
                    write `#[inject]`",
                );
            }
            marks.inject.replace(attribute).is_some()
        } else if path.is_ident("default") {
            let presence = default(attribute, problems);
            marks.default.replace((attribute, presence)).is_some()
        } else {
            problems.at(attribute, unknown(attribute));
            false
        };
        if twice {
            problems.at(attribute, "this attribute is given twice; remove one");
        }
    }
    marks
}

/// Whether this is `#[inject]`.
pub(super) fn is_inject(attribute: &Attribute) -> bool {
    attribute.path().is_ident("inject")
}

/// Whether the attribute stays on the function with the user's body.
pub(super) fn is_lint(attribute: &Attribute) -> bool {
    LINTS.iter().any(|lint| attribute.path().is_ident(lint))
}

fn default(attribute: &Attribute, problems: &mut Problems) -> Presence {
    match &attribute.meta {
        Meta::Path(_) => Presence::Default,
        Meta::NameValue(pair) => Presence::DefaultTo(pair.value.clone()),
        Meta::List(list) => {
            problems.at(list, format!("a default is given after `=`; write `#[default = {}]`", list.tokens));
            Presence::Default
        }
    }
}

fn unknown(attribute: &Attribute) -> String {
    let path = attribute.path();
    let name = path.segments.iter().map(|segment| segment.ident.to_string()).collect::<Vec<_>>().join("::");
    let synonyms = [
        ("injected", "inject"),
        ("provide", "inject"),
        ("data", "inject"),
        ("state", "inject"),
        ("optional", "default"),
    ];
    let meant = did_you_mean(nearest(&name, &["inject", "default"], &synonyms));
    format!("unknown attribute `{name}` on a parameter{meant} valid: inject, default")
}
