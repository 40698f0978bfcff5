//! The path of a value in a JSON text, in the usual notation: `$.order.note[3]`, `$["a key"].x`.

use std::fmt::Write;

use serde_path_to_error::{Path, Segment};

/// Appends a path to `root`.
pub(super) fn render(root: &str, path: &Path) -> String {
    let mut text = root.to_owned();
    for segment in path {
        match segment {
            Segment::Seq { index } => push_index(&mut text, *index),
            Segment::Map { key } | Segment::Enum { variant: key } => push_key(&mut text, key),
            Segment::Unknown => text.push_str(".?"),
        }
    }
    text
}

/// The path of the value at the end of an unfinished JSON text. If the text ends at a key, the path
/// of the object.
pub(super) fn of_end(text: &str) -> String {
    let mut path = "$".to_owned();
    for frame in open_frames(text) {
        match frame {
            Frame::Array { index } => push_index(&mut path, index),
            Frame::Object { key: Some(key) } => match serde_json::from_str::<String>(key) {
                Ok(key) => push_key(&mut path, &key),
                Err(_) => push_key(&mut path, key),
            },
            Frame::Object { key: None } => {}
        }
    }
    path
}

/// The path of the value that contains this byte of a JSON text.
#[must_use]
pub fn at(text: &str, byte: usize) -> String {
    of_end(&text[..text.floor_char_boundary(byte)])
}

/// An array or object that is still open. The key has its quotes, as written.
enum Frame<'t> {
    Array { index: usize },
    Object { key: Option<&'t str> },
}

fn open_frames(text: &str) -> Vec<Frame<'_>> {
    let mut frames = Vec::new();
    let mut at = 0;
    while let Some(byte) = text.as_bytes().get(at) {
        let start = at;
        at += 1;
        match byte {
            b'[' => frames.push(Frame::Array { index: 0 }),
            b'{' => frames.push(Frame::Object { key: None }),
            b']' | b'}' => drop(frames.pop()),
            b',' => match frames.last_mut() {
                Some(Frame::Array { index }) => *index += 1,
                Some(Frame::Object { key }) => *key = None,
                None => {}
            },
            b'"' => {
                let Some(end) = end_of_string(text, at) else { break };
                at = end;
                // The first string of a field is its key. The value follows, until the next comma.
                if let Some(Frame::Object { key: key @ None }) = frames.last_mut() {
                    *key = text.get(start..end);
                }
            }
            _ => {}
        }
    }
    frames
}

/// The index after the closing quote of a string whose content starts at `at`.
fn end_of_string(text: &str, mut at: usize) -> Option<usize> {
    loop {
        match text.as_bytes().get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Appends the key of an object, quoted unless it is a plain name.
pub(super) fn push_key(path: &mut String, key: &str) {
    let is_name = !key.is_empty()
        && !key.starts_with(|first: char| first.is_ascii_digit())
        && key.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    // Writing to a `String` cannot fail.
    let _ = if !is_name {
        write!(path, "[{key:?}]")
    } else if path.is_empty() {
        write!(path, "{key}")
    } else {
        write!(path, ".{key}")
    };
}

/// Appends the index into an array.
pub(super) fn push_index(path: &mut String, index: usize) {
    let _ = write!(path, "[{index}]");
}
