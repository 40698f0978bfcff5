//! Checks the attribute and the function, and reports all errors at once.
//!
//! Code generation needs no further decisions for a [`Definition`].

mod accepts;
mod allow;
mod context;
mod duration;
mod marks;
mod name;
mod options;
mod parameters;
mod signature;
mod types;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::{ToTokens, format_ident};
use syn::ext::IdentExt;
use syn::{Ident, Path, Signature, Type, Visibility, parse_quote};

pub(crate) use self::context::{could_be_context, is_context};
pub(crate) use self::options::{Limit, Options};
pub(crate) use self::parameters::{Owned, Parameter, Payload, Presence, Role, without_our_attributes};
pub(crate) use self::signature::is_ours;
pub(crate) use self::types::is_nameable;
use crate::attributes::Attributes;
use crate::lint::{self, Local};
use crate::parse::{Entry, Function};
use crate::problems::Problems;

/// The attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Job,
    Workflow,
}

impl Kind {
    /// `job` or `workflow`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Workflow => "workflow",
        }
    }
}

/// A definition without errors.
pub(crate) struct Definition {
    pub kind: Kind,
    /// Where generated code finds `runledger`.
    pub library: Path,
    pub attributes: Attributes,
    pub visibility: Visibility,
    /// The signature of the function with the user's body, without our own parameter attributes.
    pub signature: Signature,
    /// The hidden type of the definition.
    pub marker: Ident,
    /// The stored name.
    pub name: String,
    pub options: Options,
    pub parameters: Vec<Parameter>,
    pub output: Type,
    pub body: TokenStream,
}

/// Checks the attribute and the function, and reports all errors in both.
pub(crate) fn check(kind: Kind, entries: &[Entry], function: &Function) -> syn::Result<Definition> {
    let mut problems = Problems::default();
    let options = options::check(kind, entries, &mut problems);
    let name = name::of(kind, &options, &function.signature.ident, &mut problems);
    signature::check_attributes(kind, &function.attributes, &mut problems);
    signature::check(kind, &function.signature, &mut problems);
    let parameters = parameters::check(kind, &function.signature, &mut problems);
    let output = signature::output(kind, &function.signature, &mut problems);
    check_body(kind, function, &parameters, &options, &mut problems);

    let definition = output.map(|output| Definition {
        kind,
        library: library(entries),
        attributes: Attributes::split(&function.attributes),
        visibility: function.visibility.clone(),
        signature: parameters::without_our_attributes(&function.signature),
        marker: marker(&function.signature.ident),
        name,
        options,
        parameters,
        output,
        body: function.body.clone(),
    });
    problems.into_result(definition)
}

/// The path from `crate = …`, otherwise `::runledger`.
pub(crate) fn library(entries: &[Entry]) -> Path {
    options::library(entries).unwrap_or_else(|| parse_quote!(::runledger))
}

/// The name of the hidden type: lower case and with underscores, unlike any type of the user.
pub(crate) fn marker(function: &Ident) -> Ident {
    format_ident!("__{}", function.unraw(), span = function.span())
}

/// Whether a brace group follows the signature.
pub(crate) fn has_body(function: &Function) -> bool {
    let first = function.body.clone().into_iter().next();
    matches!(first, Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace)
}

fn check_body(
    kind: Kind,
    function: &Function,
    parameters: &[Parameter],
    options: &Options,
    problems: &mut Problems,
) {
    if has_body(function) {
        // Only a workflow is replayed.
        if kind == Kind::Workflow {
            let locals: Vec<(String, Local)> = parameters.iter().map(local).collect();
            lint::check(&function.body, &locals, &options.allow, problems);
        }
        return;
    }
    let end = if function.body.is_empty() {
        function.signature.fn_token.to_token_stream()
    } else {
        function.body.clone()
    };
    problems.at(end, format!("a `#[{}]` needs a body; write `{{ … }}`", kind.word()));
}

/// Classifies a parameter for the lint of the body.
fn local(parameter: &Parameter) -> (String, Local) {
    let local = match parameter.role {
        Role::Workflow => Local::Workflow,
        Role::Stored(_) | Role::Injected(_) | Role::Transaction => lint::local_of(&parameter.ty),
    };
    (parameter.ident.to_string(), local)
}
