//! The attribute macros, called without a compiler.

use proc_macro2::{Span, TokenStream, TokenTree};

pub(crate) use crate::define::define;
pub(crate) use crate::model::Kind;

/// An item without an error.
pub(crate) const ITEM: &str = "async fn charge(order: Order, note: Option<String>) -> Result<()> { Ok(()) }";

/// The expansion of [`ITEM`] with these options. `None` if they cannot be lexed.
pub(crate) fn job(options: &str) -> Option<TokenStream> {
    Some(define(Kind::Job, options.parse().ok()?, &ITEM.parse().ok()?))
}

/// A string literal with this text.
pub(crate) fn literal(text: &str) -> String {
    proc_macro2::Literal::string(text).to_string()
}

/// Whether tokens have source positions. Under the cfg of cargo-fuzz, `proc-macro2` stores none.
pub(crate) fn has_places() -> bool {
    let tokens: TokenStream = "place".parse().unwrap_or_default();
    tokens.into_iter().any(|token| token.span().source_text().is_some())
}

/// The positions of the errors in an expansion.
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

/// The numbers that the expansion assigns to one option of the descriptor.
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

/// Frees the source positions of past tokens, which would accumulate in a long-lived process.
pub(crate) fn forget_places() {
    proc_macro2::extra::invalidate_current_thread_spans();
}
