//! Slices: a run that continues as new resumes where it was.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::facts::Claim;
use super::{Event, Facts, Violations, What};

/// How many slices `check.continued` and `check.sliced` have.
pub const SLICES: u32 = 3;

/// Finds workflow runs that began an earlier slice again or skipped one. Also finds job runs that
/// lost a slice whose progress was acknowledged.
#[must_use]
pub fn forgotten(events: &[Event], facts: &Facts) -> Violations {
    let mut of_runs: HashMap<Uuid, Vec<&Event>> = HashMap::new();
    for event in events {
        of_runs.entry(event.run_id).or_default().push(event);
    }
    let mut violations = Violations::new();
    for end in facts.ends.iter().filter(|end| end.state == "completed") {
        let events = of_runs.get(&end.run_id).map(Vec::as_slice).unwrap_or_default();
        match facts.jobs.get(&end.run_id).map(String::as_str) {
            Some("check.continued") => violations.extend(gone_back(end.run_id, events, facts)),
            Some("check.sliced") => {
                violations.extend(unkept(end.run_id, events, end.output.as_deref().unwrap_or_default()));
            }
            _ => {}
        }
    }
    violations
}

/// Finds slices that began again or are missing. The key of each step is the number of its slice.
fn gone_back(run_id: Uuid, events: &[&Event], facts: &Facts) -> Violations {
    let slice_of = |event: &Event| {
        let number = event.key.strip_prefix("check.quick[")?.strip_suffix(']')?;
        number.parse::<u32>().ok()
    };
    let (mut seen, mut last) = (HashSet::new(), 0);
    let mut violations = Violations::new();
    // Ordered by claim number: times are useless if the server's clock jumps.
    let mut claims: Vec<&Claim> = facts.claims_of(run_id).collect();
    claims.sort_by_key(|claim| claim.claims);
    for claim in claims {
        let began = events.iter().filter(|event| event.what == What::Start && event.token == claim.token);
        for slice in began.filter_map(|event| slice_of(event)) {
            if slice < last {
                violations.push(format!("run {run_id} began slice {slice} again after slice {last}"));
            }
            last = last.max(slice);
            seen.insert(slice);
        }
    }
    let left_out = (0..SLICES).filter(|slice| !seen.contains(slice));
    violations.extend(left_out.map(|slice| format!("run {run_id} completed without slice {slice}")));
    violations
}

/// Finds missing slices. The output must contain the token of every slice that noted its end.
fn unkept(run_id: Uuid, events: &[&Event], output: &str) -> Violations {
    let kept: Vec<Uuid> = serde_json::from_str(output).unwrap_or_default();
    let ended = events.iter().filter(|event| event.what == What::End && !kept.contains(&event.token));
    let mut violations: Violations =
        ended.map(|event| format!("run {run_id} has forgotten the slice of token {}", event.token)).collect();
    let mut once = HashSet::new();
    if kept.len() < 3 || !kept.iter().all(|token| once.insert(token)) {
        violations.push(format!("run {run_id} has the slices {kept:?}"));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::facts::Written;
    use super::*;

    fn history(job: &str, output: &str, slices: &[(u128, &str)]) -> usize {
        let run_id = Uuid::now_v7();
        let tokens: Vec<Uuid> = (1..=4).map(Uuid::from_u128).collect();
        let claims = (1..).zip(&tokens).map(|(claims, &token)| Claim {
            run_id,
            token,
            worker_id: 1,
            claims,
            at_us: claims.into(),
        });
        let events = slices.iter().flat_map(|(token, key)| {
            [What::Start, What::End].map(|what| Event {
                what,
                run_id,
                key: (*key).to_owned(),
                token: Uuid::from_u128(*token),
                pid: 1,
                at_us: 1,
            })
        });
        let facts = Facts {
            ends: vec![Written::end(run_id, "completed", output, 9)],
            jobs: HashMap::from([(run_id, job.to_owned())]),
            ..Facts::of_claims(claims.collect())
        };
        forgotten(&events.collect::<Vec<_>>(), &facts).len()
    }

    #[test]
    fn workflow_repeating_or_skipping_slice_is_violation() {
        let [zero, one, two] = ["check.quick[0]", "check.quick[1]", "check.quick[2]"];
        let n_wrong = |slices: &[(u128, &str)]| history("check.continued", "2", slices);
        assert_eq!(n_wrong(&[(1, zero), (2, one), (3, two)]), 0);
        assert_eq!(n_wrong(&[(1, zero), (2, zero), (3, one), (4, two)]), 0, "a crash in the first slice");
        assert_eq!(n_wrong(&[(1, zero), (2, one), (3, zero), (4, two)]), 1, "it went back");
        assert_eq!(n_wrong(&[(1, zero), (3, two)]), 1, "it left one out");
    }

    #[test]
    fn job_forgetting_or_double_counting_slice_is_violation() {
        let n_wrong = |tokens: &[u128]| {
            let tokens: Vec<Uuid> = tokens.iter().copied().map(Uuid::from_u128).collect();
            let output = serde_json::to_string(&tokens).unwrap_or_default();
            history("check.sliced", &output, &[(1, ""), (2, ""), (3, "")])
        };
        assert_eq!(n_wrong(&[1, 2, 3]), 0);
        assert_eq!(n_wrong(&[1, 2, 4]), 1, "the third was acknowledged, and is forgotten");
        assert_eq!(n_wrong(&[1, 2, 3, 3]), 1);
        assert_eq!(n_wrong(&[]), 4);
    }
}
