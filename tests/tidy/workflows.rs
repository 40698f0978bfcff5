//! GitHub's workflows call the steps of `.ci/run` and repeat none of its commands.

use std::collections::BTreeSet;
use std::fs;

use super::source::root;

const WORKFLOWS: [&str; 2] = ["ci.yml", "nightly.yml"];

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// Returns the words between the parentheses of `name=(…)`.
fn steps_of<'s>(script: &'s str, name: &str) -> Vec<&'s str> {
    let start = script.find(&format!("\n{name}=(")).unwrap() + name.len() + 3;
    script[start..].split_once(')').unwrap().0.split_whitespace().collect()
}

/// Returns the steps that a workflow runs: the words after `.ci/run`.
fn called(workflow: &str) -> Vec<String> {
    let calls = workflow.lines().filter_map(|line| line.trim().strip_prefix("- run: .ci/run "));
    calls.flat_map(|words| words.split_whitespace().map(str::to_owned)).collect()
}

#[test]
fn every_ci_step_has_function_in_script() {
    let script = read(".ci/run");
    let steps: Vec<&str> = steps_of(&script, "merge").into_iter().chain(steps_of(&script, "extra")).collect();
    assert!(steps.len() > 15, "{steps:?}");
    for step in steps {
        assert!(
            script.contains(&format!("\nstep_{step}() {{")),
            "`.ci/run` has no function for step `{step}`"
        );
    }
}

#[test]
fn workflows_run_every_ci_step_and_no_unknown_one() {
    let script = read(".ci/run");
    let all: BTreeSet<String> =
        steps_of(&script, "merge").into_iter().chain(steps_of(&script, "extra")).map(str::to_owned).collect();
    let called: BTreeSet<String> =
        WORKFLOWS.iter().flat_map(|name| called(&read(&format!(".github/workflows/{name}")))).collect();
    let unknown: Vec<&String> = called.difference(&all).collect();
    assert!(unknown.is_empty(), "`.ci/run` has no steps {unknown:?}");
    // Other steps include `build`. A job of its own would build the workspace again.
    let unused: Vec<&String> = all.difference(&called).filter(|step| *step != "build").collect();
    assert!(unused.is_empty(), "no workflow runs {unused:?}");
}

#[test]
fn pull_request_runs_every_merge_step() {
    let run = called(&read(".github/workflows/ci.yml"));
    // The other steps include `build`.
    let left_out: Vec<String> = steps_of(&read(".ci/run"), "merge")
        .into_iter()
        .map(str::to_owned)
        .filter(|step| step != "build" && !run.contains(step))
        .collect();
    assert!(left_out.is_empty(), "`ci.yml` does not run {left_out:?}");
}

#[test]
fn workflows_have_least_permissions_concurrency_group_and_job_timeouts() {
    for name in WORKFLOWS {
        let text = read(&format!(".github/workflows/{name}"));
        assert!(text.contains("\npermissions:\n  contents: read\n"), "{name} may write");
        assert!(text.contains("\nconcurrency:\n  group: "), "{name} has no concurrency group");
        let n_jobs = text.matches("runs-on: ").count();
        assert_eq!(text.matches("timeout-minutes: ").count(), n_jobs, "a job of {name} has no time limit");
    }
}
