//! The layers of the library: a stack of modules. Each may name only the modules below it.

use super::source::{File, files, names, parts};

/// The modules of the library from the bottom up. `dev` is outside the stack: it starts servers and
/// names no other module.
const STACK: [&str; 11] = [
    "model",
    "store",
    "connection",
    "definition",
    "engine",
    "client",
    "workflow",
    "graph",
    "worker",
    "verify",
    "testing",
];

/// The one exception, by file: the function of a definition takes an invocation, which contains the
/// attempt.
const EXCEPTION: (&str, &str) = ("runledger/src/definition/invocation.rs", "engine");

/// Names that make a decision depend on more than its arguments.
const IMPURE: [&str; 9] =
    ["sqlx", "tokio", "SystemTime::now", "Instant", "fastrand", "rand", "now_v7", "new_v4", "env::var"];

#[test]
fn model_has_no_io_clock_or_randomness() {
    for file in of_layer("model") {
        let code = parts(file.program()).code;
        for word in IMPURE {
            file.check(!names(&code, word), &format!("the model may not name `{word}`"));
        }
    }
}

#[test]
fn module_names_no_layer_above_it() {
    for (place, module) in STACK.iter().enumerate() {
        for file in of_layer(module) {
            for named in layers_named(&file) {
                let is_below =
                    STACK.iter().position(|other| *other == named).is_some_and(|other| other <= place);
                let is_known = is_below || is_allowed(&file, module, &named);
                file.check(
                    is_known,
                    &format!("`{module}` may not name `{named}`; it may name what is below it in `STACK`"),
                );
            }
        }
    }
}

fn is_allowed(file: &File, module: &str, named: &str) -> bool {
    match named {
        "dev" => ["connection", "testing"].contains(&module),
        "root" => ["verify", "testing"].contains(&module),
        named => EXCEPTION == (file.path.as_str(), named),
    }
}

#[test]
fn every_library_folder_is_in_layer_stack() {
    for file in files("runledger/src", ".rs") {
        let inside = file.path.trim_start_matches("runledger/src/").split('/').collect::<Vec<_>>();
        let known = inside.len() == 1 || STACK.contains(&inside[0]) || ["dev", "bin"].contains(&inside[0]);
        file.check(known, "this folder is not in `STACK`");
    }
}

fn of_layer(layer: &str) -> Vec<File> {
    let mut found = files(&format!("runledger/src/{layer}"), ".rs");
    found.extend(
        files("runledger/src", ".rs")
            .into_iter()
            .filter(|file| file.path == format!("runledger/src/{layer}.rs")),
    );
    found
}

/// Returns the first segment of every path into this crate: a layer, or `root` for a re-export.
fn layers_named(file: &File) -> Vec<String> {
    let code = parts(file.program()).code;
    let depth = module_depth(&file.path);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if !code[..at].ends_with('$') {
            found.extend(heads(&code[at + "crate::".len()..]));
        }
    }
    // The number of `super::` that lead to the crate's root is the depth of the module.
    let up = "super::".repeat(depth);
    for (at, _) in code.match_indices(&up) {
        if depth > 0 && !code[..at].ends_with("super::") {
            found.extend(heads(&code[at + up.len()..]));
        }
    }
    found
}

/// `model/json/encode.rs` is two levels below its layer, and `model/mod.rs` is the layer itself.
fn module_depth(path: &str) -> usize {
    let inside = path.trim_start_matches("runledger/src/").trim_end_matches(".rs");
    inside.trim_end_matches("/mod").split('/').count()
}

/// Returns the names after a path prefix: one, or those of a group.
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
    let is_layer = STACK.contains(&&path[..end]) || &path[..end] == "dev";
    if is_layer { path[..end].to_owned() } else { "root".to_owned() }
}

#[test]
fn module_paths_are_resolved_through_groups_and_super() {
    let text = "use crate::store::{sql, wait}; use crate::{Call, client::handle::Handle}; use super::super::engine::x; use super::y;";
    let file = File { path: "runledger/src/store/locks.rs".into(), text: text.into() };
    assert_eq!(layers_named(&file), ["store", "root", "client", "engine"]);
}
