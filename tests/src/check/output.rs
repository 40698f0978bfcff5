//! Output: the lines of a run have no gaps, and a line that a replay emits again is recorded once.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::{Facts, Violations};

/// A line that a run has emitted.
#[derive(Clone, Debug)]
pub struct Line {
    /// The run.
    pub run_id: Uuid,
    /// Its position, from 1.
    pub position: i64,
    /// The step whose body emitted the line. Empty for the run's own body.
    pub step_key: String,
    /// The number of the line among the lines of that body.
    pub number: i32,
}

/// Finds outputs with a gap, and bodies with a repeated or reordered line. Also finds completed
/// runs of `job` that do not have exactly `n_lines` lines of their own.
///
/// Only for code that emits the same lines in every attempt.
#[must_use]
pub fn garbled(facts: &Facts, job: &str, n_lines: usize) -> Violations {
    let mut outputs: HashMap<Uuid, Vec<&Line>> = HashMap::new();
    for line in &facts.lines {
        outputs.entry(line.run_id).or_default().push(line);
    }
    let mut violations = Violations::new();
    for (run_id, lines) in &mut outputs {
        lines.sort_by_key(|line| line.position);
        if let Some((expected, line)) = (1..).zip(lines.iter()).find(|(at, line)| *at != line.position) {
            violations
                .push(format!("the output of run {run_id} has position {} at {expected}", line.position));
        }
        let mut last: HashMap<&str, i32> = HashMap::new();
        for line in lines.iter().filter(|line| line.step_key.is_empty()) {
            let before = last.insert(&line.step_key, line.number).unwrap_or_default();
            if line.number != before + 1 {
                violations.push(format!("run {run_id} has line {} after line {before}", line.number));
            }
        }
    }
    let completed: HashSet<Uuid> =
        facts.ends.iter().filter(|end| end.state == "completed").map(|end| end.run_id).collect();
    let of_job = facts.jobs.iter().filter(|(run_id, name)| *name == job && completed.contains(run_id));
    for (run_id, _) in of_job {
        let own = outputs.get(run_id).map(Vec::as_slice).unwrap_or_default();
        let n = own.iter().filter(|line| line.step_key.is_empty()).count();
        if n != n_lines {
            violations.push(format!("run {run_id} of `{job}` has {n} lines instead of {n_lines}"));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::facts::Written;
    use super::*;

    #[test]
    fn output_gap_loss_duplicate_or_reorder_is_violation() {
        let run_id = Uuid::now_v7();
        let n_wrong = |lines: &[(i64, i32)]| {
            let line =
                |&(position, number): &(i64, i32)| Line { run_id, position, step_key: String::new(), number };
            let facts = Facts {
                lines: lines.iter().map(line).collect(),
                ends: vec![Written::end(run_id, "completed", "null", 1)],
                jobs: HashMap::from([(run_id, "says".to_owned())]),
                ..Facts::default()
            };
            garbled(&facts, "says", 3).len()
        };
        assert_eq!(n_wrong(&[(1, 1), (2, 2), (3, 3)]), 0);
        assert_eq!(n_wrong(&[(1, 1), (3, 2), (4, 3)]), 1, "a gap");
        assert_eq!(n_wrong(&[(1, 1), (2, 2)]), 1, "one is lost");
        assert_eq!(
            n_wrong(&[(1, 1), (2, 2), (3, 2), (4, 3)]),
            2,
            "one is there twice, and so there are four"
        );
        assert_eq!(n_wrong(&[(1, 2), (2, 1), (3, 3)]), 3, "not in their order");
    }
}
