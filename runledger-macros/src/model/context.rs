//! The context of a workflow: its first parameter, `wf: &Wf`.

use syn::spanned::Spanned;
use syn::{FnArg, Signature, Type};

use super::marks::{is_inject, is_lint};
use super::parameters::{Parameter, Role, named, unsized_of};
use super::types;
use crate::problems::Problems;

/// Checks the first parameter of a workflow, and reports what is wrong with it.
pub(super) fn check(signature: &Signature, problems: &mut Problems) -> Option<Parameter> {
    if !is_first(signature) {
        report_missing(signature, problems);
        return None;
    }
    let FnArg::Typed(typed) = signature.inputs.first()? else {
        return None;
    };
    if let Some(attribute) = typed.attrs.iter().find(|attribute| !is_lint(attribute)) {
        problems.at(attribute, "the context of a `#[workflow]` takes no attribute; remove it");
    }
    match types::reference(&typed.ty) {
        Some(reference) if reference.mutability.is_some() => {
            problems.at(
                reference,
                "the context of a `#[workflow]` is shared by its steps; write `&Wf` without `mut`",
            );
        }
        Some(_) => {
            return named(typed, problems).map(|ident| Parameter {
                ident,
                ty: (*typed.ty).clone(),
                role: Role::Workflow,
            });
        }
        None => problems.at(
            &typed.ty,
            "the context of a `#[workflow]` is borrowed, so that no step outlives the \
                run; write `&Wf`",
        ),
    }
    None
}

/// Whether the first parameter is meant to be the context.
pub(super) fn is_first(signature: &Signature) -> bool {
    signature.inputs.first().is_some_and(could_be_context)
}

/// Whether a first parameter may be the context. The compiler checks its type; this only excludes
/// types that cannot be one.
pub(crate) fn could_be_context(first: &FnArg) -> bool {
    let FnArg::Typed(typed) = first else {
        return false;
    };
    match types::reference(&typed.ty) {
        Some(reference) => unsized_of(reference).is_none() && !typed.attrs.iter().any(is_inject),
        None => is_context(&typed.ty),
    }
}

/// Whether `ty` is written as the context's type, borrowed or not.
pub(crate) fn is_context(ty: &Type) -> bool {
    let inner = types::reference(ty).map_or(ty, |reference| &*reference.elem);
    types::is_named(inner, "Wf")
}

/// Reports a missing context. Another check reports a context at the wrong place.
fn report_missing(signature: &Signature, problems: &mut Problems) {
    if signature.inputs.iter().any(has_context_type) {
        return;
    }
    let at = match signature.inputs.first() {
        Some(FnArg::Typed(typed)) => typed.ty.span(),
        Some(FnArg::Receiver(receiver)) => receiver.span(),
        None => signature.paren_token.span.open(),
    };
    problems.at_span(at, "a `#[workflow]` needs its context before its arguments; write `wf: &Wf` first");
}

fn has_context_type(input: &FnArg) -> bool {
    matches!(input, FnArg::Typed(typed) if is_context(&typed.ty))
}
