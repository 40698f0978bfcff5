//! The paths in a body, found in its tokens alone: it may be half typed, and what macros make of theirs is not known.

use proc_macro2::{Delimiter, Ident, TokenStream};
use quote::{ToTokens, TokenStreamExt};
use syn::buffer::{Cursor, TokenBuffer};
use syn::ext::IdentExt;

/// The methods of `Wf` whose arguments behind the first are the body of a step, which is recorded and may do anything.
const STEPS: [&str; 2] = ["step", "tx"];

/// A path in an expression, as `SystemTime::now` or `tokio::spawn`, or a single name.
#[derive(Debug)]
pub(super) struct Mention {
    segments: Vec<Ident>,
    pub form: Form,
    /// The local variable whose closure it is in.
    closure: Option<String>,
}

/// What has been met so far.
#[derive(Default)]
struct Found {
    mentions: Vec<Mention>,
    /// Local variables that were given to a step as its body.
    bodies: Vec<String>,
}

/// What follows a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `(…)`
    Call,
    /// `!(…)`
    Macro,
    /// Neither: it may be given to something that calls it, as in `map(rand::random)`.
    Value,
}

impl Mention {
    /// Its names, the last one first.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.segments.iter().rev().map(|segment| segment.unraw().to_string())
    }
}

impl ToTokens for Mention {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        tokens.append_all(&self.segments);
    }
}

/// Every path of `body` outside the bodies of inline steps, attributes, imports and other definitions.
pub(super) fn mentions(body: &TokenStream) -> Vec<Mention> {
    let buffer = TokenBuffer::new2(body.clone());
    let mut found = Found::default();
    walk(buffer.begin(), |_| false, &mut found);
    let Found { mentions, bodies } = found;
    let is_called = |name: &String| {
        mentions.iter().any(|mention| mention.form == Form::Call && mention.names().eq([name.as_str()]))
    };
    let only_in_steps: Vec<String> = bodies.into_iter().filter(|name| !is_called(name)).collect();
    let is_of_a_step =
        |mention: &Mention| mention.closure.as_ref().is_some_and(|name| only_in_steps.contains(name));
    mentions.into_iter().filter(|mention| !is_of_a_step(mention)).collect()
}

/// Collects from `here` to the end, or to the first sign at which to stop.
fn walk<'a>(mut here: Cursor<'a>, is_end: fn(char) -> bool, found: &mut Found) -> Cursor<'a> {
    while !here.eof() {
        here = if let Some((word, after)) = here.ident() {
            at_word(word, after, found)
        } else if let Some((sign, after)) = here.punct() {
            match sign.as_char() {
                sign if is_end(sign) => return here,
                '.' => after_dot(after, found),
                '#' => after_attribute(after),
                _ => after,
            }
        } else if let Some((inside, _, _, after)) = here.any_group() {
            walk(inside, |_| false, found);
            after
        } else {
            beyond(here)
        };
    }
    here
}

fn at_word<'a>(word: Ident, after: Cursor<'a>, found: &mut Found) -> Cursor<'a> {
    if word == "use" && sign(after, '<').is_none() {
        return behind(after, |token| sign(token, ';'));
    }
    if word == "fn" {
        return after.ident().map_or(after, |(_, after)| after);
    }
    if word == "let" {
        return after_let(after, found);
    }
    let (segments, after) = path(word, after);
    let mut names = segments.iter().rev();
    let is_step = names.next().is_some_and(is_step) && names.next().is_some_and(|name| name == "Wf");
    let form = if group(after, Delimiter::Parenthesis).is_some() {
        Form::Call
    } else if sign(after, '!').is_some_and(|after| after.any_group().is_some()) {
        Form::Macro
    } else {
        Form::Value
    };
    found.mentions.push(Mention { segments, form, closure: None });
    if is_step { after_step(after, 2, found) } else { after }
}

/// A closure that is kept in a local variable is the body of a step if it is given to one.
fn after_let<'a>(after: Cursor<'a>, found: &mut Found) -> Cursor<'a> {
    let named = after.ident().and_then(|(name, value)| Some((name, sign(value, '=')?)));
    let Some((name, value)) = named.filter(|(_, value)| is_closure(*value)) else { return after };
    let start = found.mentions.len();
    let after = walk(value, |sign| sign == ';', found);
    for mention in &mut found.mentions[start..] {
        mention.closure.get_or_insert_with(|| name.to_string());
    }
    after
}

fn is_closure(mut here: Cursor<'_>) -> bool {
    while let Some((_, after)) = here.ident().filter(|(word, _)| word == "async" || word == "move") {
        here = after;
    }
    sign(here, '|').is_some()
}

/// The rest of a path, through its turbofishes, and what follows it.
fn path(first: Ident, mut after: Cursor<'_>) -> (Vec<Ident>, Cursor<'_>) {
    let mut segments = vec![first];
    while let Some(next) = sign(after, ':').and_then(|next| sign(next, ':')) {
        if let Some((segment, next)) = next.ident() {
            segments.push(segment);
            after = next;
        } else if let Some(next) = generics(next) {
            after = next;
        } else {
            break;
        }
    }
    (segments, after)
}

/// Behind `<…>`.
fn generics(start: Cursor<'_>) -> Option<Cursor<'_>> {
    let mut here = sign(start, '<')?;
    let mut depth = 1_u32;
    while depth > 0 {
        if here.eof() {
            return None;
        }
        // The `>` of `->` closes nothing.
        here = match here.punct().map(|(sign, after)| (sign.as_char(), after)) {
            Some(('-', after)) => sign(after, '>').unwrap_or(after),
            Some(('<', after)) => {
                depth += 1;
                after
            }
            Some(('>', after)) => {
                depth -= 1;
                after
            }
            _ => beyond(here),
        };
    }
    Some(here)
}

/// A field or a method is not what is named alike elsewhere. Two dots are a range.
fn after_dot<'a>(after: Cursor<'a>, found: &mut Found) -> Cursor<'a> {
    if let Some(after) = sign(after, '.') {
        return after;
    }
    let Some((name, after)) = after.ident() else { return after };
    if is_step(&name) { after_step(after, 1, found) } else { after }
}

fn is_step(name: &Ident) -> bool {
    STEPS.iter().any(|step| name == step)
}

/// Behind the arguments of an inline step. The first ones, up to its name, belong to the workflow, as do all before a closure.
fn after_step<'a>(after: Cursor<'a>, n_before_body: u8, found: &mut Found) -> Cursor<'a> {
    let turbofish = sign(after, ':').and_then(|after| sign(after, ':')).and_then(generics);
    let Some((mut here, after)) = group(turbofish.unwrap_or(after), Delimiter::Parenthesis) else {
        return after;
    };
    for _ in 0..n_before_body {
        here = walk(here, |sign| sign == ',' || sign == '|', found);
        here = sign(here, ',').unwrap_or(here);
    }
    while let Some(borrowed) = sign(here, '&') {
        here = borrowed;
    }
    found.bodies.extend(here.ident().map(|(name, _)| name.to_string()));
    after
}

/// Behind an attribute, and behind the definition under one of ours: a job may do anything, and another workflow is checked by itself.
fn after_attribute(after: Cursor<'_>) -> Cursor<'_> {
    let Some((inside, after)) = group(sign(after, '!').unwrap_or(after), Delimiter::Bracket) else {
        return after;
    };
    let Some((first, rest)) = inside.ident() else { return after };
    let (segments, _) = path(first, rest);
    let is_ours = segments.last().is_some_and(|name| name == "job" || name == "workflow");
    if is_ours {
        behind(after, |token| group(token, Delimiter::Brace).map(|(_, after)| after))
    } else {
        after
    }
}

/// Behind the first token that `end` finds, or at the end.
fn behind<'a>(mut here: Cursor<'a>, end: fn(Cursor<'a>) -> Option<Cursor<'a>>) -> Cursor<'a> {
    while !here.eof() {
        if let Some(after) = end(here) {
            return after;
        }
        here = beyond(here);
    }
    here
}

fn sign(here: Cursor<'_>, expected: char) -> Option<Cursor<'_>> {
    here.punct().filter(|(sign, _)| sign.as_char() == expected).map(|(_, after)| after)
}

fn group(here: Cursor<'_>, delimiter: Delimiter) -> Option<(Cursor<'_>, Cursor<'_>)> {
    here.group(delimiter).map(|(inside, _, after)| (inside, after))
}

/// Behind one token, whatever it is.
fn beyond(here: Cursor<'_>) -> Cursor<'_> {
    here.token_tree().map_or_else(Cursor::empty, |(_, after)| after)
}
