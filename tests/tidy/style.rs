//! The rules of STYLE for every file.

use std::collections::BTreeMap;
use std::path::Path;

use super::source::{File, files, names, parts, root};

/// A longer file is a defect.
const MOST_LINES: usize = 600;

const MEMBERS: [&str; 4] = ["runledger", "runledger-macros", "examples", "tests"];

fn everything() -> Vec<File> {
    MEMBERS.iter().flat_map(|member| files(member, ".rs")).collect()
}

#[test]
fn no_file_is_longer_than_600_lines() {
    for file in everything() {
        let n_lines = file.text.lines().count();
        file.check(n_lines <= MOST_LINES, &format!("{n_lines} lines: split it"));
    }
}

const MOST_FILES: usize = 15;

#[test]
fn no_library_folder_has_more_than_15_files() {
    let mut folders: BTreeMap<&Path, usize> = BTreeMap::new();
    let checked: Vec<File> = [".rs", ".sql"].iter().flat_map(|end| files("runledger/src", end)).collect();
    for file in &checked {
        *folders.entry(Path::new(&file.path).parent().unwrap()).or_default() += 1;
    }
    for (folder, n_files) in folders {
        assert!(n_files <= MOST_FILES, "{}: {n_files} files: group them", folder.display());
    }
}

const MOST_WORDS: usize = 10;

#[test]
fn test_names_have_at_most_ten_words() {
    let mut n_tests = 0;
    for file in everything() {
        let mut is_test = false;
        for line in file.text.lines().map(str::trim_start) {
            if let Some(attribute) = line.strip_prefix("#[") {
                is_test |= attribute.split(['(', ']']).next().is_some_and(|name| name.ends_with("test"));
            } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
                let name = rest.split('(').next().unwrap_or_default();
                file.check(name.split('_').count() <= MOST_WORDS, &format!("`{name}` is too long"));
                (is_test, n_tests) = (false, n_tests + 1);
            }
        }
    }
    assert!(n_tests > 1_000, "{n_tests} tests were found");
}

const MOST_COLUMNS: usize = 100;

#[test]
fn comments_have_at_most_100_columns() {
    let mut checked = everything();
    checked.extend(files("runledger/src/store/sql", ".sql"));
    checked.extend(files("runledger/migrations", ".sql"));
    for file in checked {
        let mut is_example = false;
        for line in file.text.lines() {
            let Some(comment) = comment_of(line) else {
                is_example = false;
                continue;
            };
            if comment.starts_with("```") {
                is_example = !is_example;
            }
            let is_unbreakable = is_example || comment.starts_with('|') || !comment.contains(' ');
            file.check(is_unbreakable || line.chars().count() <= MOST_COLUMNS, line);
        }
    }
}

fn comment_of(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["///", "//!", "//", "--"].into_iter().find_map(|mark| line.strip_prefix(mark)).map(str::trim)
}

#[test]
fn no_documentation_example_is_ignored() {
    for file in everything() {
        for line in file.text.lines().map(str::trim) {
            let fence = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim);
            let tags = fence.and_then(|fence| fence.strip_prefix("```")).unwrap_or_default();
            file.check(
                tags.split(',').all(|tag| tag.trim() != "ignore"),
                "`ignore` is forbidden: run it, or `no_run`",
            );
        }
    }
}

#[test]
fn unsafe_code_is_forbidden_in_every_member() {
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(workspace.contains("unsafe_code = \"forbid\""));
    for member in MEMBERS {
        let manifest = std::fs::read_to_string(root().join(member).join("Cargo.toml")).unwrap();
        assert!(
            manifest.contains("[lints]\nworkspace = true"),
            "{member} does not take the workspace's lints"
        );
    }
}

#[test]
fn code_has_no_todo_markers_or_debug_macros() {
    for file in everything() {
        let code = parts(&file.text).code;
        for mark in ["todo!", "unimplemented!", "dbg!"] {
            file.check(!code.contains(mark), &format!("`{mark}`"));
        }
        let comments = file.text.lines().filter(|line| line.trim_start().starts_with("//"));
        for line in comments {
            file.check(!names(line, "TODO") && !names(line, "FIXME"), line);
        }
    }
}
