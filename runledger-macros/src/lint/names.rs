//! Determines the meaning of the names in a body by its tokens alone. The lint refuses nothing
//! because of an unknown name.

use proc_macro2::{Delimiter, Ident};
use syn::buffer::Cursor;
use syn::ext::IdentExt;

use super::tokens::{arguments_of, beyond, double_colon, group, is_function, path, path_of_type, sign};

/// The meaning of a local name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// The workflow's context, or a branch of it.
    Workflow,
    /// A `SystemTime`, whose `elapsed` reads the clock.
    Instant,
    /// A `HashMap` or a `HashSet` with the standard library's hasher, which has a new seed in every
    /// process.
    Hashed,
    /// Another value, without access to the workflow.
    Other,
    /// Any value.
    Unknown,
}

/// The names that are known at one place of the body.
#[derive(Default)]
pub(super) struct Names {
    locals: Vec<(String, Local)>,
    /// The imports in the body, with their whole paths.
    imports: Vec<(String, Vec<String>)>,
}

/// The number of locals and imports at the start of a block.
#[derive(Clone, Copy)]
pub(super) struct Outer(usize, usize);

impl Names {
    pub(super) fn enter(&self) -> Outer {
        Outer(self.locals.len(), self.imports.len())
    }

    /// Removes the names learned since `outer`.
    pub(super) fn leave(&mut self, outer: Outer) {
        self.locals.truncate(outer.0);
        self.imports.truncate(outer.1);
    }

    /// Removes the local variables, which a function inside the body does not see.
    /// [`recall_locals`](Self::recall_locals) restores them.
    pub(super) fn forget_locals(&mut self) -> Vec<(String, Local)> {
        std::mem::take(&mut self.locals)
    }

    pub(super) fn recall_locals(&mut self, locals: Vec<(String, Local)>) {
        self.locals = locals;
    }

    pub(super) fn learn(&mut self, name: String, local: Local) {
        self.locals.push((name, local));
    }

    /// `None` for a name that the body does not define.
    pub(super) fn local(&self, name: &str) -> Option<Local> {
        self.locals.iter().rev().find(|(known, _)| known == name).map(|(_, local)| *local)
    }

    /// Adds the names of a pattern as unknown. They shadow earlier names.
    pub(super) fn hide(&mut self, names: impl IntoIterator<Item = Ident>) {
        let names = names.into_iter().map(|name| name.to_string());
        self.locals.extend(names.filter(|name| is_function(name)).map(|name| (name, Local::Unknown)));
    }

    /// The whole path, if the body imports its first name.
    pub(super) fn resolve(&self, segments: &[Ident]) -> Vec<String> {
        let mut names: Vec<String> = segments.iter().map(|segment| segment.unraw().to_string()).collect();
        if let Some(first) = names.first().filter(|first| self.local(first).is_none())
            && let Some((_, whole)) = self.imports.iter().rev().find(|(known, _)| known == first)
        {
            names.splice(..1, whole.iter().cloned());
        }
        names
    }

    /// Learns the imports of the part of a `use` from here to its `;`, its `,` or its end.
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

/// The cursor after the next comma, or the end.
fn behind_part(mut here: Cursor<'_>) -> Cursor<'_> {
    while !here.eof() && sign(here, ';').is_none() {
        match sign(here, ',') {
            Some(after) => return after,
            None => here = beyond(here),
        }
    }
    here
}

/// Classifies a value by its type, if the type shows it.
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
    // A third argument of a map, or a second one of a set, is a custom hasher.
    match segments.last()?.to_string().as_str() {
        "Wf" | "Branch" => Some(Local::Workflow),
        "SystemTime" => Some(Local::Instant),
        "HashMap" if arguments_of(after) <= 2 => Some(Local::Hashed),
        "HashSet" if arguments_of(after) <= 1 => Some(Local::Hashed),
        _ => None,
    }
}

/// Classifies the value from here to the `;`.
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

/// Classifies a value by the tokens after the workflow's context.
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

/// Returns `Other` for a value that is made only of names without access to the workflow.
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
            // The names of fields and of macros are not values.
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
