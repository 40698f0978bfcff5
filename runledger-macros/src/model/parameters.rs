//! Checks the parameters: which are stored, which are injected, and which have a default.

use syn::{Expr, FnArg, Ident, Pat, PatType, Signature, Type, TypeReference};

use super::Kind;
use super::context::{self, is_context};
use super::marks::{is_lint, marks};
use super::types::{self, Borrowed};
use crate::problems::Problems;

/// The library implements its traits for tuples and functions up to this length, and a declared
/// graph passes tuples.
const MAX_STORED: usize = 12;

/// One parameter.
#[derive(Clone)]
pub(crate) struct Parameter {
    pub ident: Ident,
    /// The type as written.
    pub ty: Type,
    pub role: Role,
}

/// Where the value of a parameter comes from.
#[derive(Clone)]
pub(crate) enum Role {
    /// The leading `wf: &Wf`.
    Workflow,
    Stored(Payload),
    /// `#[inject] x: &T`, with this `T`.
    Injected(Type),
    /// `#[inject] tx: &mut Tx`.
    Transaction,
}

/// A parameter that is part of the call.
#[derive(Clone)]
pub(crate) struct Payload {
    pub owned: Owned,
    pub presence: Presence,
}

/// How the argument is made from the stored value.
#[derive(Clone)]
pub(crate) enum Owned {
    /// `x: T`: moved.
    Moved,
    /// `x: &T`, stored as this `T`.
    Borrowed(Type),
    /// `x: &str`, `x: &[T]`, `x: &Path`, stored as the owned form of this unsized type.
    Unsized(Type),
}

/// The value to use if the stored payload lacks the key.
#[derive(Clone)]
pub(crate) enum Presence {
    Required,
    /// `Option<…>`: it is `None`.
    Optional,
    /// `#[default]`
    Default,
    /// `#[default = expr]`
    DefaultTo(Expr),
}

/// Reads all parameters. Reports and leaves out the wrong ones.
pub(super) fn check(kind: Kind, signature: &Signature, problems: &mut Problems) -> Vec<Parameter> {
    let mut parameters = Vec::new();
    let mut n_before = 0;
    if kind == Kind::Workflow {
        parameters.extend(context::check(signature, problems));
        n_before = usize::from(context::is_first(signature));
    }
    for input in signature.inputs.iter().skip(n_before) {
        match input {
            FnArg::Receiver(receiver) => problems.at(receiver, receiver_message(kind)),
            FnArg::Typed(typed) => parameters.extend(parameter(kind, typed, problems)),
        }
    }
    check_together(kind, &parameters, problems);
    parameters
}

/// The signature for the compiler, without our attributes `#[inject]` and `#[default]`.
pub(crate) fn without_our_attributes(signature: &Signature) -> Signature {
    let mut signature = signature.clone();
    for input in &mut signature.inputs {
        if let FnArg::Typed(typed) = input {
            typed.attrs.retain(is_lint);
        }
    }
    signature
}

fn parameter(kind: Kind, typed: &PatType, problems: &mut Problems) -> Option<Parameter> {
    let marks = marks(typed, problems);
    let ident = named(typed, problems);
    let role = match (marks.inject, marks.default) {
        (Some(_), Some((default, _))) => {
            problems.at(
                default,
                "an injected value has no default: it comes from the application, not from \
                the call; remove `#[default]` or `#[inject]`",
            );
            injected(typed, problems)
        }
        (Some(_), None) => injected(typed, problems),
        (None, default) => stored(kind, typed, default.map(|(_, presence)| presence), problems),
    };
    Some(Parameter { ident: ident?, ty: (*typed.ty).clone(), role: role? })
}

/// The plain name of a parameter.
pub(super) fn named(typed: &PatType, problems: &mut Problems) -> Option<Ident> {
    match &*typed.pat {
        Pat::Ident(pattern) if pattern.by_ref.is_none() && pattern.subpat.is_none() => {
            Some(pattern.ident.clone())
        }
        pattern => {
            problems.at(
                pattern,
                "a parameter needs a plain name, under which its value is stored; take the \
                pattern apart in the body",
            );
            None
        }
    }
}

fn injected(typed: &PatType, problems: &mut Problems) -> Option<Role> {
    let Some(reference) = types::reference(&typed.ty) else {
        problems.at(
            &typed.ty,
            "an injected value belongs to the application and is borrowed; write `&T`, or \
            `&mut Tx` for the transaction",
        );
        return None;
    };
    if reference.mutability.is_some() {
        return Some(Role::Transaction);
    }
    let elem = types::bare(&reference.elem);
    if unsized_of(reference).is_some() || matches!(elem, Type::TraitObject(_)) {
        problems.at(
            elem,
            "an injected value is found by its type, which must be sized; provide and \
            inject a type of your own or an `Arc<…>`",
        );
        return None;
    }
    let borrowed = match (types::borrowed(&reference.elem), &reference.lifetime) {
        (Some(Borrowed::Reference(at) | Borrowed::Lifetime(at, _)), _) => Some(at),
        (None, Some(lifetime)) => Some(lifetime.span()),
        (None, None) => None,
    };
    if let Some(at) = borrowed {
        problems.at_span(
            at,
            "an injected value is found by its type, which must not borrow; inject an \
            owned type by plain reference",
        );
        return None;
    }
    Some(Role::Injected(elem.clone()))
}

fn stored(kind: Kind, typed: &PatType, default: Option<Presence>, problems: &mut Problems) -> Option<Role> {
    if let Some(fault) = fault(kind, &typed.ty) {
        problems.add(fault);
        return None;
    }
    let reference = types::reference(&typed.ty);
    let stored = reference.map_or(&*typed.ty, |reference| &*reference.elem);
    let owned = match reference {
        None => Owned::Moved,
        Some(reference) => match unsized_of(reference) {
            Some(elem) => Owned::Unsized(elem.clone()),
            None => Owned::Borrowed(types::bare(stored).clone()),
        },
    };
    let implied = if types::is_option(stored) { Presence::Optional } else { Presence::Required };
    Some(Role::Stored(Payload { owned, presence: default.unwrap_or(implied) }))
}

/// The reason why values of a type cannot be stored, as far as its tokens show it.
fn fault(kind: Kind, ty: &Type) -> Option<syn::Error> {
    if let Some(at) = types::impl_trait(ty) {
        return Some(syn::Error::new(
            at,
            "an argument is stored and read back, so its type must be named; write a \
            concrete type instead of `impl`",
        ));
    }
    if is_context(ty) {
        return Some(syn::Error::new_spanned(
            ty,
            match kind {
                Kind::Job => {
                    "a `#[job]` has no workflow context; make it a `#[workflow]` or remove the \
                parameter"
                }
                Kind::Workflow => {
                    "the context of a `#[workflow]` comes once and first; move it there or remove \
                it"
                }
            },
        ));
    }
    fault_of_borrowing(ty)
}

fn fault_of_borrowing(ty: &Type) -> Option<syn::Error> {
    let reference = types::reference(ty);
    if reference.is_some_and(|reference| reference.mutability.is_some()) {
        return Some(syn::Error::new_spanned(
            ty,
            "an argument is stored, so it cannot be borrowed mutably; take it by value \
            and write `mut` before its name, or mark a transaction with `#[inject]`",
        ));
    }
    if let Some(lifetime) = reference.and_then(|reference| reference.lifetime.as_ref()) {
        return Some(syn::Error::new_spanned(
            lifetime,
            "an argument is read back from the store and lives as long as the attempt; \
            write the reference without a lifetime",
        ));
    }
    let (Borrowed::Reference(at) | Borrowed::Lifetime(at, _)) =
        types::borrowed(reference.map_or(ty, |reference| &*reference.elem))?;
    Some(syn::Error::new(
        at,
        "an argument is stored, so its type must not borrow; only a whole parameter \
        may be a reference, as `&str` or `&[T]`: write the owned type here",
    ))
}

/// The referenced unsized type, if it has an owned form.
pub(super) fn unsized_of(reference: &TypeReference) -> Option<&Type> {
    let elem = types::bare(&reference.elem);
    let has_owner =
        matches!(elem, Type::Slice(_)) || types::is_named(elem, "str") || types::is_named(elem, "Path");
    has_owner.then_some(elem)
}

fn check_together(kind: Kind, parameters: &[Parameter], problems: &mut Problems) {
    let transactions = parameters.iter().filter(|parameter| matches!(parameter.role, Role::Transaction));
    for (index, transaction) in transactions.enumerate() {
        if kind == Kind::Workflow {
            problems.at(
                &transaction.ty,
                "a workflow has no transaction of its own: it may run for days; write in a \
                `#[job]` with `#[inject] tx: &mut Tx`, and run that with `wf.run(…)`",
            );
        } else if index > 0 {
            problems.at(&transaction.ty, "a `#[job]` has one transaction; remove the second `&mut`");
        }
    }
    let stored = parameters.iter().filter(|parameter| matches!(parameter.role, Role::Stored(_)));
    if let Some(first_too_many) = stored.clone().nth(MAX_STORED) {
        problems.at_span(
            first_too_many.ident.span(),
            format!(
                "this {} has {} arguments, at most {MAX_STORED} are supported; gather some in \
                a struct",
                kind.word(),
                stored.count()
            ),
        );
    }
}

fn receiver_message(kind: Kind) -> String {
    format!(
        "a `#[{}]` is a free function; move it out of the `impl` block and take what \
            it needs as an argument or with `#[inject]`",
        kind.word()
    )
}
