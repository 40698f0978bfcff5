//! The links of pages lead to files, and the files and methods that pages and errors name exist.

use std::collections::HashSet;

use super::source::{File, files, parts, root};

#[test]
fn every_relative_link_in_pages_leads_to_file_and_heading() {
    let pages: Vec<File> = files("", ".md");
    assert!(pages.iter().any(|page| page.path == "README.md"));
    for page in pages {
        // Links of a symbolic link are relative to its target. Such pages are packed with a crate.
        let place = root().join(&page.path).canonicalize().unwrap();
        let folder = place.parent().unwrap();
        for target in targets(&page.text) {
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            if path.contains("://") || path.starts_with("mailto:") {
                continue;
            }
            let file = if path.is_empty() { place.clone() } else { folder.join(path) };
            page.check(file.exists(), &format!("`{target}` does not exist"));
            let has_heading = heading.is_empty()
                || !path.ends_with(".md")
                || headings(&std::fs::read_to_string(&file).unwrap()).contains(heading);
            page.check(has_heading, &format!("`{target}`: there is no such heading"));
        }
    }
}

/// Returns the anchors of a page's headings, as GitHub and mdbook name them.
fn headings(page: &str) -> HashSet<String> {
    let outside = page.split("```").step_by(2);
    let headings = outside.flat_map(str::lines).filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let text = line.trim_start_matches('#').trim().to_lowercase();
            let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[test]
fn every_file_named_by_architecture_page_exists() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let suffixes = [".rs", ".sql", ".md"];
    let paths: Vec<String> =
        suffixes.iter().flat_map(|suffix| files("", suffix)).map(|file| format!("/{}", file.path)).collect();
    let is_file = |code: &&str| suffixes.iter().any(|suffix| code.ends_with(suffix)) && !code.contains('*');
    for name in page.split('`').skip(1).step_by(2).filter(is_file) {
        assert!(paths.iter().any(|path| path.ends_with(&format!("/{name}"))), "`{name}` does not exist");
    }
}

/// A package registry shows the page of a crate without the repository.
#[test]
fn crate_page_has_no_relative_links() {
    for page in ["runledger/README.md", "runledger-macros/README.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let relative: Vec<&str> = targets(&text)
            .into_iter()
            .filter(|target| !target.contains("://") && !target.starts_with('#'))
            .collect();
        assert!(relative.is_empty(), "{page}: {relative:?}");
    }
}

/// How pages and errors name methods, and the type that has them.
const OWNERS: [(&str, &str); 9] = [
    ("db.", "Db"),
    ("Db::", "Db"),
    ("wf.", "Wf"),
    ("Wf::", "Wf"),
    ("App::", "App"),
    ("context.", "Context"),
    ("Context::", "Context"),
    ("Saga::", "Saga"),
    ("Testing::", "Testing"),
];

#[test]
fn every_method_named_by_page_or_error_exists() {
    let program = files("runledger/src", ".rs");
    let methods: HashSet<(String, String)> = program.iter().flat_map(|file| methods(&file.text)).collect();
    let is_text = |page: &File| !page.path.starts_with("docs/decisions/");
    let mut texts: Vec<(File, String)> = Vec::new();
    for file in program {
        let text = parts(file.program()).texts.join("\n");
        texts.push((file, text));
    }
    for page in files("", ".md").into_iter().filter(is_text) {
        let text = page.text.clone();
        texts.push((page, text));
    }
    for (file, text) in texts {
        for (owner, of_type) in OWNERS {
            for name in methods_named(&text, owner) {
                let exists = methods.contains(&(of_type.to_owned(), name.to_owned()));
                file.check(exists, &format!("`{owner}{name}` does not exist"));
            }
        }
    }
}

/// Returns the public methods in the `impl` blocks of a file, each with its type.
fn methods(rust: &str) -> Vec<(String, String)> {
    let (mut found, mut of_type) = (Vec::new(), "");
    for line in rust.lines() {
        if line.starts_with("impl") {
            let after = line.split_once(" for ").map_or(line, |(_, after)| after);
            let head = after.strip_prefix("impl").unwrap_or(after);
            let head = head.split_once("> ").filter(|_| head.starts_with('<')).map_or(head, |(_, rest)| rest);
            of_type = head.trim_start().split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        } else if let Some((before, after)) = line.split_once("fn ")
            && before.trim_start().starts_with("pub ")
        {
            let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            found.push((of_type.to_owned(), name.to_owned()));
        }
    }
    found
}

/// Returns the methods of `owner` that inline code begins with. A step key such as
/// `saga.compensate[…]` is none.
fn methods_named<'t>(text: &'t str, owner: &str) -> Vec<&'t str> {
    let begins = format!("`{owner}");
    let name = |rest: &'t str| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let is_method = end > 0 && rest.starts_with(char::is_lowercase) && !rest[end..].starts_with('[');
        is_method.then_some(&rest[..end])
    };
    text.split(begins.as_str()).skip(1).filter_map(name).collect()
}

#[test]
fn methods_are_found_with_their_types() {
    let rust = "impl Db {\n    pub async fn pin(&self) {}\n}\nimpl<'a> Wf<'a> {\n    pub fn now(&self) {}\n    fn own() {}\n}";
    let found = [("Db", "pin"), ("Wf", "now")].map(|(of, name)| (of.to_owned(), name.to_owned()));
    assert_eq!(methods(rust), found);
    assert_eq!(methods_named("by `db.run(id).pin(2)`, `wf.pin`, `db.step[x]`", "db."), ["run"]);
}

/// Returns the targets of the inline links outside fenced code.
fn targets(page: &str) -> Vec<&str> {
    let outside = page.split("```").step_by(2);
    outside
        .flat_map(|text| text.split("](").skip(1))
        .filter_map(|rest| rest.split([')', ' ']).next())
        .collect()
}

#[test]
fn links_in_fenced_code_are_ignored() {
    assert_eq!(targets("[a](b.md#c) ```rust\nx[0](y)\n``` ![d](e.png \"f\")"), ["b.md#c", "e.png"]);
}
