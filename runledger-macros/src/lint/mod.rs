//! Reports code in the body of a workflow that replay does not repeat.
//!
//! A worker executes the body again from its beginning and skips recorded steps, so the code
//! between steps must decide the same each time. The lint knows neither types nor outer imports:
//! the paths in the body decide. A false alarm costs more than a missed defect, so unclear code
//! passes.
//!
//! ```text
//! body ─▶ mentions ─▶ rules     path → class, why, instead
//!         │      └▶ owners      functions and closures in the body: do only steps call them?
//!         └▶ names              what a local name stands for
//! ```

mod mentions;
mod names;
mod owners;
mod rules;
#[cfg(test)]
mod tests;
mod tokens;

use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::Type;
use syn::buffer::TokenBuffer;

use self::mentions::mentions;
pub(crate) use self::names::Local;
pub(crate) use self::rules::Class;
use self::rules::rule_of;
use crate::problems::Problems;

/// A class that the user allows.
pub(crate) struct Allowed {
    pub class: Class,
    /// The word that allows it. `None` if the word is already reported.
    pub word: Option<Ident>,
}

/// Classifies a parameter of this type that is not the workflow's context.
pub(crate) fn local_of(ty: &Type) -> Local {
    let tokens = TokenBuffer::new2(ty.to_token_stream());
    names::of_type(tokens.begin()).unwrap_or(Local::Other)
}

/// Reports every mention that replay does not repeat, unless it is allowed. Also reports words that
/// allow nothing in the body.
pub(crate) fn check(
    body: &TokenStream,
    parameters: &[(String, Local)],
    allowed: &[Allowed],
    problems: &mut Problems,
) {
    let mut needed = Vec::new();
    for mention in mentions(body, parameters) {
        let Some(rule) = rule_of(&mention) else { continue };
        if allowed.iter().any(|allowed| allowed.class == rule.class) {
            needed.push(rule.class);
        } else {
            problems.at(mention, rule.message());
        }
    }
    for word in allowed
        .iter()
        .filter(|allowed| !needed.contains(&allowed.class))
        .filter_map(|allowed| allowed.word.as_ref())
    {
        problems.at(word, format!("nothing in the body needs `{word}`; leave it out"));
    }
}
