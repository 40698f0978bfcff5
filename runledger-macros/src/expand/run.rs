//! Generates the user's function, and the function that a worker calls to execute it once.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{Path, Type};

use super::{generated, key, place};
use crate::model::{Definition, Owned, Parameter, Payload, Presence, Role};

/// Both functions are associated functions, so that a path reaches them and a bare name never does.
pub(super) fn body(definition: &Definition) -> TokenStream {
    let Definition { attributes, signature, marker, body, .. } = definition;
    let inner = &attributes.inner;
    let run = run(definition);
    quote! {
        impl #marker {
            #[allow(clippy::ref_option, clippy::unused_async)]
            #(#inner)*
            #signature #body
            #run
        }
    }
}

fn run(definition: &Definition) -> TokenStream {
    let Definition { library, signature, output, .. } = definition;
    let at = generated(signature.ident.span());
    let invocation = Ident::new("invocation", at);
    let result = Ident::new("result", place(output));
    let function = &signature.ident;
    let names = locals(definition);
    // Takes the transaction last, so that arguments that do not fit are detected without one.
    let (transactions, others): (Vec<_>, Vec<_>) =
        names.iter().partition(|(_, parameter)| matches!(parameter.role, Role::Transaction));
    let takes = others.into_iter().map(|(name, parameter)| take(library, name, parameter, &invocation));
    let takes_tx =
        transactions.into_iter().map(|(name, parameter)| take(library, name, parameter, &invocation));
    let arguments = names.iter().map(|(name, parameter)| argument(library, name, parameter));
    let finish = finish(definition, &invocation, &result, &names);
    // Names the output again, so that the compiler does not report a wrong output twice in
    // different words.
    let witness = quote_spanned! {place(output)=>
        let _: ::core::option::Option<<Self as #library::Job>::Output> = ::core::option::Option::None;
    };
    let future = quote_spanned! {at=>
        ::std::boxed::Box::pin(async move {
            #(#takes)*
            if let ::core::result::Result::Err(finished) = #invocation.begin() {
                return finished;
            }
            #(#takes_tx)*
            let #result = Self::#function(#(#arguments),*).await;
            #witness
            #finish
        })
    };
    quote! {
        fn __runledger_run(
            #invocation: #library::__private::Invocation,
        ) -> #library::__private::RunFuture {
            #future
        }
    }
}

/// Numbers the locals of the parameters, because the user's names could clash with other locals.
fn locals(definition: &Definition) -> Vec<(Ident, &Parameter)> {
    let numbered = definition.parameters.iter().enumerate();
    numbered
        .map(|(index, parameter)| {
            let at = place(&parameter.ty);
            (format_ident!("argument_{index}", span = at), parameter)
        })
        .collect()
}

/// Takes the value of one parameter from the invocation, or ends the attempt.
fn take(library: &Path, name: &Ident, parameter: &Parameter, invocation: &Ident) -> TokenStream {
    let at = place(&parameter.ty);
    let taken = match &parameter.role {
        Role::Workflow => return quote_spanned!(at=> let #name = #invocation.wf();),
        Role::Stored(payload) => decode(library, parameter, payload, invocation),
        Role::Injected(ty) => quote_spanned! {at=> {
            #library::__private::assert_injectable::<#ty>();
            #invocation.inject::<#ty>()
        }},
        Role::Transaction => quote_spanned!(at=> #invocation.take_tx()),
    };
    let mutability = matches!(parameter.role, Role::Transaction).then(|| quote!(mut));
    let at = Span::mixed_site();
    quote_spanned! {at=>
        let #mutability #name = match #taken {
            ::core::result::Result::Ok(value) => value,
            ::core::result::Result::Err(finished) => return finished,
        };
    }
}

fn decode(library: &Path, parameter: &Parameter, payload: &Payload, invocation: &Ident) -> TokenStream {
    let at = place(&parameter.ty);
    let key = key(&parameter.ident);
    let owned = owned_type(parameter, payload);
    match &payload.presence {
        Presence::Required | Presence::Optional => {
            quote_spanned! {at=> {
                #library::__private::assert_payload::<#owned>();
                #invocation.arg::<#owned>(#key)
            }}
        }
        Presence::Default => quote_spanned! {at=>
            #invocation.arg_or::<#owned>(#key, <#owned as ::core::default::Default>::default)
        },
        Presence::DefaultTo(value) => {
            let value = match &payload.owned {
                Owned::Moved | Owned::Borrowed(_) => quote!(#value),
                Owned::Unsized(ty) => quote!(<#ty as ::std::borrow::ToOwned>::to_owned(#value)),
            };
            quote_spanned!(at=> #invocation.arg_or::<#owned>(#key, || #value))
        }
    }
}

fn argument(library: &Path, name: &Ident, parameter: &Parameter) -> TokenStream {
    let at = place(&parameter.ty);
    let ty = lent_type(&parameter.ty);
    match &parameter.role {
        Role::Stored(Payload { owned: Owned::Moved, .. }) => quote!(#name),
        Role::Stored(_) | Role::Injected(_) => quote_spanned!(at=> &#name),
        // For another type, the library names the mistake; the compiler would only report a
        // mismatch.
        Role::Workflow => quote_spanned!(at=> #library::__private::context::<#ty>(&#name)),
        Role::Transaction => quote_spanned!(at=> #library::__private::transaction::<#ty>(&mut #name)),
    }
}

fn lent_type(ty: &Type) -> &Type {
    match ty {
        Type::Reference(reference) => &reference.elem,
        other => other,
    }
}

fn finish(
    definition: &Definition,
    invocation: &Ident,
    result: &Ident,
    names: &[(Ident, &Parameter)],
) -> TokenStream {
    let at = place(&definition.output);
    let tx = names.iter().find(|(_, parameter)| matches!(parameter.role, Role::Transaction));
    match tx {
        Some((tx, _)) => quote_spanned!(at=> #invocation.finish_tx(#result, #tx)),
        None => quote_spanned!(at=> #invocation.finish(#result)),
    }
}

/// The owned type of a parameter's value.
pub(super) fn owned_type(parameter: &Parameter, payload: &Payload) -> TokenStream {
    match &payload.owned {
        Owned::Moved => parameter.ty.to_token_stream(),
        Owned::Borrowed(ty) => quote!(#ty),
        Owned::Unsized(ty) => quote!(<#ty as ::std::borrow::ToOwned>::Owned),
    }
}
