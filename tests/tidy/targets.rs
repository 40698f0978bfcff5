//! Targets with `test = false` or `doctest = false` contain no tests.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::source::{files, root};

/// A library or a program of the workspace.
struct Target {
    kind: String,
    /// Its first file, by its path from the root of the repository.
    path: String,
    is_tested: bool,
    has_doctests: bool,
}

impl Target {
    /// Its files: the first one, or the whole folder of a `main.rs` or `lib.rs`.
    fn files(&self) -> String {
        match self.path.strip_suffix("/main.rs").or_else(|| self.path.strip_suffix("/lib.rs")) {
            Some(folder) => format!("{folder}/"),
            None => self.path.clone(),
        }
    }
}

fn targets() -> Vec<Target> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let targets = packages.iter().flat_map(|package| package["targets"].as_array().unwrap());
    let target = |target: &Value| Target {
        kind: target["kind"][0].as_str().unwrap().to_owned(),
        path: {
            let path = Path::new(target["src_path"].as_str().unwrap());
            path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned()
        },
        is_tested: target["test"].as_bool().unwrap(),
        has_doctests: target["doctest"].as_bool().unwrap(),
    };
    targets.map(target).collect()
}

#[test]
fn target_with_tests_disabled_contains_no_tests() {
    // `.ci/run shipped` names its test.
    let untested = targets()
        .into_iter()
        .filter(|target| !target.is_tested && target.path != "tests/shipped/tests/smoke.rs");
    let untested: Vec<Target> = untested.collect();
    assert!(untested.len() > 10, "{}", untested.len());
    let sources = ["examples", "tests"].map(|folder| files(folder, ".rs")).into_iter().flatten();
    let sources: Vec<_> = sources.collect();
    for target in untested {
        let files = target.files();
        let of_target = sources.iter().filter(|file| file.path.starts_with(&files));
        let of_target: Vec<_> = of_target.collect();
        assert!(!of_target.is_empty(), "{files}");
        for file in of_target {
            let has_test = ["#[test]", "#[tokio::test"].iter().any(|test| file.text.contains(test));
            file.check(!has_test, "`test = false` in Cargo.toml hides its tests from `cargo test`");
        }
    }
}

#[test]
fn library_without_doctests_has_no_documentation_examples() {
    let libraries = targets().into_iter().filter(|target| target.kind == "lib" && !target.has_doctests);
    let libraries: Vec<Target> = libraries.collect();
    assert!(!libraries.is_empty());
    for library in libraries {
        for file in files(library.files().trim_end_matches('/'), ".rs") {
            let comments = file.text.lines().filter_map(|line| line.trim_start().strip_prefix("//"));
            let fences =
                comments.filter_map(|comment| comment.split_once("```")).map(|(_, language)| language);
            // Every second fence ends an example.
            let has_example = fences.step_by(2).any(|language| language != "text");
            file.check(!has_example, "`doctest = false` in Cargo.toml hides its examples from `cargo test`");
        }
    }
}
