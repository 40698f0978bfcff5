//! The macros without the compiler's own types, so that tests and fuzzing can call them.

use proc_macro2::TokenStream;

use crate::model::Kind;
use crate::{expand, fallback, model, parse};

/// Returns the definition, or every error with a stub.
pub(crate) fn define(kind: Kind, options: TokenStream, item: &TokenStream) -> TokenStream {
    let entries = parse::options(options);
    let function = match parse::function(item.clone()) {
        Ok(function) => function,
        Err(refused) => return fallback::item(kind, &refused, item),
    };
    match model::check(kind, &entries, &function) {
        Ok(definition) => expand::definition(&definition),
        Err(error) => fallback::function(kind, &entries, &function, &error),
    }
}
