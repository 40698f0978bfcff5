//! Checks the function, except its parameters.

use syn::spanned::Spanned;
use syn::{Attribute, GenericParam, Generics, ReturnType, Safety, Signature, Type};

use super::Kind;
use super::types::{self, Borrowed};
use crate::problems::Problems;

/// Reports a second attribute of ours on the function.
pub(super) fn check_attributes(kind: Kind, attributes: &[Attribute], problems: &mut Problems) {
    for second in attributes.iter().filter(|attribute| is_ours(attribute)) {
        problems.at(
            second,
            format!("this function is a `#[{}]` already; remove one of the attributes", kind.word()),
        );
    }
}

/// Whether this is another `#[job]` or `#[workflow]`.
pub(crate) fn is_ours(attribute: &Attribute) -> bool {
    let last = attribute.path().segments.last();
    last.is_some_and(|segment| segment.ident == "job" || segment.ident == "workflow")
}

/// Checks that the function is async and that a worker can call it.
pub(super) fn check(kind: Kind, signature: &Signature, problems: &mut Problems) {
    let word = kind.word();
    if let Some(token) = &signature.constness {
        problems.at(token, format!("a `#[{word}]` cannot be `const`: it runs in a worker; remove `const`"));
    }
    if signature.asyncness.is_none() {
        problems.at(
            signature.fn_token,
            format!("a `#[{word}]` is an `async fn`; write `async fn {}`", signature.ident),
        );
    }
    if let Safety::Unsafe(token) = &signature.safety {
        problems.at(
            token,
            format!(
                "a `#[{word}]` cannot be `unsafe`: the worker that calls it can promise \
                nothing; use an `unsafe` block in its body"
            ),
        );
    }
    if let Some(abi) = &signature.abi {
        problems.at(abi, format!("a `#[{word}]` cannot be `extern`; remove the ABI"));
    }
    if let Some(variadic) = &signature.variadic {
        problems.at(
            variadic,
            format!("a `#[{word}]` has a fixed list of parameters; take a `Vec` instead of `...`"),
        );
    }
    check_generics(word, &signature.generics, problems);
}

/// The return type, if it can be the output of a job.
pub(super) fn output(kind: Kind, signature: &Signature, problems: &mut Problems) -> Option<Type> {
    let word = kind.word();
    let ty = match &signature.output {
        ReturnType::Default => {
            problems.at_span(
                signature.paren_token.span.close(),
                format!("a `#[{word}]` returns a `Result`; write `-> Result<()>` after the parameters"),
            );
            return None;
        }
        ReturnType::Type(_, ty) => ty,
    };
    if let Some(at) = types::impl_trait(ty) {
        problems.at_span(
            at,
            format!(
                "the output of a `#[{word}]` is stored and read back, so its type must be \
            named; write a concrete type instead of `impl`"
            ),
        );
        return None;
    }
    let written = match types::borrowed(ty) {
        None => return Some((**ty).clone()),
        Some(Borrowed::Reference(at)) => (at, "a reference".to_owned()),
        Some(Borrowed::Lifetime(at, name)) => (at, format!("the lifetime `{name}`")),
    };
    problems.at_span(
        written.0,
        format!(
            "{} in the output of a `#[{word}]`: the output is stored and outlives the \
        call; return an owned type",
            written.1
        ),
    );
    None
}

fn check_generics(word: &str, generics: &Generics, problems: &mut Problems) {
    for parameter in &generics.params {
        match parameter {
            GenericParam::Lifetime(lifetime) => problems.at(
                lifetime,
                format!(
                    "a `#[{word}]` has no lifetime parameters: its arguments are stored; remove \
                    the lifetime, elided references are allowed"
                ),
            ),
            GenericParam::Type(_) | GenericParam::Const(_) => problems.at(
                parameter,
                format!(
                    "a `#[{word}]` cannot be generic: one name stands for one function; write one \
                    `#[{word}]` per type that calls a generic function"
                ),
            ),
        }
    }
    if let Some(clause) = &generics.where_clause {
        problems.at_span(
            clause.where_token.span(),
            format!("a `#[{word}]` has no `where` clause: it has nothing generic to bound; remove it"),
        );
    }
}
