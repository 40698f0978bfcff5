//! The options of the attributes, and the functions and bodies under them. Any tokens have an
//! expansion, and an error points at a position.

use proc_macro2::TokenStream;
use quote::quote;

use crate::macros::{ITEM, Kind, define, errors, forget_places, has_places};

/// Interprets the first line as options, and the rest as the item and as a body.
pub fn options(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (options, item) = text.split_once('\n').unwrap_or((text, ""));
    if let (Ok(options), true) = (options.parse::<TokenStream>(), is_flat(text)) {
        for kind in [Kind::Job, Kind::Workflow] {
            under_a_sound_item(kind, &options);
            if let Ok(item) = item.parse::<TokenStream>() {
                under_any_item(kind, &options, &item);
            }
        }
        if let Ok(body) = item.parse::<TokenStream>() {
            as_a_body(&body);
        }
    }
    forget_places();
}

/// Deep nesting exhausts the parser's stack, as it does the compiler's.
fn is_flat(text: &str) -> bool {
    text.bytes().filter(|byte| b"([{<&*-!|".contains(byte)).count() < 100
}

fn under_a_sound_item(kind: Kind, options: &TokenStream) {
    let item: TokenStream = ITEM.parse().unwrap_or_default();
    let item = match kind {
        Kind::Job => item,
        Kind::Workflow => {
            item.to_string().replacen("(order", "(wf: &Wf, order", 1).parse().unwrap_or_default()
        }
    };
    let expansion = define(kind, options.clone(), &item);
    if let Err(error) = syn::parse2::<syn::File>(expansion.clone()) {
        unreachable!("the expansion under `{options}` is no Rust: {error}: {expansion}");
    }
    for place in errors(&expansion).into_iter().filter(|_| has_places()) {
        let source = place.source_text().unwrap_or_default();
        assert!(!source.is_empty(), "an error under `{options}` points nowhere: {expansion}");
    }
}

fn under_any_item(kind: Kind, options: &TokenStream, item: &TokenStream) {
    let expansion = define(kind, options.clone(), item);
    if syn::parse2::<syn::ItemFn>(item.clone()).is_err() {
        return assert!(!expansion.is_empty() || item.is_empty());
    }
    if let Err(error) = syn::parse2::<syn::File>(expansion.clone()) {
        unreachable!("the expansion of `{item}` is no Rust: {error}: {expansion}");
    }
}

/// Workflow code refuses some tokens that a step's body may contain.
fn as_a_body(body: &TokenStream) {
    let refused = errors(&workflow(body));
    for place in refused.into_iter().filter(|_| has_places()) {
        let source = place.source_text().unwrap_or_default();
        assert!(!source.is_empty(), "an error in `{body}` points nowhere");
    }
    let step = workflow(&quote! { wf.step("all", || async { #body }) });
    assert_eq!(errors(&step).len(), errors(body).len(), "an inline step of `{body}` is refused: {step}");
}

fn workflow(body: &TokenStream) -> TokenStream {
    define(Kind::Workflow, TokenStream::new(), &quote! { async fn flow(wf: &Wf) -> Result<()> { #body } })
}
