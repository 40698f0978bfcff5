//! The attribute macros without a compiler around them.

use proc_macro2::{Span, TokenStream, TokenTree};

pub(crate) use crate::define::define;
pub(crate) use crate::model::Kind;

/// An item without a fault.
pub(crate) const ITEM: &str = "async fn charge(order: Order, note: Option<String>) -> Result<()> { Ok(()) }";

/// What stands in the place of [`ITEM`] under these options; none where a lexer refuses them.
pub(crate) fn job(options: &str) -> Option<TokenStream> {
    Some(define(Kind::Job, options.parse().ok()?, &ITEM.parse().ok()?))
}

/// A string literal that holds the text.
pub(crate) fn literal(text: &str) -> String {
    proc_macro2::Literal::string(text).to_string()
}

/// Whether tokens know their places: under the cfg of cargo-fuzz, `proc-macro2` keeps none.
pub(crate) fn has_places() -> bool {
    let tokens: TokenStream = "place".parse().unwrap_or_default();
    tokens.into_iter().any(|token| token.span().source_text().is_some())
}

/// Where the errors of an expansion point.
pub(crate) fn errors(expansion: &TokenStream) -> Vec<Span> {
    let mut found = Vec::new();
    for token in expansion.clone() {
        match token {
            TokenTree::Ident(ident) if ident == "compile_error" => found.push(ident.span()),
            TokenTree::Group(group) => found.extend(errors(&group.stream())),
            _ => {}
        }
    }
    found
}

/// The numbers that the expansion gives to one of the descriptor's options.
pub(crate) fn numbers(expansion: &TokenStream, option: &str) -> Option<Vec<u64>> {
    let mut is_next = false;
    for token in expansion.clone() {
        match token {
            TokenTree::Ident(ident) => is_next = ident == option,
            TokenTree::Group(group) if is_next => {
                return group
                    .stream()
                    .to_string()
                    .split(',')
                    .map(|number| number.trim().parse().ok())
                    .collect();
            }
            TokenTree::Group(group) => {
                let found = numbers(&group.stream(), option);
                if found.is_some() {
                    return found;
                }
            }
            _ => is_next = false,
        }
    }
    None
}

/// Forgets the places of the tokens so far, which a long-lived process would pile up.
pub(crate) fn forget_places() {
    proc_macro2::extra::invalidate_current_thread_spans();
}
