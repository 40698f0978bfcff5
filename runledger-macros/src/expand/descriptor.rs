//! The constant that describes a definition to the library.

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::Path;

use super::run::owned_type;
use super::{key, place, stored};
use crate::model::{Definition, Limit, Options, Presence, Role};

/// The implementation of `Job` for the hidden type.
pub(super) fn implementation(definition: &Definition) -> TokenStream {
    let Definition { library, marker, output, .. } = definition;
    let descriptor = descriptor(definition);
    let types: Vec<TokenStream> =
        stored(definition).map(|(parameter, payload)| owned_type(parameter, payload)).collect();
    // One span for all items: the compiler finds a wrong output several times, but reports it once
    // per span.
    quote_spanned! {place(output)=>
        #[automatically_derived]
        impl #library::Job for #marker {
            type Output = <#output as #library::__private::JobResult>::Ok;
            const DEFINITION: &'static #library::__private::Definition = &#descriptor;
        }
        #[automatically_derived]
        impl #library::Arguments for #marker {
            type Types = (#(#types,)*);
        }
    }
}

fn descriptor(definition: &Definition) -> TokenStream {
    let Definition { library, kind, name, marker, .. } = definition;
    let constructor = Ident::new(kind.word(), Span::call_site());
    let location = location(library, definition.signature.ident.span());
    let options = options(&definition.options);
    let params = params(definition);
    let injects = injects(definition);
    let parameters = &definition.parameters;
    let is_transactional = parameters.iter().any(|parameter| matches!(parameter.role, Role::Transaction));
    let transactional = is_transactional.then(|| quote!(.transactional()));
    quote! {
        #library::__private::Definition::#constructor(#name, #marker::__runledger_run, #location)
            #options
            #params
            #injects
            #transactional
    }
}

/// The location of the function. The span selects the line of the name, not of the attribute.
pub(crate) fn location(library: &Path, at: Span) -> TokenStream {
    let place = quote_spanned! {at=>
        ::core::file!(), ::core::line!(), ::core::column!(), ::core::module_path!()
    };
    quote!(#library::__private::Location::new(#place))
}

fn options(options: &Options) -> TokenStream {
    let aliases = Some(&options.aliases).filter(|aliases| !aliases.is_empty());
    let aliases = aliases.map(|aliases| quote!(.aliases(&[#(#aliases),*])));
    let queue = options.queue.as_ref().map(|queue| quote!(.queue(#queue)));
    let priority = options.priority.map(|priority| {
        let priority = Literal::i16_unsuffixed(priority);
        quote!(.priority(#priority))
    });
    let max_attempts = options.max_attempts.map(|tries| {
        let tries = Literal::u32_unsuffixed(tries);
        quote!(.max_attempts(#tries))
    });
    let millis = |limit: &Limit| Literal::u64_unsuffixed(limit.ms);
    let timeout = options.timeout.as_ref().map(millis).map(|ms| quote!(.timeout_ms(#ms)));
    let deadline = options.deadline.as_ref().map(millis).map(|ms| quote!(.deadline_ms(#ms)));
    let heartbeat = options.heartbeat.as_ref().map(millis).map(|ms| quote!(.heartbeat_ms(#ms)));
    let backoff = options.backoff.as_ref().map(|backoff| {
        let first = Literal::u64_unsuffixed(backoff.first_ms);
        let cap = Literal::u64_unsuffixed(backoff.cap_ms);
        quote!(.backoff_ms(#first, #cap))
    });
    let version = options.version.map(|version| {
        let version = Literal::u32_unsuffixed(version);
        quote!(.version(#version))
    });
    let accepts = Some(&options.accepts).filter(|accepts| !accepts.is_empty());
    let accepts = accepts.map(|accepts| {
        let accepts = accepts.iter().copied().map(Literal::u32_unsuffixed);
        quote!(.accepts(&[#(#accepts),*]))
    });
    quote!(#aliases #queue #priority #max_attempts #timeout #backoff #deadline #heartbeat #version #accepts)
}

fn params(definition: &Definition) -> Option<TokenStream> {
    let library = &definition.library;
    let params: Vec<TokenStream> = stored(definition)
        .map(|(parameter, payload)| {
            let key = key(&parameter.ident);
            let constructor = match payload.presence {
                Presence::Required => quote!(required),
                Presence::Optional => quote!(optional),
                Presence::Default | Presence::DefaultTo(_) => quote!(defaulted),
            };
            quote!(#library::__private::Param::#constructor(#key))
        })
        .collect();
    (!params.is_empty()).then(|| quote!(.params(const { &[#(#params),*] })))
}

fn injects(definition: &Definition) -> Option<TokenStream> {
    let library = &definition.library;
    let injects: Vec<TokenStream> = definition
        .parameters
        .iter()
        .filter_map(|parameter| match &parameter.role {
            Role::Injected(ty) => Some(quote_spanned! {place(ty)=> {
                #library::__private::assert_injectable::<#ty>();
                #library::__private::Inject::of::<#ty>()
            }}),
            Role::Workflow | Role::Stored(_) | Role::Transaction => None,
        })
        .collect();
    (!injects.is_empty()).then(|| quote!(.injects(const { &[#(#injects),*] })))
}
