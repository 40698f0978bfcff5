//! Who may know whom. `model` is beneath everything; only `store` speaks SQL; nothing below reaches up.
//!
//! `api` and `runtime` know each other: a step is the user's handle and the runtime's work. What holds, and is worth holding, is the rest.

use super::source::{File, files, names, parts};

/// Each layer with those it may name besides itself. `root` is what the crate re-exports: the public API.
const MAY_NAME: [(&str, &[&str]); 7] = [
    ("model", &[]),
    ("store", &["model"]),
    ("runtime", &["model", "store", "api"]),
    ("api", &["model", "store", "runtime", "dev", "root"]),
    ("dev", &[]),
    ("testing", &["model", "store", "runtime", "api", "dev", "root"]),
    // A program: to it the library is `runledger`, and `root` its own files.
    ("bin", &["root"]),
];

/// What makes a decision depend on anything but its arguments.
const IMPURE: [&str; 9] =
    ["sqlx", "tokio", "SystemTime::now", "Instant", "fastrand", "rand", "now_v7", "new_v4", "env::var"];

#[test]
fn the_model_has_no_io_no_clock_and_no_randomness() {
    for file in of_layer("model") {
        let code = parts(file.program()).code;
        for word in IMPURE {
            file.check(!names(&code, word), &format!("the model may not name `{word}`"));
        }
    }
}

#[test]
fn no_layer_names_one_that_it_may_not_know() {
    for (layer, may_name) in MAY_NAME {
        for file in of_layer(layer) {
            for named in layers_named(&file) {
                let known = named == layer || may_name.contains(&named.as_str());
                file.check(known, &format!("`{layer}` may not name `{named}`; it may name {may_name:?}"));
            }
        }
    }
}

#[test]
fn every_folder_of_the_library_is_a_layer_with_a_rule() {
    for file in files("runledger/src", ".rs") {
        let inside = file.path.trim_start_matches("runledger/src/").split('/').collect::<Vec<_>>();
        let known = inside.len() == 1 || MAY_NAME.iter().any(|(layer, _)| *layer == inside[0]);
        file.check(known, "this folder has no line in `MAY_NAME`");
    }
}

fn of_layer(layer: &str) -> Vec<File> {
    files(&format!("runledger/src/{layer}"), ".rs")
}

/// The first segments of every path into this crate: a layer, or `root` for what is re-exported.
fn layers_named(file: &File) -> Vec<String> {
    let code = parts(file.program()).code;
    let depth = module_depth(&file.path);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if !code[..at].ends_with('$') {
            found.extend(heads(&code[at + "crate::".len()..]));
        }
    }
    // As many `super::` as the module is deep lead to the crate's root.
    let up = "super::".repeat(depth);
    for (at, _) in code.match_indices(&up) {
        if depth > 0 && !code[..at].ends_with("super::") {
            found.extend(heads(&code[at + up.len()..]));
        }
    }
    found
}

/// `model/json/encode.rs` is two deep below the layer, `model/mod.rs` is the layer itself.
fn module_depth(path: &str) -> usize {
    let inside = path.trim_start_matches("runledger/src/").trim_end_matches(".rs");
    inside.trim_end_matches("/mod").split('/').count()
}

/// The names that a path goes on with: one, or those of a group.
fn heads(rest: &str) -> Vec<String> {
    let Some(group) = rest.strip_prefix('{') else { return vec![head(rest)] };
    let mut depth = 0;
    let mut items = vec![String::new()];
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => items.push(String::new()),
            _ if depth == 0 => items.last_mut().unwrap().push(c),
            _ => {}
        }
    }
    items.iter().filter(|item| !item.trim().is_empty()).map(|item| head(item.trim())).collect()
}

fn head(path: &str) -> String {
    let end = path.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(path.len());
    let is_layer = MAY_NAME.iter().any(|(layer, _)| *layer == &path[..end]);
    if is_layer { path[..end].to_owned() } else { "root".to_owned() }
}

#[test]
fn paths_are_followed_through_groups_and_upwards() {
    let text = "use crate::store::{sql, wait}; use crate::{Call, api::db::Db}; use super::super::runtime::x; use super::y;";
    let file = File { path: "runledger/src/store/claim.rs".into(), text: text.into() };
    assert_eq!(layers_named(&file), ["store", "root", "api", "runtime"]);
}
