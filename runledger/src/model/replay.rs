//! Replay: assigns recorded steps to the calls of a workflow, and orders the results that its code
//! receives.
//!
//! Two rules make every futures combinator replay correctly:
//!
//! * **The code claims a key when it builds a step**, in program order: scope, name, `.key()`,
//!   occurrence. The number of a claim within its scope is its *ordinal*. A scope is a branch of
//!   the workflow (`wf.branch`). Each scope counts for itself, so branches claim the same ordinals
//!   in any polling order.
//! * **Results are delivered in the order in which the code first observed them.** Every row stores
//!   how many deliveries the code had seen when it claimed the step (`seen_len`). It also stores
//!   how many steps had been claimed before each delivery, including steps whose own rows were lost
//!   with the attempt. Delivery number *i* waits for its recorded turn, and for every recorded step
//!   that was claimed after at most *i* deliveries. So the code sees the same results in the same
//!   order, and claims the same ordinals again.
//!
//! Rows store the list of deliveries as deltas, and only where it differs from the order of claims.
//! So a plain sequence of steps stores nothing, and a wide fan-out stays linear.

pub(super) mod deliveries;
pub mod divergence;
pub mod history;
pub mod history_prefix;
pub mod history_size;
pub mod recorded;
pub mod scope;
#[cfg(feature = "worker")]
pub mod verification;

mod kind;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::model::replay::deliveries::{Delivery, order_of, stored_from};
pub use crate::model::replay::divergence::{Divergence, Line};
use crate::model::replay::history_size::record_size;
pub use crate::model::replay::scope::Scope;
use crate::model::run::failure::Failure;
use crate::model::run::name::MAX_STEP_KEY;

use crate::model::replay::scope::{LOCAL_BITS, is_from, local};
pub use kind::StepKind;

/// A step's name within its run: `charge`, `charge#2`, `reserve[sku-1]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepKey(String);

impl StepKey {
    /// The stored form of the key.
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

/// A recorded step.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The key of the step.
    pub key: String,
    /// The scope, and the place within it in the order of claims, from 0.
    pub ordinal: u64,
    /// The fingerprint of the input.
    pub fingerprint: i64,
    /// The output or the failure.
    pub result: Result<String, Failure>,
    /// The number of deliveries that the code had seen when it claimed the step.
    pub seen_len: u32,
    /// The last of these deliveries, if they are not a plain sequence: alternately the delivered
    /// ordinal, and the number of claims before it.
    pub seen: Option<Vec<u64>>,
    /// The compensating call.
    pub compensation: Option<String>,
}

impl Recorded {
    /// Whether the engine recorded this compensation after the code had ended. In that attempt the
    /// code had received no result. Code that compensates a step has received at least that step's
    /// result.
    #[must_use]
    pub fn is_compensated_by_engine(&self) -> bool {
        let compensated = self.key.strip_prefix("compensate[").and_then(|key| key.strip_suffix(']'));
        self.seen_len == 0 && compensated.is_some_and(|key| Scope::of_compensation(key).base == self.ordinal)
    }
}

/// The result of a claim: the key, the place, and the deliveries to record with the step.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The key of the step.
    pub key: StepKey,
    /// The scope, and the place within it in the order of claims.
    pub ordinal: u64,
    /// The number of deliveries so far.
    pub seen_len: u32,
    /// Whether the step is already recorded.
    pub recorded: bool,
}

/// The state of one replay: the record, the claims of the code, and the results that it has
/// received.
#[derive(Debug, Default)]
pub struct Replay {
    recorded: HashMap<u64, Recorded>,
    ordinals: HashMap<String, u64>,
    /// The recorded order of deliveries.
    order: Vec<Delivery>,
    /// The place of each delivery in `order`, by the ordinal of its step.
    places: HashMap<u64, usize>,
    /// The number of unclaimed recorded steps for each `seen_len`.
    unclaimed: BTreeMap<u32, usize>,
    occurrences: HashMap<String, u32>,
    delivered: Vec<Delivery>,
    /// The scopes with claims, by their base: the path and the number of claims.
    claimed: HashMap<u64, (String, u64)>,
    n_claims: u64,
    /// The compensating calls with the keys of their steps, in the order in which the steps were
    /// recorded or claimed.
    compensations: Vec<(String, String)>,
    /// The place in `compensations` of the first call of each step, by the key of the step.
    compensation_places: HashMap<String, usize>,
    /// The decisions about changes of the code, by name.
    patches: HashMap<String, bool>,
    /// The number of `delivered` entries that the database is known to have.
    acknowledged: usize,
    /// Whether the replay ignores the fingerprints of inputs.
    ignores_inputs: bool,
    /// Whether the recorded code received the result of a step that is missing.
    has_gaps: bool,
}

impl Replay {
    /// Creates a replay over the recorded steps.
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
        let mut compensations: Vec<&Recorded> =
            rows.iter().filter(|row| row.compensation.is_some()).collect();
        compensations.sort_unstable_by_key(|row| (row.seen_len, row.ordinal));
        for row in compensations {
            if let Some(compensation) = &row.compensation {
                replay.note_compensation(&row.key, compensation.clone());
            }
        }
        replay.ordinals = rows.iter().map(|row| (row.key.clone(), row.ordinal)).collect();
        // No step has seen its own result, except a signal, which is recorded when the code
        // receives it.
        let n_seen = |row: &Recorded| {
            let seen_len = row.seen_len as usize;
            seen_len - usize::from(replay.places.get(&row.ordinal).is_some_and(|place| *place < seen_len))
        };
        replay.has_gaps = rows.iter().any(|row| n_seen(row) >= rows.len());
        replay.recorded = rows.into_iter().map(|row| (row.ordinal, row)).collect();
        replay.has_gaps |= replay.order.iter().any(|seen| !replay.recorded.contains_key(&seen.ordinal));
        replay
    }

    /// The size of the records in bytes: keys, results, compensations, and the overhead of each
    /// ([`record_size`]).
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        let of = |row: &Recorded| {
            let of_failure = |failure: &Failure| {
                failure.message.len() + failure.causes.iter().map(String::len).sum::<usize>()
            };
            let result = row.result.as_ref().map_or_else(of_failure, String::len);
            record_size(&row.key, result + row.compensation.as_ref().map_or(0, String::len))
        };
        self.recorded.values().map(of).sum()
    }

    /// Ignores the fingerprints of inputs: they are keyed, and the key is missing.
    #[must_use]
    pub fn ignoring_inputs(self) -> Self {
        Self { ignores_inputs: true, ..self }
    }

    /// Claims the next step of the code.
    ///
    /// # Errors
    /// [`Divergence`] if the record has another step at this place, has this step at another place,
    /// or has it with another input.
    pub fn claim(&mut self, name: &str, key: Option<&str>, fingerprint: i64) -> Result<Claim, Divergence> {
        self.claim_in(&Scope::root(), name, key, fingerprint)
    }

    /// Claims the next step of a scope.
    ///
    /// # Errors
    /// Same as [`claim`](Self::claim).
    pub fn claim_in(
        &mut self,
        scope: &Scope,
        name: &str,
        key: Option<&str>,
        fingerprint: i64,
    ) -> Result<Claim, Divergence> {
        self.claim_any(scope, name, key, &[fingerprint])
    }

    /// Claims the next step of a scope, whose input may be recorded under any of these
    /// fingerprints. The first is the present one.
    ///
    /// # Errors
    /// Same as [`claim`](Self::claim).
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
            // Outside branches, the limits for names and keys are enough.
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

    /// Whether the recorded code claimed this step, at the next place of the scope, after at most
    /// as many results as the present code has received. Either the step is recorded there. Or it
    /// did not end, and a later step with this name in the scope was claimed by then.
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

    /// Claims the compensation of a step. It has a place of its own, whatever the code has claimed.
    ///
    /// # Errors
    /// Same as [`claim`](Self::claim).
    pub fn claim_undo(&mut self, key: &str) -> Result<Claim, Divergence> {
        self.claim_in(&Scope::of_compensation(key), "compensate", Some(key), 0)
    }

    /// Claims the step that records which dropped steps of a saga are compensated. The first step
    /// of the saga identifies it.
    ///
    /// # Errors
    /// Same as [`claim`](Self::claim).
    pub fn claim_saga(&mut self, first: &str) -> Result<Claim, Divergence> {
        self.claim_in(&Scope::of_saga(first), "saga.compensate", Some(first), 0)
    }

    /// Adds the compensating call of a step.
    pub fn note_compensation(&mut self, key: &str, compensation: String) {
        self.compensation_places.entry(key.to_owned()).or_insert(self.compensations.len());
        self.compensations.push((key.to_owned(), compensation));
    }

    /// The compensating call of a step.
    #[must_use]
    pub fn compensation_of(&self, key: &str) -> Option<String> {
        let place = *self.compensation_places.get(key)?;
        self.compensations.get(place).map(|(_, compensation)| compensation.clone())
    }

    /// The steps that can be compensated and are not, last first, with their compensating calls.
    #[must_use]
    pub fn to_undo(&self) -> Vec<(String, String)> {
        let is_compensated = |key: &str| self.ordinals.contains_key(&format!("compensate[{key}]"));
        self.compensations.iter().rev().filter(|(key, _)| !is_compensated(key)).cloned().collect()
    }

    /// Creates a branch of a scope. Branches with the same name are counted.
    #[must_use]
    pub fn branch(&mut self, scope: &Scope, name: &str) -> Scope {
        // The slash separates the count from that of steps with the same name.
        let base = format!("{}{name}/", scope.path);
        match self.next_occurrence(base.clone()) {
            1 => Scope::at(base),
            n => Scope::at(format!("{}{name}#{n}/", scope.path)),
        }
    }

    /// Decides once per run whether a change of the code applies.
    ///
    /// The change applies if the run has recorded it, or if the code has met the whole record so
    /// far. In the second case the returned claim records it.
    ///
    /// # Errors
    /// Same as [`claim`](Self::claim).
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

    /// The deliveries to store with a step that was claimed after `seen_len` of them. `None` if
    /// they are in the order of claims. Repeats all deliveries that may not be stored, because an
    /// earlier row may be lost.
    #[must_use]
    pub fn seen(&self, seen_len: u32) -> Option<Vec<u64>> {
        let to = (seen_len as usize).min(self.delivered.len());
        let from = self.acknowledged.min(to);
        stored_from(from, &self.delivered[from..to])
    }

    /// Records that the database has the step that was claimed after `seen_len` deliveries.
    pub fn acknowledge(&mut self, seen_len: u32) {
        self.acknowledged = self.acknowledged.max(seen_len as usize);
    }

    /// The recorded result of a step.
    #[must_use]
    pub fn result(&self, ordinal: u64) -> Option<&Result<String, Failure>> {
        self.recorded.get(&ordinal).map(|row| &row.result)
    }

    /// Whether the code may receive the result of this step now.
    #[must_use]
    pub fn may_deliver(&self, ordinal: u64) -> bool {
        let place = self.delivered.len();
        let turn =
            self.order.get(place).is_none_or(|next| next.ordinal == ordinal && next.claims <= self.n_claims);
        turn && self.unclaimed.first_key_value().is_none_or(|(seen_len, _)| *seen_len as usize > place)
    }

    /// Whether a later row shows that the recorded code received the result of this step.
    #[must_use]
    pub fn was_delivered(&self, ordinal: u64) -> bool {
        self.places.contains_key(&ordinal)
    }

    /// Whether the code has claimed every recorded step, and received every recorded delivery.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.unclaimed.is_empty() && self.delivered.len() >= self.order.len()
    }

    /// Whether an unrecorded step may begin. Normally the code must first meet the whole record:
    /// code that follows the record needs no new step before that.
    ///
    /// The exception is a record that lacks steps whose results the code had received. Those steps
    /// must execute again first. A failover to a server with missing commits can leave such a
    /// record, if a worker has not noticed the failover and still writes.
    #[must_use]
    pub fn may_begin(&self) -> bool {
        self.has_gaps || self.is_met()
    }

    /// Records that the code has received the result of this step.
    pub fn deliver(&mut self, ordinal: u64) {
        self.delivered.push(Delivery { ordinal, claims: self.n_claims });
    }

    /// The step whose result the code received last.
    #[must_use]
    pub fn last_delivered(&self) -> Option<&str> {
        let last = self.delivered.last()?;
        self.recorded.get(&last.ordinal).map(|row| row.key.as_str())
    }

    /// The divergence of a workflow that ended, or cannot continue, before it reached all recorded
    /// steps.
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

    /// The divergence of a workflow that awaits recorded results, while other results that it does
    /// not await must come first.
    #[must_use]
    pub fn stalled(&self) -> Divergence {
        let next = self.order.get(self.delivered.len());
        // A result that the code could receive and does not await is reported before steps that it
        // could reach only with that result.
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

    /// The number of results that the code has received.
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

    /// Counts an occurrence of `base`. Returns its number, from 1.
    fn next_occurrence(&mut self, base: String) -> u32 {
        let occurrence = self.occurrences.entry(base).or_default();
        *occurrence += 1;
        *occurrence
    }

    /// The key of the next step with this name.
    fn key_after(&self, path: &str, name: &str, key: Option<&str>) -> StepKey {
        let base = key_base(path, name, key);
        match self.occurrences.get(&base) {
            None => StepKey(base),
            Some(n) => StepKey(format!("{base}#{}", n + 1)),
        }
    }
}

/// A key without its occurrence number.
fn key_base(path: &str, name: &str, key: Option<&str>) -> String {
    match key {
        Some(key) => format!("{path}{name}[{key}]"),
        None => format!("{path}{name}"),
    }
}
