//! Replay: which recorded step belongs to which call, and in which order results reach the workflow's code.
//!
//! Two rules make any futures combinator replay right:
//!
//! * **Keys are claimed when a step is built**, in the order of the code: scope, name, `.key()`, occurrence. The running
//!   number of a claim in its scope is its *ordinal*. A scope is a branch of the workflow (`wf.branch`): branches that
//!   are polled in another order claim the same ordinals, since each counts for itself.
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

pub use super::divergence::{Divergence, Line};
use super::failure::Failure;
pub use super::scope::Scope;
use super::scope::{LOCAL_BITS, local};

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
    /// Its scope and its place there in the order of claims, from 0.
    pub ordinal: u64,
    /// What identifies its input.
    pub fingerprint: i64,
    /// What it gave.
    pub result: Result<String, Failure>,
    /// How many deliveries the code had seen when it claimed the step.
    pub seen_len: u32,
    /// The last of those deliveries, where they are not those of a plain sequence: the ordinal that was delivered, and the number of claims
    /// before it, in turn.
    pub seen: Option<Vec<u64>>,
}

/// What a claim gives: the key, the place, and the deliveries to record beside the step.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The step's key.
    pub key: StepKey,
    /// Its scope and its place there in the order of claims.
    pub ordinal: u64,
    /// Deliveries seen so far.
    pub seen_len: u32,
    /// Whether the step is recorded already.
    pub recorded: bool,
}

/// A result that has reached the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Delivery {
    /// Whose result it was.
    ordinal: u64,
    /// How many steps the code had claimed before.
    claims: u64,
}

impl Delivery {
    /// The delivery at a place of a plain sequence of steps, each claimed after the result of the one before.
    const fn in_sequence(place: u64) -> Self {
        Self { ordinal: place, claims: place.saturating_add(1) }
    }
}

/// The state of one replay: what is recorded, what the code has claimed, and what it has been given.
#[derive(Debug, Default)]
pub struct Replay {
    recorded: HashMap<u64, Recorded>,
    ordinals: HashMap<String, u64>,
    /// The recorded order of deliveries.
    order: Vec<Delivery>,
    /// How many recorded steps with this `seen_len` are not claimed yet.
    unclaimed: BTreeMap<u32, usize>,
    occurrences: HashMap<String, u32>,
    delivered: Vec<Delivery>,
    /// The scopes that have claimed, by their base, with how many steps each has claimed.
    claimed: HashMap<u64, (String, u64)>,
    n_claims: u64,
    /// What was decided of changes to the code, by their names.
    patches: HashMap<String, bool>,
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
        let mut replay =
            Self { order: (0..u64::from(len)).map(Delivery::in_sequence).collect(), ..Self::default() };
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
        self.claim_in(&Scope::root(), name, key, fingerprint)
    }

    /// Claims the next step of a scope.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub fn claim_in(
        &mut self,
        scope: &Scope,
        name: &str,
        key: Option<&str>,
        fingerprint: i64,
    ) -> Result<Claim, Divergence> {
        let ordinal = self.next_ordinal(scope)?;
        let key = self.next_key(&scope.path, name, key);
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
        if let Some((_, n_claimed)) = self.claimed.get_mut(&scope.base) {
            *n_claimed += 1;
        }
        self.n_claims += 1;
        Ok(Claim { key, ordinal, seen_len: self.seen_len(), recorded })
    }

    /// A branch of a scope, counted per occurrence.
    #[must_use]
    pub fn branch(&mut self, scope: &Scope, name: &str) -> Scope {
        // Counted apart from steps of the same name.
        let base = format!("{}{name}/", scope.path);
        let occurrence = self.occurrences.entry(base.clone()).or_default();
        *occurrence += 1;
        match *occurrence {
            1 => Scope::at(base),
            n => Scope::at(format!("{}{name}#{n}/", scope.path)),
        }
    }

    /// Whether a change of the code is in force for this run, decided once a run: it is where the run has recorded that, and where it has not come
    /// beyond this place yet, which the claim is to record.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub fn patched(&mut self, name: &str) -> Result<(bool, Option<Claim>), Divergence> {
        if let Some(decided) = self.patches.get(name) {
            return Ok((*decided, None));
        }
        let is_recorded = self.ordinals.contains_key(&format!("patched[{name}]"));
        let is_new = self.unclaimed.is_empty();
        let claim = if is_recorded || is_new { Some(self.claim("patched", Some(name), 0)?) } else { None };
        self.patches.insert(name.to_owned(), claim.is_some());
        Ok((claim.is_some(), claim))
    }

    fn next_ordinal(&mut self, scope: &Scope) -> Result<u64, Divergence> {
        let (path, n_claimed) = self.claimed.entry(scope.base).or_insert_with(|| (scope.path.clone(), 0));
        if *path != scope.path || *n_claimed >> LOCAL_BITS != 0 {
            return Err(Divergence::Crowded { scope: scope.path.clone() });
        }
        Ok(scope.base | *n_claimed)
    }

    /// The deliveries to store beside a step that was claimed after `seen_len` of them, where they are not in the
    /// order of claims. Everything not known to be stored is repeated, since an earlier row may have been lost.
    #[must_use]
    pub fn seen(&self, seen_len: u32) -> Option<Vec<u64>> {
        let to = (seen_len as usize).min(self.delivered.len());
        let from = self.acknowledged.min(to);
        let delta = &self.delivered[from..to];
        let in_sequence =
            (from..).zip(delta).all(|(place, delivery)| *delivery == Delivery::in_sequence(place as u64));
        (!in_sequence)
            .then(|| delta.iter().flat_map(|delivery| [delivery.ordinal, delivery.claims]).collect())
    }

    /// Notes that the database has the step claimed after `seen_len` deliveries.
    pub fn acknowledge(&mut self, seen_len: u32) {
        self.acknowledged = self.acknowledged.max(seen_len as usize);
    }

    /// What was recorded for a step.
    #[must_use]
    pub fn result(&self, ordinal: u64) -> Option<&Result<String, Failure>> {
        self.recorded.get(&ordinal).map(|row| &row.result)
    }

    /// Whether the result of this step may reach the code now.
    #[must_use]
    pub fn may_deliver(&self, ordinal: u64) -> bool {
        let place = self.delivered.len();
        let turn =
            self.order.get(place).is_none_or(|next| next.ordinal == ordinal && next.claims <= self.n_claims);
        turn && self.unclaimed.first_key_value().is_none_or(|(seen_len, _)| *seen_len as usize > place)
    }

    /// Whether the code of the record has received the result of this step, as far as a later row tells.
    #[must_use]
    pub fn was_delivered(&self, ordinal: u64) -> bool {
        self.order.iter().any(|delivery| delivery.ordinal == ordinal)
    }

    /// Whether the code has claimed every recorded step, and received what was received before.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.unclaimed.is_empty() && self.delivered.len() >= self.order.len()
    }

    /// Notes that the result of this step has reached the code.
    pub fn deliver(&mut self, ordinal: u64) {
        self.delivered.push(Delivery { ordinal, claims: self.n_claims });
    }

    /// The divergence of a workflow that has ended, or cannot go on, without reaching recorded steps.
    #[must_use]
    pub fn unmet(&self) -> Option<Divergence> {
        let count = self.unclaimed.values().sum();
        let first = self
            .recorded
            .values()
            .filter(|row| !self.has_claimed(row.ordinal))
            .min_by_key(|row| (row.seen_len, row.ordinal))?;
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

    fn has_claimed(&self, ordinal: u64) -> bool {
        let base = ordinal - local(ordinal);
        self.claimed.get(&base).is_some_and(|(_, n_claimed)| local(ordinal) < *n_claimed)
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

    fn next_key(&mut self, path: &str, name: &str, key: Option<&str>) -> StepKey {
        let base = match key {
            Some(key) => format!("{path}{name}[{key}]"),
            None => format!("{path}{name}"),
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

    fn row(key: &str, ordinal: u64, seen_len: u32, seen: Option<&[u64]>) -> Recorded {
        let result = Ok(format!("\"{key}\""));
        Recorded {
            key: key.into(),
            ordinal,
            fingerprint: 7,
            result,
            seen_len,
            seen: seen.map(<[u64]>::to_vec),
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

    #[test]
    fn branches_claim_the_same_keys_and_ordinals_whatever_order_they_are_polled_in() {
        let both = |first_is_left: bool| {
            let mut replay = Replay::default();
            let (left, right) =
                (replay.branch(&Scope::root(), "left"), replay.branch(&Scope::root(), "right"));
            let order = if first_is_left { [&left, &right, &left] } else { [&right, &left, &left] };
            let mut claims = order.map(|scope| {
                let claim = replay.claim_in(scope, "step", None, 0);
                claim.map(|claim| (claim.key.to_string(), claim.ordinal)).unwrap_or_default()
            });
            claims.sort_unstable();
            claims
        };
        assert_eq!(both(true), both(false));
        assert_eq!(both(true).map(|(key, _)| key), ["left/step", "left/step#2", "right/step"]);
    }

    #[test]
    fn branches_of_one_name_and_nested_ones_differ() {
        let mut replay = Replay::default();
        let first = replay.branch(&Scope::root(), "item");
        let second = replay.branch(&Scope::root(), "item");
        let inner = replay.branch(&second, "item");
        let keys = [&first, &second, &inner].map(|scope| {
            replay.claim_in(scope, "item", None, 0).map(|claim| claim.key.to_string()).unwrap_or_default()
        });
        assert_eq!(keys, ["item/item", "item#2/item", "item#2/item/item"]);
    }

    #[test]
    fn a_step_of_a_branch_that_is_never_reached_diverges() {
        let mut first = Replay::default();
        let left = first.branch(&Scope::root(), "left");
        let claimed =
            first.claim_in(&left, "charge", None, 7).unwrap_or_else(|error| unreachable!("{error}"));
        let mut replay = Replay::new(vec![row("left/charge", claimed.ordinal, 0, None)]);
        assert!(
            matches!(replay.unmet(), Some(Divergence::Unmet { recorded, .. }) if recorded == "left/charge")
        );
        let left = replay.branch(&Scope::root(), "left");
        let other = replay.claim_in(&left, "bill", None, 7);
        assert!(matches!(other, Err(Divergence::Moved { recorded, .. }) if recorded == "left/charge"));
    }

    #[test]
    fn a_change_is_in_force_where_the_run_has_not_come_beyond_its_place() {
        let mut fresh = Replay::default();
        claim(&mut fresh, "reserve");
        let (is_patched, marker) = fresh.patched("mail").unwrap_or_else(|error| unreachable!("{error}"));
        assert!(is_patched && marker.is_some_and(|marker| !marker.recorded && marker.ordinal == 1));
        assert_eq!(fresh.patched("mail"), Ok((true, None)), "decided once");

        let mut beyond = Replay::new(vec![row("reserve", 0, 0, None), row("charge", 1, 1, None)]);
        claim(&mut beyond, "reserve");
        beyond.deliver(0);
        assert_eq!(beyond.patched("mail"), Ok((false, None)));
        assert!(claim(&mut beyond, "charge").recorded, "the old steps keep their places");
        assert_eq!(beyond.patched("mail"), Ok((false, None)), "decided once");

        let mut marker = row("patched[mail]", 1, 1, None);
        marker.fingerprint = 0;
        let mut again = Replay::new(vec![row("reserve", 0, 0, None), marker, row("mail", 2, 1, None)]);
        claim(&mut again, "reserve");
        again.deliver(0);
        assert!(matches!(again.patched("mail"), Ok((true, Some(Claim { recorded: true, .. })))));
    }
}
