//! Assigns the user's attributes to the generated items.

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token, parse_quote};

/// The attributes of the annotated function, by the item that carries them.
#[derive(Clone, Default)]
pub(crate) struct Attributes {
    /// `cfg`: for every generated item.
    pub conditions: Vec<Attribute>,
    /// Documentation, `deprecated`, `must_use`: for the function that callers see.
    pub public: Vec<Attribute>,
    /// All others: for the function with the user's body.
    pub inner: Vec<Attribute>,
    /// Whether the user wrote documentation.
    pub documented: bool,
}

impl Attributes {
    pub(crate) fn split(attributes: &[Attribute]) -> Self {
        let mut split = Self::default();
        for attribute in attributes {
            split.place(attribute);
        }
        split
    }

    fn place(&mut self, attribute: &Attribute) {
        let path = attribute.path();
        if path.is_ident("cfg") {
            self.conditions.push(attribute.clone());
        } else if path.is_ident("cfg_attr") {
            self.place_conditional(attribute);
        } else if is_public(&attribute.meta) {
            self.documented |= matches!(&attribute.meta, Meta::NameValue(doc) if doc.path.is_ident("doc"));
            self.public.push(attribute.clone());
        } else {
            self.inner.push(attribute.clone());
        }
    }

    /// `cfg_attr(condition, a, b)` is split like `a` and `b`, each under the same condition.
    fn place_conditional(&mut self, attribute: &Attribute) {
        let Some((condition, metas)) = conditional(attribute) else {
            self.inner.push(attribute.clone());
            return;
        };
        for meta in metas {
            let single: Attribute = parse_quote!(#[cfg_attr(#condition, #meta)]);
            if meta.path().is_ident("cfg") {
                self.conditions.push(single);
            } else if is_public(&meta) {
                self.public.push(single);
            } else {
                self.inner.push(single);
            }
        }
    }
}

fn is_public(meta: &Meta) -> bool {
    ["doc", "deprecated", "must_use"].iter().any(|name| meta.path().is_ident(name))
}

fn conditional(attribute: &Attribute) -> Option<(TokenStream, Vec<Meta>)> {
    let list = attribute.meta.require_list().ok()?;
    let metas = Punctuated::<Meta, Token![,]>::parse_terminated.parse2(list.tokens.clone()).ok()?;
    let mut metas = metas.into_iter();
    let condition = metas.next()?.to_token_stream();
    Some((condition, metas.collect()))
}

#[cfg(test)]
mod tests {
    use quote::ToTokens;
    use syn::{Attribute, parse_quote};

    use super::Attributes;

    fn shown(attributes: &[Attribute]) -> Vec<String> {
        attributes.iter().map(|attribute| attribute.to_token_stream().to_string()).collect()
    }

    #[test]
    fn cfg_attr_is_split_into_public_and_inner_attributes() {
        let given: Attribute = parse_quote!(#[cfg_attr(feature = "x", deprecated, inline)]);
        let split = Attributes::split(&[given]);
        assert_eq!(shown(&split.public), ["# [cfg_attr (feature = \"x\" , deprecated)]"]);
        assert_eq!(shown(&split.inner), ["# [cfg_attr (feature = \"x\" , inline)]"]);
    }

    #[test]
    fn doc_hidden_does_not_count_as_documentation() {
        let split = Attributes::split(&[parse_quote!(#[doc(hidden)])]);
        assert!(!split.documented);
        assert_eq!(split.public.len(), 1);
        assert!(Attributes::split(&[parse_quote!(#[doc = "text"])]).documented);
    }
}
