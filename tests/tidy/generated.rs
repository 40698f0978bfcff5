//! Generated code contains only names, types and options. It may name `__private`, the library's
//! exports, and full paths below `::core` and `::std`.

use super::source::{File, files, names};

/// The library in generated code: a path that the user chooses.
const LIBRARY: &str = "#library::";

fn expansions() -> Vec<File> {
    files("runledger-macros/src/expand", ".rs")
}

#[test]
fn generated_code_names_only_exported_and_private_module_items() {
    let exported = exports("runledger/src/lib.rs");
    let private = exports("runledger/src/private.rs");
    let mut n_named = 0;
    for file in expansions() {
        for (at, _) in file.text.match_indices(LIBRARY) {
            let path = &file.text[at + LIBRARY.len()..];
            let known = match path.strip_prefix("__private::") {
                Some(inner) => names(&private, segment(inner)),
                None => names(&exported, segment(path)),
            };
            file.check(
                known,
                &format!("`{}…` is no item that generated code may name", &path[..path.len().min(40)]),
            );
            n_named += 1;
        }
    }
    assert!(n_named > 5, "the expansions name the library in another way now: mend this test");
}

#[test]
fn generated_code_uses_full_standard_library_paths() {
    for file in expansions() {
        for quoted in file.text.split("quote").skip(1) {
            let quoted = quoted.split("\n}").next().unwrap();
            for word in ["Some(", "None =>", "Ok(value)", "Box::pin", "Option::"] {
                let bare = quoted.match_indices(word).any(|(at, _)| quoted[..at].ends_with(['(', ' ', '<']));
                file.check(
                    !bare || !quoted.contains("#library"),
                    &format!("`{word}` would be the user's own"),
                );
            }
        }
    }
}

/// Returns the public parts of a file: its re-exports, functions and modules.
fn exports(path: &str) -> String {
    let text = std::fs::read_to_string(super::source::root().join(path)).unwrap();
    text.lines()
        .filter(|line| line.starts_with("pub ") || line.starts_with("    "))
        .collect::<Vec<_>>()
        .join("\n")
}

fn segment(path: &str) -> &str {
    &path[..path.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(path.len())]
}
