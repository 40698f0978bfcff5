//! What the body of a workflow may not do outside its steps, since replay would not repeat it.
//!
//! A worker runs the body anew from its beginning and skips recorded steps, so between them the body must decide alike every time. Types and imports
//! are unknown here: what the paths in the body say decides. A call that they do not give away, such as the random order of a `HashMap`, passes.
//!
//! ```text
//! body ─▶ mentions ─▶ rules     path → class, why, instead
//! ```

mod mentions;
mod rules;
#[cfg(test)]
mod tests;

use proc_macro2::{Ident, TokenStream};

use self::mentions::mentions;
pub(crate) use self::rules::Class;
use self::rules::rule_of;
use crate::problems::Problems;

/// A class that the user lets pass.
pub(crate) struct Allowed {
    pub class: Class,
    /// The word that says so, unless it is reported already.
    pub word: Option<Ident>,
}

/// Reports every mention of what replay cannot repeat, except what is allowed, and what is allowed in vain.
pub(crate) fn check(body: &TokenStream, allowed: &[Allowed], problems: &mut Problems) {
    let mut needed = Vec::new();
    for mention in mentions(body) {
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
