//! Generates the items of a checked definition. This cannot fail, and generated code contains no
//! logic.
//!
//! ```text
//! pub fn charge(order: Order) -> ::runledger::Call<__charge> { … }     what callers see
//! pub enum __charge {}                                                 the one hidden item
//! const _: () = {
//!     impl __charge { async fn charge(…) { … }  fn __runledger_run(…) }    a path to the body, which
//!                                                                          shadows nothing
//!     impl ::runledger::Job for __charge { … }
//!     inventory::submit! { … }
//! };
//! ```
//!
//! Locals are hygienic (`Span::mixed_site`), so that a parameter may have any name.

mod descriptor;
mod run;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Path, Type};

pub(crate) use self::descriptor::location;
use crate::model::{Definition, Kind, Owned, Parameter, Payload, Role};

/// All items of a definition.
pub(crate) fn definition(definition: &Definition) -> TokenStream {
    let function = public_function(definition);
    let hidden = hidden_type(definition);
    let conditions = &definition.attributes.conditions;
    let body = run::body(definition);
    let job = descriptor::implementation(definition);
    let Definition { library, marker, .. } = definition;
    quote! {
        #function
        #hidden
        #(#conditions)*
        const _: () = {
            #body
            #job
            #library::__private::inventory::submit! {
                #library::__private::Registration(<#marker as #library::Job>::DEFINITION)
            }
        };
    }
}

/// Documents a function without documentation, so that `missing_docs` does not warn.
pub(crate) fn generated_docs(kind: Kind, name: &str) -> TokenStream {
    let text = format!(" A call of the {} `{name}`.", kind.word());
    quote!(#[doc = #text])
}

/// The same identifier, visible only to generated code.
pub(crate) fn hygienic(ident: &Ident) -> Ident {
    let mut ident = ident.clone();
    ident.set_span(generated(ident.span()));
    ident
}

/// Shows messages at `span`, and resolves names like generated code.
pub(crate) fn generated(span: Span) -> Span {
    span.resolved_at(Span::mixed_site())
}

/// The span for messages about a type: after its `&`, if it has one.
fn place(ty: &Type) -> Span {
    match ty {
        Type::Reference(reference) => place(&reference.elem),
        other => generated(other.span()),
    }
}

fn public_function(definition: &Definition) -> TokenStream {
    let Definition { library, attributes, visibility, signature, marker, .. } = definition;
    let conditions = &attributes.conditions;
    let public = &attributes.public;
    let docs = (!attributes.documented).then(|| generated_docs(definition.kind, &definition.name));
    let ident = &signature.ident;
    let fn_token = &signature.fn_token;
    let names: Vec<Ident> = stored(definition).map(|(parameter, _)| hygienic(&parameter.ident)).collect();
    let types = stored(definition).map(|(parameter, _)| &parameter.ty);
    let arguments = stored(definition).map(|(parameter, payload)| encoded(library, parameter, payload));
    quote! {
        #(#conditions)*
        #docs
        #(#public)*
        #[allow(non_snake_case, clippy::too_many_arguments)]
        #visibility #fn_token #ident(#(#names: #types),*) -> #library::Call<#marker> {
            #library::__private::call::<#marker>(&[#(#arguments),*])
        }
    }
}

/// The key and the value of one argument. The library requires `Payload` here in the same words as
/// where it reads the argument, so that the compiler reports a wrong type once.
fn encoded(library: &Path, parameter: &Parameter, payload: &Payload) -> TokenStream {
    let at = place(&parameter.ty);
    let key = key(&parameter.ident);
    let mut name = parameter.ident.clone();
    name.set_span(at);
    let (ty, value) = match &payload.owned {
        Owned::Moved => (&parameter.ty, quote_spanned!(at=> &#name)),
        Owned::Borrowed(ty) => (ty, quote_spanned!(at=> #name)),
        Owned::Unsized(_) => return quote_spanned!(at=> (#key, &#name)),
    };
    quote_spanned! {at=>
        (#key, {
            #library::__private::assert_payload::<#ty>();
            #library::__private::argument::<#ty>(#value)
        })
    }
}

fn hidden_type(definition: &Definition) -> TokenStream {
    let Definition { attributes, visibility, marker, .. } = definition;
    let conditions = &attributes.conditions;
    quote! {
        #(#conditions)*
        #[doc(hidden)]
        #[allow(non_camel_case_types, missing_debug_implementations, missing_copy_implementations)]
        #visibility enum #marker {}
    }
}

fn stored(definition: &Definition) -> impl Iterator<Item = (&Parameter, &Payload)> {
    definition.parameters.iter().filter_map(|parameter| match &parameter.role {
        Role::Stored(payload) => Some((parameter, payload)),
        Role::Workflow | Role::Injected(_) | Role::Transaction => None,
    })
}

/// The key of a parameter in the stored object: its name without `r#`.
fn key(ident: &Ident) -> String {
    ident.unraw().to_string()
}
