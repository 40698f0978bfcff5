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

mod kind;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::deliveries::{Delivery, order_of, stored_from};
pub use super::divergence::{Divergence, Line};
use super::failure::Failure;
use super::history_size::record_size;
use super::name::MAX_STEP_KEY;
pub use super::scope::Scope;

use super::scope::{LOCAL_BITS, is_from, local};
pub use kind::StepKind;

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
    /// The call that takes back what it did.
    pub undo: Option<String>,
}

impl Recorded {
    /// Whether it is a step in which the engine has taken something back by itself, after the code: nothing had reached the code of that attempt, while code
    /// that takes something back has received what it takes back.
    #[must_use]
    pub fn is_undone_by_engine(&self) -> bool {
        let undone = self.key.strip_prefix("undo[").and_then(|key| key.strip_suffix(']'));
        self.seen_len == 0 && undone.is_some_and(|key| Scope::of_undo(key).base == self.ordinal)
    }
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

/// The state of one replay: what is recorded, what the code has claimed, and what it has been given.
#[derive(Debug, Default)]
pub struct Replay {
    recorded: HashMap<u64, Recorded>,
    ordinals: HashMap<String, u64>,
    /// The recorded order of deliveries.
    order: Vec<Delivery>,
    /// The place of each delivery in `order`, by the ordinal of its step.
    places: HashMap<u64, usize>,
    /// How many recorded steps with this `seen_len` are not claimed yet.
    unclaimed: BTreeMap<u32, usize>,
    occurrences: HashMap<String, u32>,
    delivered: Vec<Delivery>,
    /// The scopes that have claimed, by their base, with how many steps each has claimed.
    claimed: HashMap<u64, (String, u64)>,
    n_claims: u64,
    /// The calls that take back what steps did, in the order in which these were recorded or claimed, with the steps' keys.
    undos: Vec<(String, String)>,
    /// The place in `undos` of the first call of each step, by the step's key.
    undo_places: HashMap<String, usize>,
    /// What was decided of changes to the code, by their names.
    patches: HashMap<String, bool>,
    /// How much of `delivered` the database is known to have.
    acknowledged: usize,
    /// Whether the fingerprints of inputs tell nothing here.
    ignores_inputs: bool,
    /// Whether a result has reached the code of the record whose step is not there.
    has_gaps: bool,
}

impl Replay {
    /// A replay over the steps recorded so far.
    #[must_use]
    pub fn new(rows: Vec<Recorded>) -> Self {
        let mut replay = Self { order: order_of(&rows), ..Self::default() };
        for row in &rows {
            *replay.unclaimed.entry(row.seen_len).or_default() += 1;
        }
        replay.acknowledged = replay.order.len();
        for (place, delivery) in replay.order.iter().enumerate() {
            replay.places.entry(delivery.ordinal).or_insert(place);
        }
        let mut undos: Vec<&Recorded> = rows.iter().filter(|row| row.undo.is_some()).collect();
        undos.sort_unstable_by_key(|row| (row.seen_len, row.ordinal));
        for row in undos {
            if let Some(undo) = &row.undo {
                replay.note_undo(&row.key, undo.clone());
            }
        }
        replay.ordinals = rows.iter().map(|row| (row.key.clone(), row.ordinal)).collect();
        // None has seen its own result, but for signals, which are recorded when the code has them.
        let n_seen = |row: &Recorded| {
            let seen_len = row.seen_len as usize;
            seen_len - usize::from(replay.places.get(&row.ordinal).is_some_and(|place| *place < seen_len))
        };
        replay.has_gaps = rows.iter().any(|row| n_seen(row) >= rows.len());
        replay.recorded = rows.into_iter().map(|row| (row.ordinal, row)).collect();
        replay.has_gaps |= replay.order.iter().any(|seen| !replay.recorded.contains_key(&seen.ordinal));
        replay
    }

    /// The bytes of the records: keys, results, compensations, and the overhead of each ([`record_size`]).
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        let of = |row: &Recorded| {
            let of_failure = |failure: &Failure| {
                failure.message.len() + failure.causes.iter().map(String::len).sum::<usize>()
            };
            let result = row.result.as_ref().map_or_else(of_failure, String::len);
            record_size(&row.key, result + row.undo.as_ref().map_or(0, String::len))
        };
        self.recorded.values().map(of).sum()
    }

    /// The same, whatever the fingerprints of inputs say: they are keyed, and the key is not here.
    #[must_use]
    pub fn ignoring_inputs(self) -> Self {
        Self { ignores_inputs: true, ..self }
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
        self.claim_any(scope, name, key, &[fingerprint])
    }

    /// Claims the next step of a scope, whose input may be on record under any of these fingerprints. The first is the present one.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub fn claim_any(
        &mut self,
        scope: &Scope,
        name: &str,
        key: Option<&str>,
        fingerprints: &[i64],
    ) -> Result<Claim, Divergence> {
        let ordinal = self.next_ordinal(scope)?;
        let key = self.next_key(&scope.path, name, key);
        let recorded = match (self.recorded.get(&ordinal), self.ordinals.get(key.as_str())) {
            // Without branches, the limits of names and keys suffice.
            (None, None) if !scope.path.is_empty() && key.as_str().len() > MAX_STEP_KEY => {
                return Err(Divergence::LongKey { length: key.as_str().len(), name: name.to_owned() });
            }
            (None, None) => false,
            (Some(row), _) if row.key != key.as_str() => {
                return Err(Divergence::Moved {
                    present: key,
                    recorded: row.key.clone(),
                    ordinal,
                    line: None,
                });
            }
            (Some(row), _) if !self.ignores_inputs && !fingerprints.contains(&row.fingerprint) => {
                let (recorded, present) = (row.fingerprint, fingerprints.first().copied().unwrap_or(0));
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

    /// Whether the code of the record claimed this step, at the next place of the scope, after no more results than the present one has received: it is on
    /// record there, or it has not ended, and a step of this name is on record behind it that was.
    #[must_use]
    pub fn is_due(&self, scope: &Scope, name: &str, key: Option<&str>) -> bool {
        let n_claimed = self.claimed.get(&scope.base).map_or(0, |(_, n_claimed)| *n_claimed);
        let next = scope.base | n_claimed;
        let was_by_now = |row: &Recorded| row.seen_len <= self.seen_len();
        if let Some(row) = self.recorded.get(&next) {
            return was_by_now(row) && row.key == self.key_after(&scope.path, name, key).0;
        }
        if self.unclaimed.range(..=self.seen_len()).next().is_none() {
            return false;
        }
        let of_name = |row: &Recorded| {
            let rest = row.key.strip_prefix(&scope.path).and_then(|rest| rest.strip_prefix(name));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['[', '#']))
        };
        let mut behind = self.recorded.iter().filter(|(ordinal, _)| is_from(**ordinal, next));
        behind.any(|(_, row)| was_by_now(row) && of_name(row))
    }

    /// Claims the step that takes back what another did. It has a place of its own, whatever the code has claimed.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub fn claim_undo(&mut self, key: &str) -> Result<Claim, Divergence> {
        self.claim_in(&Scope::of_undo(key), "undo", Some(key), 0)
    }

    /// Claims the step that says which of the steps of a saga are taken back that the code has dropped. The saga is known by its first step.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub fn claim_saga(&mut self, first: &str) -> Result<Claim, Divergence> {
        self.claim_in(&Scope::of_saga(first), "saga.undo", Some(first), 0)
    }

    /// Notes the call that takes back what a step did.
    pub fn note_undo(&mut self, key: &str, undo: String) {
        self.undo_places.entry(key.to_owned()).or_insert(self.undos.len());
        self.undos.push((key.to_owned(), undo));
    }

    /// The call that takes back what a step did.
    #[must_use]
    pub fn undo_of(&self, key: &str) -> Option<String> {
        let place = *self.undo_places.get(key)?;
        self.undos.get(place).map(|(_, undo)| undo.clone())
    }

    /// The steps whose effects can be taken back and are not, the last first, each with the call that does it.
    #[must_use]
    pub fn to_undo(&self) -> Vec<(String, String)> {
        let is_undone = |key: &str| self.ordinals.contains_key(&format!("undo[{key}]"));
        self.undos.iter().rev().filter(|(key, _)| !is_undone(key)).cloned().collect()
    }

    /// A branch of a scope, counted per occurrence.
    #[must_use]
    pub fn branch(&mut self, scope: &Scope, name: &str) -> Scope {
        // Counted apart from steps of the same name.
        let base = format!("{}{name}/", scope.path);
        match self.next_occurrence(base.clone()) {
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
        let claim = if is_recorded || is_new {
            Some(self.claim_in(&Scope::of_patch(name), "patched", Some(name), 0)?)
        } else {
            None
        };
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
        stored_from(from, &self.delivered[from..to])
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
        self.places.contains_key(&ordinal)
    }

    /// Whether the code has claimed every recorded step, and received what was received before.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.unclaimed.is_empty() && self.delivered.len() >= self.order.len()
    }

    /// Whether a step that is not recorded may begin: the code has met the whole record, for which code that follows it needs nothing new.
    ///
    /// Unless steps are missing that the code of the record had received: those have to be done again before it can be met. A failover to a server that is
    /// behind leaves such a record where a worker that has not noticed yet writes what it has in hand.
    #[must_use]
    pub fn may_begin(&self) -> bool {
        self.has_gaps || self.is_met()
    }

    /// Notes that the result of this step has reached the code.
    pub fn deliver(&mut self, ordinal: u64) {
        self.delivered.push(Delivery { ordinal, claims: self.n_claims });
    }

    /// The step whose result has reached the code last.
    #[must_use]
    pub fn last_delivered(&self) -> Option<&str> {
        let last = self.delivered.last()?;
        self.recorded.get(&last.ordinal).map(|row| row.key.as_str())
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

    /// How many results the code has received.
    #[must_use]
    pub fn seen_len(&self) -> u32 {
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
        let next = self.key_after(path, name, key);
        self.next_occurrence(key_base(path, name, key));
        next
    }

    /// Counts what has this name, and gives its number, from 1.
    fn next_occurrence(&mut self, base: String) -> u32 {
        let occurrence = self.occurrences.entry(base).or_default();
        *occurrence += 1;
        *occurrence
    }

    /// The key that the next step of this name has.
    fn key_after(&self, path: &str, name: &str, key: Option<&str>) -> StepKey {
        let base = key_base(path, name, key);
        match self.occurrences.get(&base) {
            None => StepKey(base),
            Some(n) => StepKey(format!("{base}#{}", n + 1)),
        }
    }
}

/// A key without its number.
fn key_base(path: &str, name: &str, key: Option<&str>) -> String {
    match key {
        Some(key) => format!("{path}{name}[{key}]"),
        None => format!("{path}{name}"),
    }
}
