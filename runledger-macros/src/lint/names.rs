//! What the names in a body stand for, as far as its tokens say it. Who does not know says so: then nothing is refused for it.

use proc_macro2::{Delimiter, Ident};
use syn::buffer::Cursor;
use syn::ext::IdentExt;

use super::tokens::{arguments_of, beyond, double_colon, group, is_function, path, path_of_type, sign};

/// What a local name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// The workflow's context, or a branch of it.
    Workflow,
    /// A `SystemTime`, whose `elapsed` reads the clock.
    Instant,
    /// A `HashMap` or a `HashSet` with the hasher of the standard library, which is seeded anew in every process.
    Hashed,
    /// Something else, and no view of the workflow.
    Other,
    /// Anything.
    Unknown,
}

/// What is known at one place of the body.
#[derive(Default)]
pub(super) struct Names {
    locals: Vec<(String, Local)>,
    /// What `use` in the body has brought, with the whole path of each.
    imports: Vec<(String, Vec<String>)>,
}

/// How much was known where a block began.
#[derive(Clone, Copy)]
pub(super) struct Outer(usize, usize);

impl Names {
    pub(super) fn enter(&self) -> Outer {
        Outer(self.locals.len(), self.imports.len())
    }

    /// Forgets what has been learnt since.
    pub(super) fn leave(&mut self, outer: Outer) {
        self.locals.truncate(outer.0);
        self.imports.truncate(outer.1);
    }

    /// Forgets the local variables, which a function inside the body does not see, until they are recalled.
    pub(super) fn forget_locals(&mut self) -> Vec<(String, Local)> {
        std::mem::take(&mut self.locals)
    }

    pub(super) fn recall_locals(&mut self, locals: Vec<(String, Local)>) {
        self.locals = locals;
    }

    pub(super) fn learn(&mut self, name: String, local: Local) {
        self.locals.push((name, local));
    }

    /// None for a name that nothing in the body has made.
    pub(super) fn local(&self, name: &str) -> Option<Local> {
        self.locals.iter().rev().find(|(known, _)| known == name).map(|(_, local)| *local)
    }

    /// The names of a pattern hide those from before: what they stand for is not known.
    pub(super) fn hide(&mut self, names: impl IntoIterator<Item = Ident>) {
        let names = names.into_iter().map(|name| name.to_string());
        self.locals.extend(names.filter(|name| is_function(name)).map(|name| (name, Local::Unknown)));
    }

    /// The whole path, where the first name of it was imported in the body.
    pub(super) fn resolve(&self, segments: &[Ident]) -> Vec<String> {
        let mut names: Vec<String> = segments.iter().map(|segment| segment.unraw().to_string()).collect();
        if let Some(first) = names.first().filter(|first| self.local(first).is_none())
            && let Some((_, whole)) = self.imports.iter().rev().find(|(known, _)| known == first)
        {
            names.splice(..1, whole.iter().cloned());
        }
        names
    }

    /// Learns what the part of a `use` from here to its `;`, its `,` or its end brings.
    pub(super) fn import(&mut self, mut here: Cursor<'_>, before: &[String]) {
        let mut whole = before.to_vec();
        while !here.eof() && sign(here, ';').is_none() {
            if let Some((word, after)) = here.ident() {
                let last = whole.last().cloned();
                match (word.unraw().to_string().as_str(), after.ident()) {
                    ("as", Some((alias, after))) => {
                        if alias != "_" {
                            self.imports.push((alias.unraw().to_string(), whole.clone()));
                        }
                        here = behind_part(after);
                        whole = before.to_vec();
                        continue;
                    }
                    // `a::b::{self}` is `a::b`.
                    ("self", _) if !whole.is_empty() => {
                        self.imports.extend(last.map(|last| (last, whole.clone())));
                    }
                    (name, _) => {
                        whole.push(name.to_owned());
                        let is_last =
                            sign(after, ':').is_none() && after.ident().is_none_or(|(word, _)| word != "as");
                        if is_last {
                            self.imports.push((name.to_owned(), whole.clone()));
                        }
                    }
                }
                here = after;
            } else if let Some((parts, after)) = group(here, Delimiter::Brace) {
                self.import(parts, &whole);
                here = after;
            } else {
                if sign(here, ',').is_some() {
                    whole = before.to_vec();
                }
                here = beyond(here);
            }
        }
    }
}

/// Behind the next comma, or at the end.
fn behind_part(mut here: Cursor<'_>) -> Cursor<'_> {
    while !here.eof() && sign(here, ';').is_none() {
        match sign(here, ',') {
            Some(after) => return after,
            None => here = beyond(here),
        }
    }
    here
}

/// What a value of this type is, where the type says it.
pub(super) fn of_type(mut here: Cursor<'_>) -> Option<Local> {
    loop {
        here = if let Some(after) = sign(here, '&') {
            after
        } else if let Some((_, after)) = here.lifetime() {
            after
        } else if let Some((_, after)) = here.ident().filter(|(word, _)| word == "mut") {
            after
        } else {
            break;
        };
    }
    let (first, after) = double_colon(here).unwrap_or(here).ident()?;
    let (segments, after) = path_of_type(first, after);
    // A third argument of a map, or a second one of a set, is a hasher that somebody has chosen.
    match segments.last()?.to_string().as_str() {
        "Wf" | "Branch" => Some(Local::Workflow),
        "SystemTime" => Some(Local::Instant),
        "HashMap" if arguments_of(after) <= 2 => Some(Local::Hashed),
        "HashSet" if arguments_of(after) <= 1 => Some(Local::Hashed),
        _ => None,
    }
}

/// What the value from here to the `;` is, where it says so.
pub(super) fn of_value(value: Cursor<'_>, names: &Names) -> Local {
    let mut here = value;
    while let Some(after) = sign(here, '&') {
        here = after;
    }
    let Some((first, after)) = here.ident() else { return of_other(value, names) };
    let (segments, after) = path(first, after);
    let text: Vec<String> = names.resolve(&segments);
    let text: Vec<&str> = text.iter().map(String::as_str).collect();
    if let [name] = text[..]
        && names.local(name) == Some(Local::Workflow)
    {
        return of_workflow(after);
    }
    let is_made = group(after, Delimiter::Parenthesis).is_some_and(|(_, after)| is_end(after));
    match text[..] {
        [.., "HashMap" | "HashSet", "new" | "with_capacity" | "from"] if is_made => Local::Hashed,
        _ => of_other(value, names),
    }
}

/// What follows the workflow's context in a value.
fn of_workflow(after: Cursor<'_>) -> Local {
    if is_end(after) {
        return Local::Workflow;
    }
    let called = sign(after, '.').and_then(Cursor::ident);
    let Some((method, after)) = called else { return Local::Unknown };
    match group(after, Delimiter::Parenthesis) {
        Some((_, after)) if is_end(after) && method == "branch" => Local::Workflow,
        Some((_, after)) if is_end(after) && method == "now" => Local::Instant,
        _ => Local::Unknown,
    }
}

fn is_end(here: Cursor<'_>) -> bool {
    here.eof() || sign(here, ';').is_some()
}

/// Whether a value is made of what has nothing of the workflow.
fn of_other(value: Cursor<'_>, names: &Names) -> Local {
    if !is_end(value) && is_other(value, names) { Local::Other } else { Local::Unknown }
}

fn is_other(mut here: Cursor<'_>, names: &Names) -> bool {
    while !is_end(here) {
        here = if let Some(after) = sign(here, '.') {
            // A field, or a method.
            after.ident().map_or(after, |(_, after)| after)
        } else if let Some((word, after)) = here.ident() {
            let (segments, after) = path(word, after);
            let [name] = &segments[..] else {
                here = after;
                continue;
            };
            let name = name.to_string();
            let is_known = matches!(names.local(&name), Some(Local::Other | Local::Instant | Local::Hashed));
            // The names of fields and of macros are no values.
            let is_named = sign(after, ':').is_some() || sign(after, '!').is_some();
            let is_free = !is_function(&name) || name == "await" || is_named;
            if !is_known && !is_free {
                return false;
            }
            after
        } else if let Some((inside, _, _, after)) = here.any_group() {
            if !is_other(inside, names) {
                return false;
            }
            after
        } else {
            beyond(here)
        };
    }
    true
}
