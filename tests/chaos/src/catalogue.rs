//! Checks the fault catalogue, `docs/faults.md`, against the existing scenarios and tests.

use std::path::Path;

use crate::scenarios::all;

const PAGE: &str = include_str!("../../../docs/faults.md");

/// One line of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    /// `F01` and so on.
    number: &'static str,
    /// What goes wrong.
    fault: &'static str,
    /// The scenarios and tests, in backticks, that show correct behaviour, or why none does.
    shown_by: &'static str,
}

impl Line {
    /// The names in backticks in the last column: `scenario` or `target::module::test`.
    fn references(&self) -> impl Iterator<Item = &'static str> {
        self.shown_by.split('`').skip(1).step_by(2)
    }
}

fn lines() -> impl Iterator<Item = Line> {
    PAGE.lines().filter(|line| line.starts_with("| F")).filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [number, fault, _injection, _must, shown_by] = cells[..] else { return None };
        Some(Line { number, fault, shown_by })
    })
}

#[test]
fn every_line_has_five_cells_and_ascending_number() {
    let numbers: Vec<&str> = lines().map(|line| line.number).collect();
    assert_eq!(numbers.len(), PAGE.lines().filter(|line| line.starts_with("| F")).count());
    assert!(numbers.is_sorted_by(|one, next| number(one) < number(next)), "{numbers:?}");
}

fn number(text: &str) -> u32 {
    text.trim_start_matches('F').parse().unwrap_or_default()
}

#[test]
fn every_line_references_existing_evidence_or_says_not_yet() {
    for line in lines() {
        assert!(!line.fault.is_empty() && !line.shown_by.is_empty(), "{}", line.number);
        let mut n_references = 0;
        for reference in line.references() {
            n_references += 1;
            let exists = match all().iter().find(|scenario| scenario.name == reference) {
                Some(scenario) => scenario.faults.contains(&line.number),
                None => is_test(reference),
            };
            assert!(exists, "{}: nothing shows `{reference}`", line.number);
        }
        assert!(
            n_references > 0 || line.shown_by.starts_with("not yet: "),
            "{}: {}",
            line.number,
            line.shown_by
        );
    }
}

#[test]
fn every_scenario_is_named_at_each_of_its_faults() {
    for scenario in all() {
        assert!(!scenario.faults.is_empty(), "{} covers nothing", scenario.name);
        for fault in scenario.faults {
            let named = |line: &Line| line.references().any(|name| name == scenario.name);
            assert!(
                lines().any(|line| line.number == *fault && named(&line)),
                "docs/faults.md does not name {} at {fault}",
                scenario.name
            );
        }
    }
}

/// Whether a test with this path exists. A path is a target of the package `runledger-tests`, then
/// modules that are files, then the function. A path that starts with `runledger::` names a unit
/// test of the library by its file.
fn is_test(path: &str) -> bool {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let Some((modules, name)) = path.rsplit_once("::") else { return false };
    let folder = match modules.strip_prefix("runledger::") {
        Some(modules) => tests.join("../runledger/src").join(modules.replace("::", "/")),
        None => tests.join(modules.replace("::", "/")),
    };
    let file = folder.with_extension("rs");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.contains(&format!("fn {name}("))
}
