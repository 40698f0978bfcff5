//! Recorded steps. A replay over any rows neither panics nor allocates more than the rows need, and
//! explains why it cannot continue. Over the rows of a run that was interrupted anywhere, the
//! replay gives the code what it saw before.

use std::collections::BTreeMap;

use fastrand::Rng;
use runledger::model::payload::Sealer;
use runledger::model::replay::recorded;
use runledger::model::replay::{Claim, Divergence, Recorded, Replay};
use runledger::model::run::failure::{Failure, FailureKind};
use serde_json::{Value, json};

use crate::bytes::Bytes;

/// Interprets the bytes as the text of rows, as rows that need not fit together, and as the course
/// of a run.
pub fn records(data: &[u8]) {
    if let Some(rows) = std::str::from_utf8(data).ok().and_then(read) {
        assert_eq!(read(&written(&rows)), Some(rows.clone()));
        replay_of_any_rows_ends(rows, &mut Bytes::new(data));
    }
    let mut bytes = Bytes::new(data);
    let rows: Vec<Recorded> = (0..bytes.below(8)).map(|_| row(&mut bytes)).collect();
    let text = written(&rows);
    assert_eq!(read(&text).as_ref(), Some(&rows), "`{text}`");
    replay_of_any_rows_ends(rows, &mut bytes);
    a_run_that_is_cut_off_is_replayed(&mut Bytes::new(data));
}

/// Reads the steps of a run with unsealed payloads.
fn read(text: &str) -> Option<Vec<Recorded>> {
    recorded::open(recorded::read(text).ok()?, uuid::Uuid::nil(), &Sealer::default()).ok()
}

/// The rows in the database's format.
fn written(rows: &[Recorded]) -> String {
    let row = |row: &Recorded| {
        let output = row.result.as_ref().ok().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let error = row.result.as_ref().err();
        let compensation =
            row.compensation.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
        json!([row.key, row.ordinal, row.fingerprint, output, error, row.seen_len, row.seen, compensation])
    };
    Value::from(rows.iter().map(row).collect::<Vec<_>>()).to_string()
}

fn row(bytes: &mut Bytes<'_>) -> Recorded {
    let result = match bytes.below(3) {
        0 => Ok("null".to_owned()),
        1 => Ok(Value::from(bytes.text()).to_string()),
        _ => Err(Failure::new(FailureKind::Error, bytes.text())),
    };
    let seen = bytes.is_true().then(|| (0..bytes.below(7)).map(|_| u64::from(number(bytes))).collect());
    Recorded {
        key: step(bytes).to_owned(),
        ordinal: u64::from(number(bytes)),
        fingerprint: i64::from(bytes.below(8) == 7),
        result,
        seen_len: number(bytes),
        seen,
        compensation: bytes.is_true().then(|| "{}".to_owned()),
    }
}

/// A number that usually fits.
fn number(bytes: &mut Bytes<'_>) -> u32 {
    match bytes.byte() {
        255 => u32::MAX,
        254 => i32::MAX.cast_unsigned(),
        other => u32::from(other % 6),
    }
}

fn step(bytes: &mut Bytes<'_>) -> &'static str {
    ["a", "b", "a#2", "a[k]"][usize::from(bytes.below(4))]
}

fn replay_of_any_rows_ends(rows: Vec<Recorded>, bytes: &mut Bytes<'_>) {
    let n_rows = rows.len();
    let mut replay = Replay::new(rows);
    let mut undelivered: Vec<u64> = Vec::new();
    // More claims than rows: the others are new steps.
    for _ in 0..n_rows + 4 {
        let key = bytes.is_true().then_some("k");
        match replay.claim(if bytes.is_true() { "a" } else { "b" }, key, 0) {
            Ok(claim) => undelivered.push(claim.ordinal),
            Err(divergence) => return assert!(divergence.to_failure().message.contains("resume the run")),
        }
        while let Some(at) = undelivered.iter().position(|ordinal| replay.may_deliver(*ordinal)) {
            let ordinal = undelivered.remove(at);
            let _ = replay.result(ordinal);
            replay.deliver(ordinal);
            let seen_len = number(bytes);
            let _ = replay.seen(seen_len);
            if bytes.is_true() {
                replay.acknowledge(seen_len);
            }
        }
    }
    // Every recorded step has been claimed, so no later claim makes these results deliverable.
    assert!(!replay.stalled().to_failure().message.is_empty());
}

/// A workflow whose next steps depend only on what it has seen.
#[derive(Default)]
struct Code {
    /// The ordinals of the delivered steps.
    seen: Vec<u64>,
    /// Steps that it has claimed and that are not delivered yet.
    open: BTreeMap<u64, Claim>,
}

/// The limits of steps per workflow, and of steps that start at once.
const MOST_STEPS: usize = 24;
const MOST_AT_ONCE: u64 = 4;

impl Code {
    fn claim_next(&mut self, replay: &mut Replay, seed: u64) {
        let seed = self.seen.iter().fold(seed, |seed, ordinal| Rng::with_seed(seed ^ *ordinal).u64(..));
        let mut random = Rng::with_seed(seed);
        // If no step is open, at least one starts.
        let n_new = random.u64(..MOST_AT_ONCE).max(u64::from(self.open.is_empty()));
        for _ in 0..n_new {
            if self.seen.len() + self.open.len() == MOST_STEPS {
                return;
            }
            let name = if random.bool() { "a" } else { "b" };
            let key = random.bool().then_some("k");
            let claim = replay.claim(name, key, 0).unwrap_or_else(|divergence| unreachable!("{divergence}"));
            self.open.insert(claim.ordinal, claim);
        }
    }
}

/// The rows in the database, and those on their way to it.
#[derive(Default)]
struct Journal {
    recorded: BTreeMap<u64, Recorded>,
    sent: BTreeMap<u64, Recorded>,
}

fn a_run_that_is_cut_off_is_replayed(bytes: &mut Bytes<'_>) {
    let seed = bytes.wide();
    let mut journal = Journal::default();
    let mut before: Vec<u64> = Vec::new();
    for _ in 0..4 {
        let rows: Vec<Recorded> = journal.recorded.values().cloned().collect();
        let n_known = rows.iter().map(|row| row.seen_len as usize).max().unwrap_or(0);
        let seen = attempt(Replay::new(rows), seed, &mut journal, bytes);
        assert_eq!(before[..n_known], seen[..n_known.min(seen.len())], "it saw another order than before");
        if seen.len() == MOST_STEPS {
            return;
        }
        before = seen;
        // Rows that were on their way when the process died may have arrived.
        for (ordinal, row) in std::mem::take(&mut journal.sent) {
            if bytes.is_true() {
                journal.recorded.insert(ordinal, row);
            }
        }
    }
}

/// Runs one attempt until its process dies or the workflow ends. Returns what the code saw.
fn attempt(mut replay: Replay, seed: u64, journal: &mut Journal, bytes: &mut Bytes<'_>) -> Vec<u64> {
    let n_known = journal.recorded.values().map(|row| row.seen_len as usize).max().unwrap_or(0);
    let mut code = Code::default();
    code.claim_next(&mut replay, seed);
    loop {
        let deliverable: Vec<u64> = (code.open.keys().copied())
            .filter(|ordinal| journal.recorded.contains_key(ordinal) && replay.may_deliver(*ordinal))
            .collect();
        let unsent: Vec<u64> = (code.open.keys().copied())
            .filter(|ordinal| !journal.recorded.contains_key(ordinal) && !journal.sent.contains_key(ordinal))
            .collect();
        let n_acts = deliverable.len() + unsent.len() + journal.sent.len();
        if n_acts == 0 {
            assert!(code.open.is_empty(), "stuck: {:?}, {:?}", code.open, replay.stalled());
            assert_eq!(replay.unmet(), None::<Divergence>);
            return code.seen;
        }
        // The process dies only after the known history, so that each attempt gets further.
        if bytes.below(16) == 15 && code.seen.len() >= n_known {
            return code.seen;
        }
        let act = usize::from(bytes.byte()) % n_acts;
        if let Some(ordinal) = deliverable.get(act) {
            replay.deliver(*ordinal);
            code.seen.push(*ordinal);
            code.open.remove(ordinal);
            code.claim_next(&mut replay, seed);
        } else if let Some(ordinal) = unsent.get(act - deliverable.len()) {
            journal.sent.insert(*ordinal, sent(&replay, &code.open[ordinal]));
        } else if let Some((ordinal, row)) = journal.sent.pop_first() {
            replay.acknowledge(row.seen_len);
            journal.recorded.insert(ordinal, row);
        }
    }
}

fn sent(replay: &Replay, claim: &Claim) -> Recorded {
    Recorded {
        key: claim.key.as_str().to_owned(),
        ordinal: claim.ordinal,
        fingerprint: 0,
        result: Ok("null".to_owned()),
        seen_len: claim.seen_len,
        seen: replay.seen(claim.seen_len),
        compensation: None,
    }
}
