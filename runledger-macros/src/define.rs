//! From the tokens of an attribute and its item to the tokens that take their place: all of the macros but the compiler's own types, so that tests and
//! fuzzing reach it.

use proc_macro2::TokenStream;

use crate::model::Kind;
use crate::{expand, fallback, model, parse};

/// What stands in the place of the item: the definition, or every error beside a stub.
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
