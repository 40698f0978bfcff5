//! Analyzes types by their tokens alone.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{PathArguments, Type, TypeReference};

/// The part of a type that prevents storing its values.
pub(super) enum Borrowed {
    Reference(Span),
    Lifetime(Span, String),
}

/// The first reference or lifetime in `tokens`, except `'static`.
pub(super) fn borrowed(tokens: impl ToTokens) -> Option<Borrowed> {
    find_borrowed(tokens.into_token_stream())
}

/// Whether `ty` can be written outside the function that returns it.
pub(crate) fn is_nameable(ty: &Type) -> bool {
    borrowed(ty).is_none() && impl_trait(ty).is_none()
}

/// The span of `impl` in `impl Trait`.
pub(super) fn impl_trait(tokens: impl ToTokens) -> Option<Span> {
    tokens.into_token_stream().into_iter().find_map(|token| match token {
        TokenTree::Ident(word) if word == "impl" => Some(word.span()),
        TokenTree::Group(group) => impl_trait(group.stream()),
        _ => None,
    })
}

/// The type without parentheses and without the invisible groups of `macro_rules!`.
pub(super) fn bare(mut ty: &Type) -> &Type {
    loop {
        ty = match ty {
            Type::Group(group) => &group.elem,
            Type::Paren(paren) => &paren.elem,
            other => return other,
        };
    }
}

/// `ty` as a reference.
pub(super) fn reference(ty: &Type) -> Option<&TypeReference> {
    match bare(ty) {
        Type::Reference(reference) => Some(reference),
        _ => None,
    }
}

/// Whether `ty` is written as the plain name `name`, with or without a path before it.
pub(super) fn is_named(ty: &Type, name: &str) -> bool {
    last_segment(ty).is_some_and(|(ident, plain)| plain && ident == name)
}

/// Whether `ty` is written `Option<…>`.
pub(super) fn is_option(ty: &Type) -> bool {
    last_segment(ty).is_some_and(|(ident, plain)| !plain && ident == "Option")
}

/// The last name of a path, and whether it has no arguments.
fn last_segment(ty: &Type) -> Option<(&syn::Ident, bool)> {
    match bare(ty) {
        Type::Path(path) => path
            .path
            .segments
            .last()
            .map(|segment| (&segment.ident, matches!(segment.arguments, PathArguments::None))),
        _ => None,
    }
}

fn find_borrowed(tokens: TokenStream) -> Option<Borrowed> {
    let mut tokens = tokens.into_iter();
    while let Some(token) = tokens.next() {
        let found = match token {
            TokenTree::Punct(sign) if sign.as_char() == '&' => Some(Borrowed::Reference(sign.span())),
            TokenTree::Punct(quote) if quote.as_char() == '\'' => lifetime(quote.span(), tokens.next()),
            TokenTree::Group(group) => find_borrowed(group.stream()),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

fn lifetime(at: Span, name: Option<TokenTree>) -> Option<Borrowed> {
    let name = name?;
    let at = at.join(name.span()).unwrap_or(at);
    let name = name.to_string();
    (name != "static").then(|| Borrowed::Lifetime(at, format!("'{name}")))
}
