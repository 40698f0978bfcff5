//! What the body of a workflow may not do outside its steps, since replay would not repeat it.
//!
//! A worker runs the body anew from its beginning and skips recorded steps, so between them the body must decide alike every time. Types and imports
//! are unknown here: what the paths in the body say decides. An alarm about code that is right costs more than one that is missed, so what they do not
//! give away passes.
//!
//! ```text
//! body ─▶ mentions ─▶ rules     path → class, why, instead
//!         │      └▶ owners      functions and closures in the body: whether steps alone call them
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

/// A class that the user lets pass.
pub(crate) struct Allowed {
    pub class: Class,
    /// The word that says so, unless it is reported already.
    pub word: Option<Ident>,
}

/// What a parameter of this type is, other than the workflow's context.
pub(crate) fn local_of(ty: &Type) -> Local {
    let tokens = TokenBuffer::new2(ty.to_token_stream());
    names::of_type(tokens.begin()).unwrap_or(Local::Other)
}

/// Reports every mention of what replay cannot repeat, except what is allowed, and what is allowed in vain.
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
