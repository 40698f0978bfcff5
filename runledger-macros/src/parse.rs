//! Parses the attribute and the item. Keeps spans, and judges nothing.
//!
//! Reads only the attributes, the visibility and the signature of the function. The body stays as
//! tokens, so that an editor keeps the function while its body is incomplete.

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};
use syn::{Attribute, Expr, Signature, Token, Visibility};

/// The annotated function.
#[derive(Clone)]
pub(crate) struct Function {
    pub attributes: Vec<Attribute>,
    pub visibility: Visibility,
    pub signature: Signature,
    /// Everything after the signature: the brace group, or any other tokens.
    pub body: TokenStream,
}

/// Why an item is not a [`Function`].
pub(crate) enum Refused {
    /// Another kind of item, with its keyword.
    Other(TokenTree),
    /// A function that cannot be read.
    Unreadable(syn::Error),
}

/// One comma-separated part of the attribute.
pub(crate) enum Entry {
    Option { name: Ident, value: Value },
    Stray(TokenStream),
}

/// The tokens after the name of an option.
pub(crate) enum Value {
    Given(Expr),
    /// `name` or `name =`.
    Missing,
    /// `name(…)` or anything else that is not `= value`.
    NotAssigned(TokenStream),
    Unreadable(TokenStream),
}

/// Splits the attribute at its commas. An unreadable part does not hide the others.
pub(crate) fn options(tokens: TokenStream) -> Vec<Entry> {
    parts(tokens).into_iter().map(entry).collect()
}

/// Splits tokens at commas. An empty part is represented by its comma.
pub(crate) fn parts(tokens: TokenStream) -> Vec<TokenStream> {
    let mut parts = Vec::new();
    let mut part = TokenStream::new();
    for token in tokens {
        let is_comma = matches!(&token, TokenTree::Punct(comma) if comma.as_char() == ',');
        if !is_comma || part.is_empty() {
            part.extend([token]);
        }
        if is_comma {
            parts.push(std::mem::take(&mut part));
        }
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

/// Reads the item as a function.
pub(crate) fn function(item: TokenStream) -> Result<Function, Refused> {
    if let Some(keyword) = other_item(item.clone()) {
        return Err(Refused::Other(keyword));
    }
    syn::parse2(item).map_err(Refused::Unreadable)
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        Ok(Self {
            attributes: input.call(Attribute::parse_outer)?,
            visibility: input.parse()?,
            signature: input.parse()?,
            body: input.parse()?,
        })
    }
}

fn entry(part: TokenStream) -> Entry {
    let mut tokens = part.clone().into_iter();
    let Some(TokenTree::Ident(name)) = tokens.next() else {
        return Entry::Stray(part);
    };
    let value = match tokens.next() {
        None => Value::Missing,
        Some(TokenTree::Punct(sign)) if sign.as_char() == '=' => read_value(tokens.collect()),
        Some(first) => Value::NotAssigned(std::iter::once(first).chain(tokens).collect()),
    };
    Entry::Option { name, value }
}

fn read_value(tokens: TokenStream) -> Value {
    if tokens.is_empty() {
        return Value::Missing;
    }
    match syn::parse2(tokens.clone()) {
        Ok(value) => Value::Given(value),
        Err(_) => Value::Unreadable(tokens),
    }
}

/// The first token after attributes and visibility, if the item is not a function.
fn other_item(item: TokenStream) -> Option<TokenTree> {
    let read = |input: ParseStream<'_>| {
        input.call(Attribute::parse_outer)?;
        input.parse::<Visibility>()?;
        let first = input.fork().parse::<TokenTree>()?;
        while !input.peek(Token![fn]) && qualifier(input) {}
        let is_function = input.peek(Token![fn]);
        input.parse::<TokenStream>()?;
        Ok((!is_function).then_some(first))
    };
    read.parse2(item).ok().flatten()
}

/// Skips one of the words that may precede `fn`.
fn qualifier(input: ParseStream<'_>) -> bool {
    let word = input.fork().call(Ident::parse_any).ok();
    let is_word = word.is_some_and(|word| {
        ["const", "async", "unsafe", "safe", "extern"].contains(&word.to_string().as_str())
    });
    (is_word || input.peek(syn::LitStr)) && input.parse::<TokenTree>().is_ok()
}
