//! A mutant: replacements in the sources, and the tests that must find the defect.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// A text replacement. The old text matches exactly once.
pub struct Edit {
    pub file: &'static str,
    pub old: &'static str,
    pub new: &'static str,
}

/// A deliberate defect.
pub struct Mutant {
    pub name: &'static str,
    pub edits: &'static [Edit],
    /// Tests that must all fail. A test without a program (`it::sagas::…`) belongs to `checks`.
    pub tests: &'static [&'static str],
}

/// The test program of a test, and its name there.
pub fn program(test: &'static str) -> (&'static str, &'static str) {
    test.split_once("::").filter(|(first, _)| PROGRAMS.contains(first)).unwrap_or(("checks", test))
}

/// Folders of `tests` with test programs.
const PROGRAMS: &[&str] = &["checks", "codec", "graphs", "it", "kit", "workflows"];

impl Mutant {
    /// Fails if a replacement no longer matches the sources or a test no longer exists.
    pub fn check(&self, root: &Path) -> Result<()> {
        let name = self.name;
        let read = |file: &str| {
            fs::read_to_string(root.join(file)).with_context(|| format!("mutant `{name}`: `{file}`"))
        };
        for Edit { file, old, new } in self.edits {
            let n_matches = read(file)?.matches(old).count();
            ensure!(n_matches == 1, "mutant `{name}` matches {n_matches} times in {file}, not once: {old}");
            ensure!(old != new, "mutant `{name}` changes nothing in {file}");
        }
        ensure!(!self.edits.is_empty() && !self.tests.is_empty(), "mutant `{name}` has no edit or no test");
        for test in self.tests {
            let (program, of_program) = program(test);
            let (module, function) = of_program.rsplit_once("::").with_context(|| format!("`{test}`"))?;
            let text = read(&format!("tests/{program}/{}.rs", module.replace("::", "/")))?;
            let heads = [format!("async fn {function}("), format!("fn {function}(")];
            let is_it = |line: &str| heads.iter().any(|head| line.starts_with(head));
            let mut tests = text.split("#[tokio::test").chain(text.split("#[test]")).skip(1);
            // The function must follow the attribute directly: an ignored test would never fail.
            let is_test = tests.any(|test| test.split_once('\n').is_some_and(|(_, rest)| is_it(rest)));
            ensure!(is_test, "mutant `{name}` names `{test}`, which is no test");
        }
        Ok(())
    }
}
