//! The links of pages lead to files.

use super::source::{File, files, root};

#[test]
fn every_relative_link_of_a_page_leads_to_a_file() {
    let pages: Vec<File> = files("", ".md");
    assert!(pages.iter().any(|page| page.path == "README.md"));
    for page in pages {
        // Links of a symbolic link are relative to its target. Such pages are packed with a crate.
        let place = root().join(&page.path).canonicalize().unwrap();
        let folder = place.parent().unwrap();
        for target in targets(&page.text) {
            let path = target.split('#').next().unwrap_or_default();
            let elsewhere = path.is_empty() || path.contains("://") || path.starts_with("mailto:");
            page.check(elsewhere || folder.join(path).exists(), &format!("`{target}` does not exist"));
        }
    }
}

/// A package registry shows the page of a crate without the repository.
#[test]
fn page_of_a_crate_has_no_relative_links() {
    for page in ["runledger/README.md", "runledger-macros/README.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let relative: Vec<&str> = targets(&text)
            .into_iter()
            .filter(|target| !target.contains("://") && !target.starts_with('#'))
            .collect();
        assert!(relative.is_empty(), "{page}: {relative:?}");
    }
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
fn links_in_code_are_none() {
    assert_eq!(targets("[a](b.md#c) ```rust\nx[0](y)\n``` ![d](e.png \"f\")"), ["b.md#c", "e.png"]);
}
