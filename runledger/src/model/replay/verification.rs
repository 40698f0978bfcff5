//! The results of replaying recorded runs with the present code: a verdict per run, and a summary.

use std::fmt;
use std::process::ExitCode;

use uuid::Uuid;

use crate::model::replay::Divergence;
use crate::model::run::failure::Failure;
use crate::model::run::version::listed;

/// The verdict about one recorded run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The code follows the whole record, and then continues or ends.
    Replays,
    /// The code does not follow the record. The run would be blocked, or would fail.
    Breaks {
        /// The place and the kind of the difference.
        divergence: Divergence,
    },
    /// The program has no code for the job.
    NoCode,
    /// The program has code for the job, but not for the version that the run is pinned to.
    NoVersion {
        /// The version of the run.
        version: u32,
        /// The versions that the program serves.
        served: Vec<u32>,
    },
    /// The program has code for the run, but does not serve its queue.
    NoQueue {
        /// The queue of the run.
        queue: String,
    },
    /// The stored input does not fit the parameters.
    Undecodable {
        /// What does not fit, and where.
        failure: Failure,
    },
    /// The code awaits something that is not a step, and exceeded the time limit of the
    /// verification.
    Undecided,
}

impl Verdict {
    /// The step at which the code leaves the record, if it does.
    #[must_use]
    pub fn step(&self) -> Option<&str> {
        match self {
            Self::Breaks { divergence } => divergence.step(),
            Self::Replays
            | Self::NoCode
            | Self::NoVersion { .. }
            | Self::NoQueue { .. }
            | Self::Undecodable { .. }
            | Self::Undecided => None,
        }
    }

    /// Whether two verdicts have the same kind and the same step or queue, so one change of the
    /// code explains both.
    fn is_like(&self, other: &Self) -> bool {
        if let (Self::NoQueue { queue }, Self::NoQueue { queue: other }) = (self, other) {
            return queue == other;
        }
        std::mem::discriminant(self) == std::mem::discriminant(other)
            && self.step().map(name_of) == other.step().map(name_of)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replays => f.write_str("replays"),
            Self::Breaks { divergence } => write!(f, "breaks: {divergence}"),
            Self::NoCode => f.write_str("has no code in this program: it would wait until some worker serves the job again"),
            Self::NoVersion { version, served } => write!(
                f,
                "is of version {version}, which no code in this program serves (it has {}): it would wait until some worker serves that; keep the function of \
                 that version, or let a newer one accept it: `accepts = [{version}]`",
                listed(served)
            ),
            Self::NoQueue { queue } => write!(
                f,
                "is in queue `{queue}`, which this program does not serve: it would wait until some worker serves the queue; serve it, or verify with the queues of all workers (`App::queues`)"
            ),
            Self::Undecodable { failure } => write!(f, "cannot read its input: {failure}"),
            Self::Undecided => f.write_str(
                "is undecided: the workflow awaited something of its own, that is no step, for too long; let it await steps alone",
            ),
        }
    }
}

/// The name of a step without key and number: `reserve` of `reserve[sku-1]`, `charge` of
/// `charge#2`, and `compensate[reserve` of `compensate[reserve[sku-1]]`.
fn name_of(key: &str) -> &str {
    const COMPENSATE: &str = "compensate[";
    let own = if key.starts_with(COMPENSATE) { COMPENSATE.len() } else { 0 };
    let end = key[own..].find(['[', '#', ']']).map_or(key.len(), |len| own + len);
    &key[..end]
}

/// Runs of a job with similar verdicts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The stored name of the job.
    pub job: String,
    /// The verdict about the first run.
    pub verdict: Verdict,
    /// The number of runs.
    pub n_runs: u64,
    /// The first run.
    pub run_id: Uuid,
}

/// The maximum number of findings. People read the summary, so it must not grow with the database.
const MOST_FINDINGS: usize = 1000;

/// The summary of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verification {
    /// The number of checked runs.
    pub n_runs: u64,
    /// The number of runs that replay.
    pub n_replaying: u64,
    /// The findings about the other runs, grouped by job, kind of verdict and step. A run can have
    /// several: one for its own code, and one for each compensation that cannot run. At most 1,000.
    pub findings: Vec<Finding>,
    /// The number of runs that do not replay and belong to no finding, because there are too many
    /// findings.
    pub n_beyond: u64,
}

impl Verification {
    /// Adds the verdicts of one run.
    pub(crate) fn add(&mut self, job: &str, run_id: Uuid, verdicts: impl IntoIterator<Item = Verdict>) {
        self.n_runs += 1;
        let mut told: Vec<Verdict> = Vec::new();
        for verdict in verdicts {
            if verdict != Verdict::Replays && !told.iter().any(|other| other.is_like(&verdict)) {
                told.push(verdict);
            }
        }
        if told.is_empty() {
            self.n_replaying += 1;
            return;
        }
        let n_told = told.into_iter().filter_map(|verdict| self.tell(job, run_id, verdict)).count();
        self.n_beyond += u64::from(n_told == 0);
    }

    /// Adds a run to its finding. `None` if there are too many findings.
    fn tell(&mut self, job: &str, run_id: Uuid, verdict: Verdict) -> Option<()> {
        let has_room = self.findings.len() < MOST_FINDINGS;
        let same = |finding: &&mut Finding| finding.job == job && finding.verdict.is_like(&verdict);
        match self.findings.iter_mut().find(same) {
            Some(finding) => finding.n_runs += 1,
            None if has_room => {
                self.findings.push(Finding { job: job.to_owned(), verdict, n_runs: 1, run_id });
            }
            None => return None,
        }
        Some(())
    }

    /// Whether every run replays.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.n_replaying == self.n_runs
    }

    /// The exit code of a program that only verifies: success if every run replays.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        if self.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_not = self.n_runs - self.n_replaying;
        write!(f, "{} of {} runs in flight replay", self.n_replaying, self.n_runs)?;
        if n_not > 0 {
            write!(f, ", {n_not} do not")?;
        }
        for Finding { job, verdict, n_runs, run_id } in &self.findings {
            let runs = if *n_runs == 1 { "1 run".to_owned() } else { format!("{n_runs} runs") };
            write!(f, "\n{runs} of `{job}`")?;
            if let Some(step) = verdict.step() {
                write!(f, " at step `{step}`")?;
            }
            write!(f, ", such as {run_id}: it {verdict}")?;
        }
        if self.n_beyond > 0 {
            write!(f, "\nand {} more runs", self.n_beyond)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaks(step: &str) -> Verdict {
        Verdict::Breaks { divergence: Divergence::Unmet { recorded: step.to_owned(), count: 1 } }
    }

    #[test]
    fn runs_breaking_at_one_step_share_finding_across_keys() {
        let mut verification = Verification::default();
        for (n, step) in ["reserve[a]", "reserve[b]", "reserve#2", "charge"].iter().enumerate() {
            verification.add("checkout", Uuid::from_u128(n as u128), [breaks(step)]);
        }
        verification.add("checkout", Uuid::nil(), [Verdict::Replays]);
        verification.add("refund", Uuid::nil(), [breaks("reserve[a]")]);
        verification.add("checkout", Uuid::nil(), [Verdict::NoCode]);
        let found: Vec<_> =
            verification.findings.iter().map(|found| (found.job.as_str(), found.n_runs)).collect();
        assert_eq!(found, [("checkout", 3), ("checkout", 1), ("refund", 1), ("checkout", 1)]);
        assert_eq!((verification.n_runs, verification.n_replaying), (7, 1));
        assert!(!verification.is_ok());
    }

    #[test]
    fn summary_caps_findings_and_counts_runs_beyond() {
        let mut verification = Verification::default();
        for n in 0..MOST_FINDINGS + 3 {
            verification.add("checkout", Uuid::nil(), [breaks(&format!("step-{n}"))]);
        }
        assert_eq!((verification.findings.len(), verification.n_beyond), (MOST_FINDINGS, 3));
    }

    #[test]
    fn summary_shows_count_job_step_and_example_run() {
        let mut verification = Verification::default();
        assert_eq!(verification.to_string(), "0 of 0 runs in flight replay");
        verification.add("checkout", Uuid::nil(), [breaks("charge")]);
        verification.add("checkout", Uuid::nil(), [breaks("charge")]);
        let text = verification.to_string();
        let line = "2 runs of `checkout` at step `charge`, such as 00000000-0000-0000-0000-000000000000: it breaks: step `charge`";
        assert!(text.starts_with("0 of 2 runs in flight replay, 2 do not\n"), "{text}");
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn run_counts_once_per_finding_and_compensations_group_by_step() {
        let mut verification = Verification::default();
        let steps = [
            "compensate[reserve[a]]",
            "compensate[reserve[b]]",
            "compensate[left/charge#2]",
            "compensate[left/charge]",
        ];
        for n in 0..2 {
            let verdicts = std::iter::once(Verdict::Replays).chain(steps.map(breaks));
            verification.add("checkout", Uuid::from_u128(n), verdicts);
        }
        let found: Vec<_> =
            verification.findings.iter().map(|found| (found.verdict.step(), found.n_runs)).collect();
        assert_eq!(found, [(Some("compensate[reserve[a]]"), 2), (Some("compensate[left/charge#2]"), 2)]);
        assert_eq!((verification.n_runs, verification.n_replaying, verification.n_beyond), (2, 0, 0));
    }

    #[test]
    fn exit_code_is_failure_when_any_run_does_not_replay() {
        let mut verification = Verification::default();
        verification.add("checkout", Uuid::nil(), [Verdict::Replays]);
        assert_eq!(verification.exit_code(), ExitCode::SUCCESS);
        verification.add("checkout", Uuid::nil(), [Verdict::NoCode]);
        assert_eq!(verification.exit_code(), ExitCode::FAILURE);
    }
}
