//! Collects all errors before the macro reports them.

use std::fmt::Display;

use proc_macro2::Span;
use quote::ToTokens;

/// The errors found so far, in the order of the source.
#[derive(Default)]
pub(crate) struct Problems(Option<syn::Error>);

impl Problems {
    /// Adds an error that underlines all of `tokens`.
    pub(crate) fn at(&mut self, tokens: impl ToTokens, message: impl Display) {
        self.add(syn::Error::new_spanned(tokens, message));
    }

    /// Adds an error at one token.
    pub(crate) fn at_span(&mut self, span: Span, message: impl Display) {
        self.add(syn::Error::new(span, message));
    }

    /// Adds an error, or several combined.
    pub(crate) fn add(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            none => *none = Some(error),
        }
    }

    /// Returns the value if there are no errors, otherwise all errors as one.
    pub(crate) fn into_result<T>(self, value: Option<T>) -> syn::Result<T> {
        match (self.0, value) {
            (None, Some(value)) => Ok(value),
            (Some(error), _) => Err(error),
            (None, None) => Err(syn::Error::new(
                Span::call_site(),
                "the macro refused this item without a reason; please report it as a bug of \
                    runledger",
            )),
        }
    }
}
