//! Output beside an error: callers type-check and editors keep the body, without further messages.

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::{format_ident, quote};
use syn::{FnArg, GenericParam, Pat, Path, ReturnType, Signature, Token, Type, parse_quote};

use crate::attributes::Attributes;
use crate::expand::{generated, generated_docs, hygienic, location};
use crate::model::{self, Kind};
use crate::parse::{Entry, Function, Refused};

/// Returns the errors, and a function with the signature that callers use.
pub(crate) fn function(
    kind: Kind,
    entries: &[Entry],
    function: &Function,
    error: &syn::Error,
) -> TokenStream {
    let errors = error.to_compile_error();
    if function.signature.receiver().is_some() {
        return method(function, &errors);
    }
    let library = model::library(entries);
    let attributes = Attributes::split(&function.attributes);
    let conditions = &attributes.conditions;
    let stub = stub(kind, &library, &attributes, function);
    let job = job(kind, &library, function);
    let body = body(kind, &library, &attributes, function);
    quote! {
        #(#conditions)* #errors
        #stub
        #(#conditions)*
        const _: () = { #job #body };
    }
}

/// Returns the error for an item that is not a function, and the item itself.
pub(crate) fn item(kind: Kind, refused: &Refused, item: &TokenStream) -> TokenStream {
    let word = kind.word();
    let errors = match refused {
        Refused::Other(keyword) => syn::Error::new(
            keyword.span(),
            format!(
                "`#[{word}]` goes on an `async fn`, not on `{keyword}`; write `#[{word}] \
                async fn name(…) -> Result<…> {{ … }}`"
            ),
        ),
        Refused::Unreadable(error) => error.clone(),
    }
    .to_compile_error();
    quote!(#errors #item)
}

/// A function with a receiver is most likely in an `impl` block, which allows only functions.
fn method(function: &Function, errors: &TokenStream) -> TokenStream {
    let Function { attributes, visibility, signature, body } = function;
    let signature = model::without_our_attributes(signature);
    quote!(#errors #(#attributes)* #visibility #signature #body)
}

fn stub(kind: Kind, library: &Path, attributes: &Attributes, function: &Function) -> TokenStream {
    let Attributes { conditions, public, documented, .. } = attributes;
    let Function { visibility, signature, .. } = function;
    let Signature { ident, generics, fn_token, .. } = signature;
    let where_clause = &generics.where_clause;
    let marker = model::marker(ident);
    let docs = (!documented).then(|| generated_docs(kind, &ident.to_string()));
    let parameters = callers_parameters(kind, signature);
    quote! {
        #(#conditions)*
        #docs
        #(#public)*
        #[allow(unused, non_snake_case)]
        #visibility #fn_token #ident #generics(#(#parameters),*) -> #library::Call<#marker> #where_clause {
            ::core::unreachable!()
        }
        #(#conditions)*
        #[doc(hidden)]
        #[allow(non_camel_case_types)]
        #visibility enum #marker {}
    }
}

/// The parameters that are part of the call, as far as the macro can tell.
fn callers_parameters(kind: Kind, signature: &Signature) -> Vec<TokenStream> {
    let mut parameters = Vec::new();
    for (index, input) in signature.inputs.iter().enumerate() {
        let FnArg::Typed(typed) = input else { continue };
        let is_injected = typed.attrs.iter().any(|attribute| attribute.path().is_ident("inject"));
        let may_be_context = index == 0 || model::is_context(&typed.ty);
        let is_context = kind == Kind::Workflow && may_be_context && model::could_be_context(input);
        if is_injected || is_context {
            continue;
        }
        let name = match &*typed.pat {
            Pat::Ident(pattern) => hygienic(&pattern.ident),
            _ => format_ident!("argument_{index}", span = generated(signature.ident.span())),
        };
        let ty = &typed.ty;
        parameters.push(quote!(#name: #ty));
    }
    parameters
}

fn job(kind: Kind, library: &Path, function: &Function) -> TokenStream {
    let signature = &function.signature;
    let marker = model::marker(&signature.ident);
    let name = signature.ident.to_string();
    let constructor = Ident::new(kind.word(), signature.ident.span());
    let location = location(library, signature.ident.span());
    let output = usable_output(signature)
        .map_or_else(|| quote!(()), |ty| quote!(<#ty as #library::__private::JobResult>::Ok));
    quote! {
        #[automatically_derived]
        impl #library::Job for #marker {
            type Output = #output;
            const DEFINITION: &'static #library::__private::Definition =
                &#library::__private::Definition::#constructor(#name, |_| ::core::unreachable!(), #location);
        }
    }
}

/// The return type, unless naming it outside the function would cause another error.
fn usable_output(signature: &Signature) -> Option<&Type> {
    let ReturnType::Type(_, ty) = &signature.output else {
        return None;
    };
    let generic: Vec<String> = signature
        .generics
        .params
        .iter()
        .filter_map(|parameter| match parameter {
            GenericParam::Type(ty) => Some(ty.ident.to_string()),
            GenericParam::Const(constant) => Some(constant.ident.to_string()),
            GenericParam::Lifetime(_) => None,
        })
        .collect();
    (model::is_nameable(ty) && !mentions(quote!(#ty), &generic)).then_some(ty)
}

fn mentions(tokens: TokenStream, names: &[String]) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => names.contains(&ident.to_string()),
        TokenTree::Group(group) => mentions(group.stream(), names),
        _ => false,
    })
}

/// The user's function, without the parts that the compiler would report a second time. It is
/// emitted so that editors complete in its body and its imports count as used.
fn body(kind: Kind, library: &Path, attributes: &Attributes, function: &Function) -> Option<TokenStream> {
    let mut signature = model::without_our_attributes(&function.signature);
    let is_checkable = model::has_body(function) && !matches!(signature.output, ReturnType::Default);
    signature.constness = None;
    signature.asyncness = Some(Token![async](signature.fn_token.span));
    signature.abi = None;
    signature.variadic = None;
    if kind == Kind::Workflow && !signature.inputs.iter().any(model::could_be_context) {
        signature.inputs.insert(0, parse_quote!(wf: &#library::Wf));
    }
    let marker = model::marker(&signature.ident);
    let inner = attributes.inner.iter().filter(|attribute| !model::is_ours(attribute));
    let body = &function.body;
    is_checkable.then(|| {
        quote! {
            impl #marker {
                #[allow(unused, clippy::unused_async)]
                #(#inner)*
                #signature #body
            }
        }
    })
}
