//! Everything that the client did and learned, stored outside the database.

use std::collections::{BTreeSet, HashMap, HashSet};

use runledger_tests::check::calls::Submission;
use runledger_tests::check::pauses::Pause;
use runledger_tests::check::signals::Sent;
use runledger_tests::check::{Facts, Violations};
use uuid::Uuid;

/// A link to a graph's gate that the client used after revoking it.
#[derive(Clone, Copy, Debug)]
pub struct Revoked {
    /// The graph.
    pub run_id: Uuid,
    /// When the revocation began.
    pub from_us: i64,
    /// When the decision through the link was answered.
    pub until_us: i64,
    /// Whether the decision was accepted.
    pub decided: bool,
}

/// The client's history.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The runs that it enqueued, including reruns, forks and revivals.
    pub calls: Vec<Submission>,
    /// The signals that it sent.
    pub signals: Vec<Sent>,
    /// The runs that it saw paused.
    pub pauses: Vec<Pause>,
    /// The gate links that it revoked and then used.
    pub revoked: Vec<Revoked>,
    /// The runs that cannot complete, each with the state in which it must end.
    pub ends: HashMap<Uuid, &'static str>,
    /// The runs that may end without completing.
    pub hopeless: BTreeSet<Uuid>,
}

impl History {
    /// Summarizes signals, pauses, links between runs and runs that cannot complete. `None` if
    /// there are none.
    #[must_use]
    pub fn counts(&self) -> Option<String> {
        let n_links = self.calls.iter().filter(|call| call.origin.is_some()).count();
        let (n_signals, n_pauses, n_ends) = (self.signals.len(), self.pauses.len(), self.ends.len());
        (n_signals + n_pauses + n_links + n_ends > 0).then(|| {
            format!("{n_signals} signals, {n_pauses} pauses, {n_links} other goes at runs, {n_ends} runs that cannot complete")
        })
    }

    /// Forgets what happened to these runs, because a server may have lost it. They may then end in
    /// any state.
    pub fn forget(&mut self, runs: &HashSet<Uuid>) {
        self.signals.retain(|sent| !runs.contains(&sent.run_id));
        self.pauses.retain(|pause| !runs.contains(&pause.run_id));
        self.revoked.retain(|link| !runs.contains(&link.run_id));
        let ends = std::mem::take(&mut self.ends);
        let (forgotten, kept): (Vec<_>, Vec<_>) = ends.into_iter().partition(|(run, _)| runs.contains(run));
        self.hopeless.extend(forgotten.into_iter().map(|(run_id, _)| run_id));
        self.ends = kept.into_iter().collect();
    }

    /// Decisions that a gate accepted from a revoked link.
    #[must_use]
    pub fn decided_by_revoked_links(&self) -> Violations {
        let decided = self.revoked.iter().filter(|link| link.decided);
        decided.map(|link| format!("a revoked link decided the gate of graph {}", link.run_id)).collect()
    }

    /// Runs that ended in another state than the one possible.
    #[must_use]
    pub fn misended(&self, facts: &Facts) -> Violations {
        let wrong = facts.ends.iter().filter_map(|end| {
            let expected = self.ends.get(&end.run_id)?;
            (end.state != *expected)
                .then(|| format!("run {} {} instead of {expected}", end.run_id, end.state))
        });
        wrong.collect()
    }
}

#[cfg(test)]
mod tests {
    use runledger_tests::check::facts::Written;

    use super::*;

    #[test]
    fn impossible_outcome_is_found_unless_server_lost_it() {
        let run_id = Uuid::now_v7();
        let end = Written {
            run_id,
            key: String::new(),
            output: None,
            at_us: 1,
            attempt: 1,
            state: "completed".to_owned(),
            is_undoable: false,
        };
        let mut facts = Facts::default();
        facts.ends.push(end);
        let mut history = History { ends: HashMap::from([(run_id, "cancelled")]), ..History::default() };
        assert_eq!(history.misended(&facts).len(), 1);
        history.forget(&HashSet::from([run_id]));
        assert_eq!((history.misended(&facts).len(), history.hopeless.len()), (0, 1));
    }

    #[test]
    fn decision_by_revoked_link_is_found_unless_revocation_was_lost() {
        let link = |decided| Revoked { run_id: Uuid::now_v7(), from_us: 1, until_us: 2, decided };
        let revoked = vec![link(true), link(false)];
        let run_id = revoked[0].run_id;
        let mut history = History { revoked, ..History::default() };
        assert_eq!(history.decided_by_revoked_links().len(), 1);
        history.forget(&HashSet::from([run_id]));
        assert_eq!((history.decided_by_revoked_links().len(), history.revoked.len()), (0, 1));
    }
}
