//! Random traces of the model, the same in every run of the test.

use std::collections::{BTreeMap, BTreeSet};

use protocol::ownership::{Action, Attempt, Faults, Ownership, PROCESSES, Phase, Place, State, Stray, Write};

/// The number of arbitrary traces, the number of traces per kind of late write, and the longest
/// length.
const TRACES: usize = 30;
const RARE: usize = 3;
const LENGTH: usize = 120;

/// Without failovers, because a test cannot replace its server with a standby. Every other fault
/// may happen.
pub const FAULTS: Faults =
    Faults { pauses: 1, cuts: 1, crashes: 2, locks: 1, replies: 2, restarts: 1, failovers: 0, failures: 1 };

pub const MODEL: Ownership = Ownership::engine(2, FAULTS);

/// Chooses a fault once in five times if other actions are possible, so that every trace ends.
fn choose(random: &mut fastrand::Rng, actions: &[Action]) -> Option<Action> {
    let (faults, wanted): (Vec<Action>, Vec<Action>) = actions.iter().partition(|action| action.is_fault());
    let faulty = wanted.is_empty() || (!faults.is_empty() && random.u8(..5) == 0);
    random.choice(if faulty { faults } else { wanted })
}

/// Writes of an attempt after another one has the lease. Random traces rarely contain them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Late {
    /// A step that is not recorded.
    Checkpoint,
    /// A step that it has sent before.
    Repetition,
    /// Its result.
    Completion,
    /// Its failure.
    Failure,
}

const LATE: [Late; 4] = [Late::Checkpoint, Late::Repetition, Late::Completion, Late::Failure];

/// Returns what an action writes, and for which attempt.
pub fn written(state: &State, action: Action) -> Option<(Attempt, Write)> {
    match action {
        Action::Write(at, number) => {
            let attempt = state.processes[at].attempts[number];
            let Phase::Sent(write) = attempt.phase else { return None };
            Some((attempt, write))
        }
        Action::Stray(number) => match state.strays[number] {
            Stray::Write(attempt, write, _) => Some((attempt, write)),
            Stray::Claim(..) => None,
        },
        _ => None,
    }
}

/// The steps that attempts have sent. The engine sends a step differently the second time.
#[derive(Debug, Default)]
pub struct Sent(BTreeSet<(u8, u8)>);

impl Sent {
    /// A token is reused once nothing names it.
    pub fn forget(&mut self, token: u8) {
        self.0.retain(|(known, _)| *known != token);
    }

    /// Whether the attempt has sent its next step before.
    pub fn is_repeated(&mut self, attempt: Attempt) -> bool {
        !self.0.insert((attempt.token, attempt.steps))
    }
}

fn late(state: &State, action: Action, sent: &mut Sent) -> Option<Late> {
    let (attempt, write) = written(state, action)?;
    let is_late = matches!(state.db.place, Place::Lease { token, .. } if token != attempt.token);
    let is_recorded = state.db.steps & (1 << attempt.steps.trailing_ones()) != 0;
    let late = match write {
        Write::Checkpoint if sent.is_repeated(attempt) => Late::Repetition,
        Write::Checkpoint if is_recorded => return None,
        Write::Checkpoint => Late::Checkpoint,
        Write::Complete => Late::Completion,
        Write::Fail => Late::Failure,
    };
    is_late.then_some(late)
}

/// A random trace, and its late writes.
fn trace(seed: u64) -> (Vec<Action>, BTreeSet<Late>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut state = State::first(PROCESSES, FAULTS);
    let (mut trace, mut lates, mut sent) = (Vec::new(), BTreeSet::new(), Sent::default());
    while trace.len() < LENGTH {
        let mut actions = Vec::new();
        MODEL.may(&state, &mut actions);
        let Some(action) = choose(&mut random, &actions) else { break };
        if matches!(action, Action::Claim(_)) {
            sent.forget(state.fresh_token());
        }
        lates.extend(late(&state, action, &mut sent));
        trace.push(action);
        state = MODEL.after(&state, action);
    }
    (trace, lates)
}

/// The first traces, and the first traces with each late write.
pub fn traces() -> Vec<Vec<Action>> {
    let mut chosen = Vec::new();
    let mut wanted = BTreeMap::from(LATE.map(|late| (late, RARE)));
    for seed in 1.. {
        let (trace, lates) = trace(seed);
        let is_wanted = lates.iter().any(|late| wanted[late] > 0);
        if chosen.len() < TRACES || is_wanted {
            chosen.push(trace);
            for late in lates {
                wanted.entry(late).and_modify(|missing| *missing = missing.saturating_sub(1));
            }
        }
        if chosen.len() >= TRACES && wanted.values().all(|missing| *missing == 0) {
            break;
        }
    }
    chosen
}
