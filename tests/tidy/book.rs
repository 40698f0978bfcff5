//! The book in `docs`: every page is in its summary, its examples are compiled, and the reference
//! lists what the code has.

use std::collections::BTreeSet;

use super::source::{File, files, root};

fn pages() -> Vec<File> {
    files("docs", ".md").into_iter().filter(|page| page.path != "docs/SUMMARY.md").collect()
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

#[test]
fn summary_lists_every_page_once() {
    let summary = text("docs/SUMMARY.md");
    for page in pages() {
        let link = format!("]({})", page.path.strip_prefix("docs/").unwrap());
        page.check(summary.matches(&link).count() == 1, "must be in docs/SUMMARY.md, once");
    }
}

/// Returns the fenced Rust blocks of a page.
fn examples(page: &str) -> impl Iterator<Item = &str> {
    page.split("```rust").skip(1).filter_map(|rest| rest.split("```").next())
}

#[test]
fn examples_of_every_page_are_compiled() {
    let library = text("runledger/src/lib.rs");
    for page in pages().iter().filter(|page| examples(&page.text).next().is_some()) {
        page.check(
            library.contains(&format!("include_str!(\"../../{}\")", page.path)),
            "must be a doc test of runledger/src/lib.rs",
        );
    }
}

/// A plain view of Markdown shows hidden lines.
#[test]
fn example_hides_at_most_two_lines() {
    for page in pages() {
        for example in examples(&page.text) {
            let n_hidden = example.lines().filter(|line| line.trim_start().starts_with("# ")).count();
            page.check(n_hidden <= 2, &format!("an example hides {n_hidden} lines:{example}"));
        }
    }
}

/// Returns the words in backticks.
fn names_of(page: &str) -> BTreeSet<String> {
    let code = page.split('`').skip(1).step_by(2);
    code.flat_map(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned)).collect()
}

#[track_caller]
fn check_lists(page: &str, wanted: impl IntoIterator<Item = String>) {
    let listed = names_of(&text(page));
    let missing: Vec<String> = wanted.into_iter().filter(|name| !listed.contains(name)).collect();
    assert!(missing.is_empty(), "{page} does not list {missing:?}");
}

#[test]
fn reference_lists_every_option_of_attributes() {
    let options = text("runledger-macros/src/model/options.rs");
    let valid = options.split_once("const VALID: &[&str] = &[").unwrap().1.split_once("];").unwrap().0;
    let wanted: Vec<String> = valid.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    assert!(wanted.len() > 10, "{wanted:?}");
    check_lists("docs/reference/attributes.md", wanted);
}

#[test]
fn reference_lists_every_environment_variable() {
    let mut wanted = BTreeSet::new();
    for file in files("runledger/src", ".rs") {
        let words =
            file.program().split(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_');
        wanted.extend(words.filter(|word| word.starts_with("RUNLEDGER_")).map(str::to_owned));
    }
    assert!(wanted.len() > 5, "{wanted:?}");
    check_lists("docs/reference/configuration.md", wanted);
}

#[test]
fn reference_lists_every_table() {
    let mut wanted = BTreeSet::new();
    for file in files("runledger/migrations", ".sql") {
        let tables = file.text.split("create table runledger.").skip(1);
        wanted.extend(tables.filter_map(|rest| rest.split([' ', '\n']).next()).map(str::to_owned));
    }
    check_lists("docs/reference/schema.md", wanted);
}

#[test]
fn reference_lists_every_client_error() {
    let source = text("runledger/src/connection/client_error.rs");
    let variants = source.split_once("pub enum ClientError {").unwrap().1.split_once("\n}").unwrap().0;
    let is_variant = |line: &&str| line.starts_with("    ") && line[4..].starts_with(char::is_uppercase);
    let name = |line: &str| line.trim().split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned();
    let wanted: Vec<String> = variants.lines().filter(is_variant).map(name).collect();
    assert!(wanted.len() > 15, "{wanted:?}");
    check_lists("docs/reference/errors.md", wanted);
}
