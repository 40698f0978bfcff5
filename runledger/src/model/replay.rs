//! Replay: which recorded step belongs to which call, and in which order results reach the workflow's code.
//!
//! Two rules make any futures combinator replay right:
//!
//! * **Keys are claimed when a step is built**, in the order of the code: name, `.key()`, occurrence. The running
//!   number of a claim is its *ordinal*.
//! * **Results are delivered in the order in which they were first observed.** Every row says how many deliveries
//!   the code had seen when it claimed the step (`seen_len`), and how many steps had been claimed before each of them:
//!   also those whose own rows were lost with the attempt. Delivery number *i* waits for its recorded turn, and
//!   for every recorded step that was claimed after at most *i* deliveries. So the code sees the same things in the
//!   same order, and claims the same ordinals again.
//!
//! The list of deliveries is kept as deltas, and a delta is stored only where it differs from the order of the
//! claims, so a plain sequence of steps stores nothing and a wide fan-out stays linear.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::failure::{Failure, FailureKind};

/// A step's name within its run: `charge`, `charge#2`, `reserve[sku-1]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepKey(String);

impl StepKey {
    /// The key as it is stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StepKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A step as it was recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Its key.
    pub key: String,
    /// Its place in the order of claims, from 0.
    pub ordinal: u32,
    /// What identifies its input.
    pub fingerprint: i64,
    /// What it gave.
    pub result: Result<String, Failure>,
    /// How many deliveries the code had seen when it claimed the step.
    pub seen_len: u32,
    /// The last of those deliveries, where they are not those of a plain sequence: the ordinal that was delivered, and the number of claims
    /// before it, in turn.
    pub seen: Option<Vec<u32>>,
}

/// What a claim gives: the key, the place, and the deliveries to record beside the step.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The step's key.
    pub key: StepKey,
    /// Its place in the order of claims.
    pub ordinal: u32,
    /// Deliveries seen so far.
    pub seen_len: u32,
    /// Whether the step is recorded already.
    pub recorded: bool,
}

/// A line of the program's source.
pub type Line = &'static std::panic::Location<'static>;

/// The record and the code disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Divergence {
    /// Another step stands at this place.
    Moved {
        /// The step of the present code.
        present: StepKey,
        /// The step of the record.
        recorded: String,
        /// The place.
        ordinal: u32,
        /// The line of the present step, where it is known.
        line: Option<Line>,
    },
    /// The step is recorded, but with another input.
    Input {
        /// The step.
        key: StepKey,
        /// What identifies the input of the record.
        recorded: i64,
        /// What identifies the input of the present code.
        present: i64,
        /// The line of the present step, where it is known.
        line: Option<Line>,
    },
    /// Recorded steps that the present code does not reach.
    Unmet {
        /// The first of them.
        recorded: String,
        /// How many there are.
        count: usize,
    },
    /// The present code waits for other results than the one that was awaited next.
    Order {
        /// The step whose result was awaited next.
        recorded: String,
    },
    /// What is recorded of a step does not fit the type that the present code gives it.
    Output {
        /// The step.
        key: String,
        /// What does not fit, and where.
        why: String,
    },
    /// The record disagrees with itself.
    Contradiction,
}

impl Divergence {
    /// The key of the step at which the code leaves the record: the recorded one where there are two.
    #[must_use]
    pub fn step(&self) -> Option<&str> {
        match self {
            Self::Moved { recorded, .. } | Self::Unmet { recorded, .. } | Self::Order { recorded } => {
                Some(recorded)
            }
            Self::Input { key, .. } => Some(key.as_str()),
            Self::Output { key, .. } => Some(key),
            Self::Contradiction => None,
        }
    }

    /// The same divergence, with the line of the step at whose claim it was found.
    #[must_use]
    pub fn at(mut self, here: Line) -> Self {
        if let Self::Moved { line, .. } | Self::Input { line, .. } = &mut self {
            *line = Some(here);
        }
        self
    }

    /// The line of the present step, where there is one and it is known.
    #[must_use]
    pub fn line(&self) -> Option<Line> {
        match self {
            Self::Moved { line, .. } | Self::Input { line, .. } => *line,
            Self::Unmet { .. } | Self::Order { .. } | Self::Output { .. } | Self::Contradiction => None,
        }
    }

    /// The divergence as the failure that is shown with the blocked run.
    #[must_use]
    pub fn to_failure(&self) -> Failure {
        Failure::new(FailureKind::Diverged, self.to_string())
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moved { present, recorded, ordinal, .. } => write!(
                f,
                "step `{present}` stands where `{recorded}` was recorded (step {}): the workflow changed while this \
                 run was in flight; nothing was overwritten",
                ordinal.saturating_add(1)
            )?,
            Self::Input { key, recorded, present, .. } => write!(
                f,
                "step `{key}` was recorded with another input: the workflow changed while this run was in flight, or \
                 its input depends on something that is not recorded; nothing was overwritten (input {recorded:016x} is \
                 recorded, {present:016x} is given)"
            )?,
            Self::Unmet { recorded, count } => write!(
                f,
                "step `{recorded}` is recorded, but the workflow no longer reaches it ({count} such): it changed \
                 while this run was in flight; nothing was overwritten"
            )?,
            Self::Order { recorded } => write!(
                f,
                "the result of step `{recorded}` was awaited next when this run was recorded, and the workflow now \
                 waits for others before it: it changed while this run was in flight; nothing was overwritten"
            )?,
            Self::Output { key, why } => write!(
                f,
                "step `{key}`: {why}; the workflow changed while this run was in flight; nothing was overwritten"
            )?,
            Self::Contradiction => f.write_str(
                "the recorded steps contradict one another: two have one place, or one was claimed after a result that \
                 is not recorded, so no workflow can have left them; nothing was overwritten",
            )?,
        }
        if let Some(line) = self.line() {
            write!(f, "; the present step is at {line}")?;
        }
        f.write_str("; restore the old order of steps and resume the run, or enqueue it anew")
    }
}

/// A result that has reached the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Delivery {
    /// Whose result it was.
    ordinal: u32,
    /// How many steps the code had claimed before.
    claims: u32,
}

impl Delivery {
    /// The delivery at a place of a plain sequence of steps, each claimed after the result of the one before.
    const fn in_sequence(place: u32) -> Self {
        Self { ordinal: place, claims: place.saturating_add(1) }
    }
}

/// The state of one replay: what is recorded, what the code has claimed, and what it has been given.
#[derive(Debug, Default)]
pub struct Replay {
    recorded: HashMap<u32, Recorded>,
    ordinals: HashMap<String, u32>,
    /// The recorded order of deliveries.
    order: Vec<Delivery>,
    /// How many recorded steps with this `seen_len` are not claimed yet.
    unclaimed: BTreeMap<u32, usize>,
    occurrences: HashMap<String, u32>,
    delivered: Vec<Delivery>,
    next_ordinal: u32,
    /// How much of `delivered` the database is known to have.
    acknowledged: usize,
}

impl Replay {
    /// A replay over the steps recorded so far.
    #[must_use]
    pub fn new(rows: Vec<Recorded>) -> Self {
        // What is delivered is recorded. Rows that say they have seen more were not left by a workflow, and must not take the worker's memory.
        let most = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        let len = rows.iter().map(|row| row.seen_len).max().unwrap_or(0).min(most);
        let mut replay = Self { order: (0..len).map(Delivery::in_sequence).collect(), ..Self::default() };
        for row in &rows {
            let seen = row.seen.as_deref().unwrap_or_default();
            let from = (row.seen_len as usize).saturating_sub(seen.len() / 2);
            let places = replay.order.get_mut(from..).unwrap_or_default();
            for (place, pair) in places.iter_mut().zip(seen.chunks_exact(2)) {
                *place = Delivery { ordinal: pair[0], claims: pair[1] };
            }
            *replay.unclaimed.entry(row.seen_len).or_default() += 1;
        }
        replay.acknowledged = replay.order.len();
        replay.ordinals = rows.iter().map(|row| (row.key.clone(), row.ordinal)).collect();
        replay.recorded = rows.into_iter().map(|row| (row.ordinal, row)).collect();
        replay
    }

    /// Claims the next step of the code.
    ///
    /// # Errors
    /// A [`Divergence`] when the record has another step at this place, has this step at another place, or has it
    /// with another input.
    pub fn claim(&mut self, name: &str, key: Option<&str>, fingerprint: i64) -> Result<Claim, Divergence> {
        let key = self.next_key(name, key);
        let ordinal = self.next_ordinal;
        let recorded = match (self.recorded.get(&ordinal), self.ordinals.get(key.as_str())) {
            (None, None) => false,
            (Some(row), _) if row.key != key.as_str() => {
                return Err(Divergence::Moved {
                    present: key,
                    recorded: row.key.clone(),
                    ordinal,
                    line: None,
                });
            }
            (Some(row), _) if row.fingerprint != fingerprint => {
                let (recorded, present) = (row.fingerprint, fingerprint);
                return Err(Divergence::Input { key, recorded, present, line: None });
            }
            (Some(row), _) => {
                let seen_len = row.seen_len;
                self.met(seen_len);
                true
            }
            (None, Some(place)) => {
                let (recorded, ordinal) = (key.0.clone(), *place);
                return Err(Divergence::Moved { present: key, recorded, ordinal, line: None });
            }
        };
        self.next_ordinal += 1;
        Ok(Claim { key, ordinal, seen_len: self.seen_len(), recorded })
    }

    /// The deliveries to store beside a step that was claimed after `seen_len` of them, where they are not in the
    /// order of claims. Everything not known to be stored is repeated, since an earlier row may have been lost.
    #[must_use]
    pub fn seen(&self, seen_len: u32) -> Option<Vec<u32>> {
        let to = (seen_len as usize).min(self.delivered.len());
        let from = self.acknowledged.min(to);
        let delta = &self.delivered[from..to];
        let in_sequence = (from..).zip(delta).all(|(place, delivery)| {
            u32::try_from(place).is_ok_and(|place| *delivery == Delivery::in_sequence(place))
        });
        (!in_sequence)
            .then(|| delta.iter().flat_map(|delivery| [delivery.ordinal, delivery.claims]).collect())
    }

    /// Notes that the database has the step claimed after `seen_len` deliveries.
    pub fn acknowledge(&mut self, seen_len: u32) {
        self.acknowledged = self.acknowledged.max(seen_len as usize);
    }

    /// What was recorded for a step.
    #[must_use]
    pub fn result(&self, ordinal: u32) -> Option<&Result<String, Failure>> {
        self.recorded.get(&ordinal).map(|row| &row.result)
    }

    /// Whether the result of this step may reach the code now.
    #[must_use]
    pub fn may_deliver(&self, ordinal: u32) -> bool {
        let place = self.delivered.len();
        let turn = self
            .order
            .get(place)
            .is_none_or(|next| next.ordinal == ordinal && next.claims <= self.next_ordinal);
        turn && self.unclaimed.first_key_value().is_none_or(|(seen_len, _)| *seen_len as usize > place)
    }

    /// Whether the code of the record has received the result of this step, as far as a later row tells.
    #[must_use]
    pub fn was_delivered(&self, ordinal: u32) -> bool {
        self.order.iter().any(|delivery| delivery.ordinal == ordinal)
    }

    /// Whether the code has claimed every recorded step, and received what was received before.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.unclaimed.is_empty() && self.delivered.len() >= self.order.len()
    }

    /// Notes that the result of this step has reached the code.
    pub fn deliver(&mut self, ordinal: u32) {
        self.delivered.push(Delivery { ordinal, claims: self.next_ordinal });
    }

    /// The divergence of a workflow that has ended, or cannot go on, without reaching recorded steps.
    #[must_use]
    pub fn unmet(&self) -> Option<Divergence> {
        let count = self.unclaimed.values().sum();
        let first = self
            .recorded
            .values()
            .filter(|row| row.ordinal >= self.next_ordinal)
            .min_by_key(|row| row.ordinal)?;
        Some(Divergence::Unmet { recorded: first.key.clone(), count })
    }

    /// The divergence of a workflow that waits for recorded results which cannot come before others that it does not
    /// wait for.
    #[must_use]
    pub fn stalled(&self) -> Divergence {
        let next = self.order.get(self.delivered.len());
        // What the code could have and does not take comes before what it would reach with it.
        let untaken =
            next.filter(|next| self.may_deliver(next.ordinal)).or(next.filter(|_| self.unmet().is_none()));
        match untaken.and_then(|next| self.recorded.get(&next.ordinal)) {
            Some(row) => Divergence::Order { recorded: row.key.clone() },
            None => self.unmet().unwrap_or(Divergence::Contradiction),
        }
    }

    fn seen_len(&self) -> u32 {
        u32::try_from(self.delivered.len()).unwrap_or(u32::MAX)
    }

    fn met(&mut self, seen_len: u32) {
        if let Some(count) = self.unclaimed.get_mut(&seen_len) {
            *count -= 1;
            if *count == 0 {
                self.unclaimed.remove(&seen_len);
            }
        }
    }

    fn next_key(&mut self, name: &str, key: Option<&str>) -> StepKey {
        let base = match key {
            Some(key) => format!("{name}[{key}]"),
            None => name.to_owned(),
        };
        let occurrence = self.occurrences.entry(base.clone()).or_default();
        *occurrence += 1;
        match *occurrence {
            1 => StepKey(base),
            n => StepKey(format!("{base}#{n}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, ordinal: u32, seen_len: u32, seen: Option<&[u32]>) -> Recorded {
        let result = Ok(format!("\"{key}\""));
        Recorded {
            key: key.into(),
            ordinal,
            fingerprint: 7,
            result,
            seen_len,
            seen: seen.map(<[u32]>::to_vec),
        }
    }

    fn claim(replay: &mut Replay, name: &str) -> Claim {
        replay.claim(name, None, 7).unwrap_or_else(|divergence| unreachable!("{divergence}"))
    }

    #[test]
    fn keys_are_names_counted_per_occurrence() {
        let mut replay = Replay::default();
        let keys = [
            ("charge", None),
            ("charge", None),
            ("reserve", Some("a")),
            ("reserve", Some("a")),
            ("charge", None),
        ]
        .map(|(name, key)| replay.claim(name, key, 0).map(|claim| claim.key.to_string()));
        assert_eq!(
            keys.map(Result::unwrap_or_default),
            ["charge", "charge#2", "reserve[a]", "reserve[a]#2", "charge#3"]
        );
    }

    #[test]
    fn a_sequence_of_steps_stores_no_order() {
        let mut replay = Replay::default();
        for _ in 0..5 {
            let step = claim(&mut replay, "step");
            assert_eq!(replay.seen(step.seen_len), None);
            replay.deliver(step.ordinal);
        }
    }

    #[test]
    fn an_order_that_is_not_that_of_the_claims_is_stored_until_it_is_acknowledged() {
        let mut replay = Replay::default();
        let (a, b) = (claim(&mut replay, "a"), claim(&mut replay, "b"));
        replay.deliver(b.ordinal);
        let c = claim(&mut replay, "c");
        assert_eq!(replay.seen(c.seen_len), Some(vec![1, 2]));
        replay.deliver(a.ordinal);
        let d = claim(&mut replay, "d");
        assert_eq!(replay.seen(d.seen_len), Some(vec![1, 2, 0, 3]));
        replay.acknowledge(c.seen_len);
        assert_eq!(replay.seen(d.seen_len), Some(vec![0, 3]));
    }

    #[test]
    fn results_are_delivered_in_the_order_in_which_they_were_observed() {
        let rows = vec![row("a", 0, 0, None), row("b", 1, 0, None), row("c", 2, 1, Some(&[1, 2]))];
        let mut replay = Replay::new(rows);
        claim(&mut replay, "a");
        assert!(!replay.may_deliver(0), "`b` is not claimed yet and was before any delivery");
        claim(&mut replay, "b");
        assert!(!replay.may_deliver(0), "`b` was observed first");
        assert!(replay.may_deliver(1));
        replay.deliver(1);
        assert!(!replay.may_deliver(0), "`c` was claimed before `a` was observed");
        claim(&mut replay, "c");
        assert!(replay.may_deliver(0) && replay.may_deliver(2));
    }

    #[test]
    fn a_step_in_flight_at_the_crash_is_claimed_at_its_old_place() {
        let mut replay = Replay::new(vec![row("a", 0, 0, None), row("a2", 2, 1, Some(&[0, 2]))]);
        assert!(claim(&mut replay, "a").recorded);
        assert!(!replay.may_deliver(0), "`b`, whose row was lost, was claimed before `a` was observed");
        assert!(!claim(&mut replay, "b").recorded);
        replay.deliver(0);
        assert!(claim(&mut replay, "a2").recorded);
        assert_eq!(replay.unmet(), None);
    }

    #[test]
    fn another_step_at_a_recorded_place_diverges() {
        let mut replay = Replay::new(vec![row("reserve", 0, 0, None), row("charge", 1, 1, None)]);
        claim(&mut replay, "reserve");
        replay.deliver(0);
        let divergence = replay.claim("bill", None, 7).map_err(|divergence| divergence.to_string());
        assert!(divergence.is_err_and(|text| text.contains("`bill` stands where `charge` was recorded")));
    }

    #[test]
    fn inserting_a_step_before_others_keeps_the_keys_of_the_finished_ones() {
        let mut replay = Replay::new(vec![row("charge", 0, 0, None)]);
        assert!(
            matches!(replay.claim("audit", None, 7), Err(Divergence::Moved { recorded, .. }) if recorded == "charge")
        );
        assert_eq!(claim(&mut replay, "charge").key.as_str(), "charge");
    }

    #[test]
    fn a_recorded_step_with_another_input_diverges() {
        let mut replay = Replay::new(vec![row("charge", 0, 0, None)]);
        assert!(matches!(replay.claim("charge", None, 8), Err(Divergence::Input { .. })));
    }

    #[test]
    fn a_recorded_step_that_is_never_reached_diverges() {
        let mut replay = Replay::new(vec![row("reserve", 0, 0, None), row("charge", 1, 1, None)]);
        claim(&mut replay, "reserve");
        replay.deliver(0);
        assert!(
            matches!(replay.unmet(), Some(Divergence::Unmet { recorded, count: 1 }) if recorded == "charge")
        );
    }
}
