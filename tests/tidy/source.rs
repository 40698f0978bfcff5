//! The repository's files as the rules read them: Rust code without comments and tests, and its
//! string literals.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap().to_owned()
}

/// A file, with its path from the root of the repository.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Returns all files below a folder whose name ends in `suffix`, sorted.
///
/// Fails if there is none: a rule over no files would check nothing.
#[track_caller]
pub(crate) fn files(folder: &str, suffix: &str) -> Vec<File> {
    let mut found = Vec::new();
    collect(&root().join(folder), suffix, &mut found);
    assert!(!found.is_empty(), "there is no `{suffix}` file in `{folder}`, of which a rule speaks");
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

fn collect(folder: &Path, suffix: &str, found: &mut Vec<File>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !path.is_symlink() && name != "target" && !name.starts_with('.') {
            collect(&path, suffix, found);
        } else if name.ends_with(suffix) && path.is_file() {
            let text = fs::read_to_string(&path).unwrap();
            found.push(File { path: path.strip_prefix(root()).unwrap().display().to_string(), text });
        }
    }
}

impl File {
    /// Whether the whole file is compiled only for tests.
    pub(crate) fn is_test(&self) -> bool {
        ["tests.rs", "properties.rs"].iter().any(|end| self.path.ends_with(end))
    }

    /// Returns the file without its unit tests, which are at its end.
    pub(crate) fn program(&self) -> &str {
        let end = self.text.find("#[cfg(test)]").unwrap_or(self.text.len());
        if self.is_test() { "" } else { &self.text[..end] }
    }

    /// Fails with the path and the rule unless `holds`.
    #[track_caller]
    pub(crate) fn check(&self, holds: bool, rule: &str) {
        assert!(holds, "{}: {rule}", self.path);
    }
}

/// The parts of Rust source text: the code with blank comments and string literals, and the
/// literals.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Parts {
    pub(crate) code: String,
    pub(crate) texts: Vec<String>,
}

/// Splits Rust source text as far as the rules need it: comments, string literals, raw literals,
/// and characters that look like either.
pub(crate) fn parts(rust: &str) -> Parts {
    let mut parts = Parts::default();
    let mut rest = rust;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some((text, length)) = text_at(rest) {
            parts.texts.push(text.to_owned());
            parts.code.push_str("\"\"");
            length
        } else if let Some(character) =
            ["'\"'", "'\\''", "'\\\\'", "b'\"'"].iter().find(|it| rest.starts_with(**it))
        {
            character.len()
        } else {
            parts.code.push(first);
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    parts
}

/// Returns the string literal that starts here, and its length in the source.
fn text_at(rust: &str) -> Option<(&str, usize)> {
    if let Some(raw) = rust.strip_prefix("r").filter(|raw| raw.starts_with(['"', '#'])) {
        let n_hashes = raw.find(|c| c != '#')?;
        let inside = raw[n_hashes..].strip_prefix('"')?;
        let end = inside.find(&format!("\"{}", "#".repeat(n_hashes)))?;
        return Some((&inside[..end], 1 + n_hashes + 1 + end + 1 + n_hashes));
    }
    let inside = rust.strip_prefix('"')?;
    let mut escaped = false;
    let end = inside.find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })?;
    Some((&inside[..end], end + 2))
}

/// Whether `code` contains `word` as a whole word.
pub(crate) fn names(code: &str, word: &str) -> bool {
    let of_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .any(|(at, _)| !code[..at].ends_with(of_name) && !code[at + word.len()..].starts_with(of_name))
}

#[test]
fn string_literals_and_comments_are_not_code() {
    let rust = "a(\"b \\\" // c\", r#\"d \" e\"#) // f \"g\"\n'\"' h('\\'')";
    let expected =
        Parts { code: "a(\"\", \"\") \n h()".into(), texts: vec!["b \\\" // c".into(), "d \" e".into()] };
    assert_eq!(parts(rust), expected);
}

#[test]
fn word_within_longer_name_does_not_match() {
    assert!(names("use tokio::time;", "tokio") && !names("my_tokio", "tokio") && !names("tokiox", "tokio"));
}
