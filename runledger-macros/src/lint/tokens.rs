//! Moves through tokens that may not be valid Rust yet.

use proc_macro2::{Delimiter, Ident};
use syn::buffer::Cursor;

/// The rest of a path, through its turbofishes, and the cursor after it.
pub(super) fn path(first: Ident, mut after: Cursor<'_>) -> (Vec<Ident>, Cursor<'_>) {
    let mut segments = vec![first];
    while let Some(next) = double_colon(after) {
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

/// The rest of a path in a type, whose generic arguments need no turbofish. Stops before the
/// arguments of its last name.
pub(super) fn path_of_type(first: Ident, mut after: Cursor<'_>) -> (Vec<Ident>, Cursor<'_>) {
    let mut segments = vec![first];
    loop {
        let next = generics(after).unwrap_or(after);
        let Some((segment, next)) = double_colon(next).and_then(Cursor::ident) else {
            return (segments, after);
        };
        segments.push(segment);
        after = next;
    }
}

/// A path that begins with a type in angle brackets, such as `<SystemTime>::now` or `<OsRng as
/// Default>::default`. Returns the names of the type and the names after it.
pub(super) fn qualified(start: Cursor<'_>) -> Option<(Vec<Ident>, Cursor<'_>)> {
    let (next, after) = double_colon(generics(start)?)?.ident()?;
    let (first, of_type) = double_colon(sign(start, '<')?).or_else(|| sign(start, '<'))?.ident()?;
    let (mut segments, of_type) = path_of_type(first, of_type);
    let of_type = generics(of_type).unwrap_or(of_type);
    // With any other token, it is a comparison.
    if sign(of_type, '>').is_none() && of_type.ident().is_none_or(|(word, _)| word != "as") {
        return None;
    }
    let (more, after) = path(next, after);
    segments.extend(more);
    Some((segments, after))
}

/// Counts the generic arguments that begin here.
pub(super) fn arguments_of(start: Cursor<'_>) -> usize {
    let (Some(mut here), Some(end)) = (sign(start, '<'), generics(start)) else { return 0 };
    let (mut n_arguments, mut begins) = (0, true);
    while !here.eof() && sign(here, '>') != Some(end) {
        here = if let Some(after) = sign(here, ',') {
            begins = true;
            after
        } else {
            n_arguments += usize::from(begins);
            begins = false;
            generics(here).unwrap_or_else(|| beyond(here))
        };
    }
    n_arguments
}

/// The cursor after `<…>`.
pub(super) fn generics(start: Cursor<'_>) -> Option<Cursor<'_>> {
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

/// The cursor after a type, at the `=` or `;` that ends it.
pub(super) fn behind_type(mut here: Cursor<'_>) -> Cursor<'_> {
    while !here.eof() && sign(here, '=').is_none() && sign(here, ';').is_none() {
        here = match sign(here, '-').and_then(|after| sign(after, '>')) {
            Some(after) => after,
            None => generics(here).unwrap_or_else(|| beyond(here)),
        };
    }
    here
}

/// Whether a closure begins here.
pub(super) fn is_closure(mut here: Cursor<'_>) -> bool {
    while let Some((_, after)) = here.ident().filter(|(word, _)| word == "async" || word == "move") {
        here = after;
    }
    sign(here, '|').is_some()
}

/// The cursor after the first token that `end` matches, or the end.
pub(super) fn behind<'a>(mut here: Cursor<'a>, end: fn(Cursor<'a>) -> Option<Cursor<'a>>) -> Cursor<'a> {
    while !here.eof() {
        if let Some(after) = end(here) {
            return after;
        }
        here = beyond(here);
    }
    here
}

/// Collects every word from here to the end, including groups.
pub(super) fn words(mut here: Cursor<'_>, found: &mut Vec<Ident>) {
    while !here.eof() {
        here = one_word(here, found);
    }
}

/// Same as [`words`], without the words in braces.
pub(super) fn words_outside_blocks(mut here: Cursor<'_>, found: &mut Vec<Ident>) {
    while !here.eof() {
        here = if let Some((word, after)) = here.ident() {
            found.push(word);
            after
        } else if let Some((inside, delimiter, _, after)) = here.any_group() {
            if delimiter != Delimiter::Brace {
                words_outside_blocks(inside, found);
            }
            after
        } else {
            beyond(here)
        };
    }
}

/// Returns every word between two cursors of one level.
pub(super) fn words_until(mut here: Cursor<'_>, end: Cursor<'_>) -> Vec<Ident> {
    let mut found = Vec::new();
    while !here.eof() && here != end {
        here = one_word(here, &mut found);
    }
    found
}

fn one_word<'a>(here: Cursor<'a>, found: &mut Vec<Ident>) -> Cursor<'a> {
    if let Some((word, after)) = here.ident() {
        found.push(word);
        after
    } else if let Some((inside, _, _, after)) = here.any_group() {
        words(inside, found);
        after
    } else {
        beyond(here)
    }
}

/// Whether empty parentheses follow.
pub(super) fn is_called_with_nothing(here: Cursor<'_>) -> bool {
    group(here, Delimiter::Parenthesis).is_some_and(|(inside, _)| inside.eof())
}

/// Whether a name is not that of a type or variant, which start with a capital letter.
pub(super) fn is_function(name: &str) -> bool {
    !name.starts_with(char::is_uppercase)
}

pub(super) fn double_colon(here: Cursor<'_>) -> Option<Cursor<'_>> {
    sign(here, ':').and_then(|here| sign(here, ':'))
}

pub(super) fn sign(here: Cursor<'_>, expected: char) -> Option<Cursor<'_>> {
    here.punct().filter(|(sign, _)| sign.as_char() == expected).map(|(_, after)| after)
}

pub(super) fn group(here: Cursor<'_>, delimiter: Delimiter) -> Option<(Cursor<'_>, Cursor<'_>)> {
    here.group(delimiter).map(|(inside, _, after)| (inside, after))
}

/// The cursor after one token of any kind.
pub(super) fn beyond(here: Cursor<'_>) -> Cursor<'_> {
    here.token_tree().map_or_else(Cursor::empty, |(_, after)| after)
}
