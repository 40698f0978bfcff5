//! Finds the paths in a body by its tokens alone. The body may be incomplete, and macros may do
//! anything with their tokens.

use proc_macro2::{Delimiter, Ident, TokenStream};
use quote::{ToTokens, TokenStreamExt};
use syn::buffer::{Cursor, TokenBuffer};

use super::names::{Local, Names, of_type, of_value};
use super::owners::{Before, Kind, Owners, Use};
use super::tokens::{
    behind, behind_type, beyond, double_colon, generics, group, is_called_with_nothing, is_closure,
    is_function, path, qualified, sign, words, words_outside_blocks, words_until,
};

/// The methods of `Wf` whose arguments after the first are the body of a step, which is recorded
/// and may do anything.
const STEPS: [&str; 2] = ["step", "tx"];

/// Wrappers of a closure in a local variable.
const POINTERS: [&str; 3] = ["Box", "Arc", "Rc"];

/// The methods that return the items of a collection in its own order.
const ITERATORS: [&str; 9] =
    ["iter", "iter_mut", "into_iter", "keys", "into_keys", "values", "values_mut", "into_values", "drain"];

/// The words that end an iteration or the loop early.
const LEAVES: [&str; 3] = ["break", "continue", "return"];

/// A path in an expression, such as `SystemTime::now` or `tokio::spawn`, or a single name.
#[derive(Debug)]
pub(super) struct Mention {
    segments: Vec<Ident>,
    /// The whole path, if the body imports its first name.
    meant: Vec<String>,
    pub form: Form,
    /// The enclosing function or closure.
    owner: Option<usize>,
}

/// The results so far.
#[derive(Default)]
struct Found {
    mentions: Vec<Mention>,
    owners: Owners,
    names: Names,
}

/// The syntax after a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `(…)`
    Call,
    /// `()`
    EmptyCall,
    /// `!(…)`
    Macro,
    /// None of these. The path may be an argument for a function that calls it, as in
    /// `map(rand::random)`.
    Value,
    /// The method `elapsed` of a point in time.
    Elapsed,
    /// A collection whose order determines steps.
    HashOrder,
}

impl Mention {
    /// Its names, last one first.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.meant.iter().rev().map(String::as_str)
    }
}

impl ToTokens for Mention {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        tokens.append_all(&self.segments);
    }
}

impl Found {
    fn mention(&mut self, segments: Vec<Ident>, form: Form) {
        let meant = self.names.resolve(&segments);
        if let (Form::Call | Form::EmptyCall | Form::Value, [before @ .., name]) = (form, &meant[..]) {
            let before = match before.last() {
                None => Before::Nothing,
                Some(module) if is_function(module) => Before::Module,
                Some(_) => Before::Type,
            };
            self.owners.note(Use { name: name.clone(), is_call: form != Form::Value, before });
        }
        let owner = self.owners.present();
        self.mentions.push(Mention { segments, meant, form, owner });
    }

    /// Walks code that executes only if this function or closure is called.
    fn owned<'a>(
        &mut self,
        name: &Ident,
        kind: Kind,
        work: impl FnOnce(&mut Self) -> Cursor<'a>,
    ) -> Cursor<'a> {
        let outer = self.owners.enter(name.to_string(), kind);
        let after = work(self);
        self.owners.leave(outer);
        after
    }

    fn inside(&mut self, group: Cursor<'_>) {
        let outer = self.names.enter();
        walk(group, |_| false, self);
        self.names.leave(outer);
    }
}

/// Returns every path of `body`, except in bodies of inline steps, in functions that only these
/// call, in attributes, in imports and in other definitions.
pub(super) fn mentions(body: &TokenStream, parameters: &[(String, Local)]) -> Vec<Mention> {
    let buffer = TokenBuffer::new2(body.clone());
    let mut found = Found::default();
    for (name, local) in parameters {
        found.names.learn(name.clone(), *local);
    }
    walk(buffer.begin(), |_| false, &mut found);
    let Found { mentions, owners, .. } = found;
    let only_in_steps = owners.only_in_steps();
    let is_of_a_step = |mention: &Mention| mention.owner.is_some_and(|owner| only_in_steps[owner]);
    mentions.into_iter().filter(|mention| !is_of_a_step(mention)).collect()
}

/// Collects from `here` to the end, or to the first sign for which `is_end` is true.
fn walk<'a>(mut here: Cursor<'a>, is_end: fn(char) -> bool, found: &mut Found) -> Cursor<'a> {
    while !here.eof() {
        here = if let Some((word, after)) = here.ident() {
            at_word(word, after, found)
        } else if let Some((sign, after)) = here.punct() {
            match sign.as_char() {
                sign if is_end(sign) => return here,
                '.' => after_dot(after, found),
                '#' => after_attribute(after),
                '|' => after_bar(after, found),
                '<' => match qualified(here) {
                    Some((segments, after)) => {
                        found.mention(segments, form_of(after));
                        after
                    }
                    None => after,
                },
                _ => after,
            }
        } else if let Some((inside, _, _, after)) = here.any_group() {
            found.inside(inside);
            after
        } else {
            beyond(here)
        };
    }
    here
}

fn at_word<'a>(word: Ident, after: Cursor<'a>, found: &mut Found) -> Cursor<'a> {
    match word.to_string().as_str() {
        "use" if sign(after, '<').is_none() => {
            found.names.import(after, &[]);
            behind(after, |token| sign(token, ';'))
        }
        "fn" => after_fn(after, found),
        "let" => after_let(after, found),
        "for" => after_for(after, found),
        // Types do not execute.
        "struct" | "enum" | "type" => behind(after, |token| sign(token, ';').or_else(|| behind_block(token))),
        _ => at_path(word, after, found),
    }
}

fn at_path<'a>(word: Ident, after: Cursor<'a>, found: &mut Found) -> Cursor<'a> {
    let (segments, after) = path(word, after);
    let last_two: Vec<String> = segments.iter().rev().take(2).map(ToString::to_string).collect();
    found.mention(segments, form_of(after));
    let method = sign(after, '.').and_then(Cursor::ident);
    match (&last_two[..], method) {
        ([step, of], _) if is_step(step) && of == "Wf" => after_step(after, 2, found),
        ([name, ..], Some((method, behind))) => {
            let local = if last_two.len() == 1 { found.names.local(name) } else { None };
            let is_instant = local == Some(Local::Instant) || name == "UNIX_EPOCH";
            if is_instant && method == "elapsed" && is_called_with_nothing(behind) {
                found.mention(vec![method], Form::Elapsed);
                return behind;
            }
            // Other types may have a method of this name, which executes its closure at once.
            let is_other = matches!(local, Some(Local::Other | Local::Instant | Local::Hashed));
            if is_other && is_step(&method.to_string()) { behind } else { after }
        }
        _ => after,
    }
}

fn form_of(after: Cursor<'_>) -> Form {
    if is_called_with_nothing(after) {
        Form::EmptyCall
    } else if group(after, Delimiter::Parenthesis).is_some() {
        Form::Call
    } else if sign(after, '!').is_some_and(|after| after.any_group().is_some()) {
        Form::Macro
    } else {
        Form::Value
    }
}

/// Returns the cursor after a function inside the body. Its signature does not execute, and it sees
/// no local variables.
fn after_fn<'a>(after: Cursor<'a>, found: &mut Found) -> Cursor<'a> {
    let Some((name, mut here)) = after.ident() else { return after };
    let mut kind = Kind::Function;
    while !here.eof() && sign(here, ';').is_none() {
        if let Some((parameters, _)) = group(here, Delimiter::Parenthesis) {
            let mut named = Vec::new();
            words(parameters, &mut named);
            if named.iter().any(|word| word == "self") {
                kind = Kind::Method;
            }
        }
        if let Some((inside, after)) = group(here, Delimiter::Brace) {
            return found.owned(&name, kind, |found| {
                let outer = found.names.forget_locals();
                found.inside(inside);
                found.names.recall_locals(outer);
                after
            });
        }
        here = beyond(here);
    }
    here
}

/// Returns the cursor after a `let`. A closure in a local variable is the body of a step if only
/// steps receive or call it.
fn after_let<'a>(after: Cursor<'a>, found: &mut Found) -> Cursor<'a> {
    let plain = after.ident().filter(|(word, _)| word == "mut").map_or(after, |(_, after)| after);
    let named = plain.ident().and_then(|(name, behind)| {
        if let Some(ty) = sign(behind, ':').filter(|_| double_colon(behind).is_none()) {
            return Some((name, of_type(ty), behind_type(ty)));
        }
        let ends = sign(behind, '=').is_some() || sign(behind, ';').is_some();
        ends.then_some((name, None, behind))
    });
    let Some((name, typed, behind)) = named else {
        found.names.hide(words_until(after, behind_type(after)));
        return after;
    };
    let Some(value) = sign(behind, '=') else {
        found.names.learn(name.to_string(), typed.unwrap_or(Local::Unknown));
        return behind;
    };
    let local = typed.unwrap_or_else(|| of_value(value, &found.names));
    let after = if is_closure(value) || is_closure_behind_pointer(value) {
        found.owned(&name, Kind::Closure, |found| walk(value, |sign| sign == ';', found))
    } else if let Some((inside, after)) = group(value, Delimiter::Brace) {
        let outer = found.names.enter();
        block(&name, inside, found);
        found.names.leave(outer);
        walk(after, |sign| sign == ';', found)
    } else {
        walk(value, |sign| sign == ';', found)
    };
    found.names.learn(name.to_string(), local);
    after
}

/// Walks a block whose value may be a closure:
/// `let body = { let path = path.clone(); move || read(&path) };`.
fn block(name: &Ident, mut here: Cursor<'_>, found: &mut Found) {
    while !here.eof() {
        here = if is_closure(here) {
            found.owned(name, Kind::Closure, |found| walk(here, |sign| sign == ';', found))
        } else {
            walk(here, |sign| sign == ';', found)
        };
        here = sign(here, ';').unwrap_or(here);
    }
}

/// Whether the value is `Box::new(|| …)` or similar.
fn is_closure_behind_pointer(value: Cursor<'_>) -> bool {
    let Some((first, after)) = value.ident() else { return false };
    let (segments, after) = path(first, after);
    let is_pointer =
        matches!(&segments[..], [.., of, new] if new == "new" && POINTERS.iter().any(|name| of == name));
    is_pointer && group(after, Delimiter::Parenthesis).is_some_and(|(inside, _)| is_closure(inside))
}

/// Returns the cursor after the pattern of a loop. In a loop over a hash map that awaits steps one
/// by one, the map's order determines the order of steps.
fn after_for<'a>(after: Cursor<'a>, found: &mut Found) -> Cursor<'a> {
    let mut here = after;
    let over = loop {
        // Not a loop: `for<'a>` in a bound, or the `for` of an `impl`.
        let is_no_loop =
            sign(after, '<').is_some() || sign(here, ';').is_some() || behind_block(here).is_some();
        if is_no_loop || here.eof() {
            return after;
        }
        match here.ident() {
            Some((word, over)) if word == "in" => break over,
            _ => here = beyond(here),
        }
    };
    if let Some(map) = hashed_loop(over, &found.names) {
        found.mention(vec![map], Form::HashOrder);
    }
    found.names.hide(words_until(after, here));
    over
}

/// The map whose own order a loop uses to await the workflow for each item.
fn hashed_loop(mut over: Cursor<'_>, names: &Names) -> Option<Ident> {
    while let Some(after) =
        sign(over, '&').or_else(|| over.ident().filter(|(word, _)| word == "mut").map(|(_, after)| after))
    {
        over = after;
    }
    let (map, mut after) = over.ident()?;
    if let Some((method, called)) = sign(after, '.').and_then(Cursor::ident) {
        let (_, behind) = group(called, Delimiter::Parenthesis)?;
        after = ITERATORS.iter().any(|name| method == name).then_some(behind)?;
    }
    let (body, _) = group(after, Delimiter::Brace)?;
    let (mut all, mut in_every_pass) = (Vec::new(), Vec::new());
    words(body, &mut all);
    words_outside_blocks(body, &mut in_every_pass);
    let is_of_workflow = |word: &Ident| names.local(&word.to_string()) == Some(Local::Workflow);
    // If an iteration may do nothing, possibly only one does something, and the order does not
    // matter.
    let is_decisive = names.local(&map.to_string()) == Some(Local::Hashed)
        && in_every_pass.iter().any(is_of_workflow)
        && in_every_pass.iter().any(|word| word == "await")
        && !all.iter().any(|word| LEAVES.iter().any(|leaves| word == leaves));
    is_decisive.then_some(map)
}

/// A field or a method is not the function of the same name. Two dots are a range.
fn after_dot<'a>(after: Cursor<'a>, found: &mut Found) -> Cursor<'a> {
    if let Some(after) = sign(after, '.') {
        return after;
    }
    let Some((name, after)) = after.ident() else { return after };
    if is_step(&name.to_string()) {
        return after_step(after, 1, found);
    }
    found.owners.note(Use { name: name.to_string(), is_call: true, before: Before::Value });
    // A call of `elapsed` may directly follow `now()`.
    let asked = group(after, Delimiter::Parenthesis).filter(|(inside, _)| name == "now" && inside.eof());
    let asked = asked.and_then(|(_, behind)| sign(behind, '.')).and_then(Cursor::ident);
    match asked {
        Some((method, behind)) if method == "elapsed" && is_called_with_nothing(behind) => {
            found.mention(vec![method], Form::Elapsed);
            behind
        }
        _ => after,
    }
}

fn is_step(name: &str) -> bool {
    STEPS.contains(&name)
}

/// Returns the cursor after the arguments of an inline step. The arguments up to its name, and all
/// before a closure, belong to the workflow.
fn after_step<'a>(after: Cursor<'a>, n_before_body: u8, found: &mut Found) -> Cursor<'a> {
    let turbofish = double_colon(after).and_then(generics);
    let Some((mut here, after)) = group(turbofish.unwrap_or(after), Delimiter::Parenthesis) else {
        return after;
    };
    let outer = found.names.enter();
    for _ in 0..n_before_body {
        here = walk(here, |sign| sign == ',' || sign == '|', found);
        here = sign(here, ',').unwrap_or(here);
    }
    found.names.leave(outer);
    let mut used = Vec::new();
    words(here, &mut used);
    found.owners.used_in_a_step(used);
    after
}

/// Returns the cursor after the parameters of a closure, which shadow outer names. If the bar is an
/// operator, some names merely become unknown.
fn after_bar<'a>(after: Cursor<'a>, found: &mut Found) -> Cursor<'a> {
    if let Some(after) = sign(after, '|') {
        return after;
    }
    let mut here = after;
    while !here.eof() && sign(here, ';').is_none() {
        if let Some(behind) = sign(here, '|') {
            found.names.hide(words_until(after, here));
            walk(after, |sign| sign == '|', found);
            return behind;
        }
        here = beyond(here);
    }
    after
}

/// Returns the cursor after an attribute, and after the definition under one of ours: a job may do
/// anything, and another workflow is checked separately.
fn after_attribute(after: Cursor<'_>) -> Cursor<'_> {
    let Some((inside, after)) = group(sign(after, '!').unwrap_or(after), Delimiter::Bracket) else {
        return after;
    };
    let Some((first, rest)) = inside.ident() else { return after };
    let (segments, _) = path(first, rest);
    let is_ours = segments.last().is_some_and(|name| name == "job" || name == "workflow");
    if is_ours { behind(after, behind_block) } else { after }
}

fn behind_block(here: Cursor<'_>) -> Option<Cursor<'_>> {
    group(here, Delimiter::Brace).map(|(_, after)| after)
}
