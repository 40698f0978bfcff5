//! The properties of every state, and the search for violations.

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::act::{Action, has_lease};
use super::config::{Ownership, ticks};
use super::state::{Place, Process, State, Status};

/// The names of the properties.
pub mod names {
    /// Every write names the current lease.
    pub const FENCE: &str = "a write is accepted only for the present lease";
    /// At most one attempt can write.
    pub const ONE_OWNER: &str = "at most one attempt passes the fence";
    /// The attempt with the lease never executes a recorded step.
    pub const RECORDED: &str = "a recorded step is never run by a later attempt";
    /// Each pause or failover causes at most one stale body.
    pub const STALE: &str = "at most one stale body starts for each pause and failover";
    /// Two bodies run at once only after a fault.
    pub const ALONE: &str = "one body runs at a time while nothing is away";
    /// No live worker is marked dead.
    pub const BURIED: &str = "no worker is declared dead that was never away";
    /// A crash does not count as an attempt.
    pub const ATTEMPTS: &str = "only a failure consumes an attempt";
    /// A terminal run does not change.
    pub const END: &str = "nothing changes a run that has ended";
    /// No run is lost.
    pub const FOUND: &str = "every run is soon in hand again when the faults end";
}

/// Ticks after the last fault until a run is due, or owned by a live worker: a lease until silence
/// counts, and a lease of silence.
const SOON: usize = 2 * ticks::LEASE as usize + 1;

/// The result of an exhaustive search.
#[derive(Debug)]
pub struct Checked {
    /// The number of states.
    pub n_states: usize,
    /// The number of transitions.
    pub n_transitions: usize,
    /// The violated properties, each with the shortest path to a violation.
    pub violated: Vec<(&'static str, Vec<Action>)>,
    /// Whether the run can complete. If not, the search shows nothing.
    pub completes: bool,
    /// Whether a worker can be marked dead.
    pub buries: bool,
}

/// Visits every state, or stops at the first violation of a property in `until`.
#[must_use]
pub fn check(model: Ownership, until: &[&'static str]) -> Checked {
    let finish = if until.is_empty() {
        HasDiscoveries::AnyFailures
    } else {
        HasDiscoveries::AllOf(until.iter().copied().collect())
    };
    let checker = model.checker().finish_when(finish).spawn_bfs().join();
    let mut violated: Vec<_> = checker
        .discoveries()
        .into_iter()
        .map(|(name, path)| (name, path.into_actions()))
        .filter(|(name, _)| !SOMETIMES.contains(name))
        .collect();
    violated.sort_unstable_by_key(|(name, _)| *name);
    let [completes, buries] = SOMETIMES.map(|name| checker.discovery(name).is_some());
    let (n_states, n_transitions) = (checker.unique_state_count(), checker.state_count());
    Checked { n_states, n_transitions, violated, completes, buries }
}

/// What must be possible.
const SOMETIMES: [&str; 2] = ["the run completes", "a worker is declared dead"];

impl Model for Ownership {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.canonical(State::first(self.n_running, self.faults))]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.may(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        Some(self.canonical(self.after(last, action)))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(names::FENCE, |_, state: &State| !state.noted.stale_write),
            Property::always(names::ONE_OWNER, Self::has_one_owner),
            Property::always(names::RECORDED, |_, state: &State| !state.noted.ran_again),
            Property::always(names::STALE, |_, state: &State| {
                state.noted.n_stale_starts <= state.noted.n_excuses
            }),
            Property::always(names::ALONE, Self::is_alone),
            Property::always(names::BURIED, |_, state: &State| !state.noted.buried_alive),
            Property::always(names::ATTEMPTS, |_, state: &State| {
                let present = i32::from(matches!(state.db.place, Place::Lease { .. }));
                state.db.place.is_terminal() || state.db.attempt == state.db.n_failed + present
            }),
            Property::always(names::END, |_, state: &State| !state.noted.left_the_end),
            Property::always(names::FOUND, Self::is_found),
            Property::sometimes(SOMETIMES[0], |_, state: &State| state.db.place == Place::Completed),
            Property::sometimes(SOMETIMES[1], |_, state: &State| {
                state.db.workers.iter().any(|worker| worker.state == super::state::Life::Dead)
            }),
        ]
    }
}

impl Ownership {
    fn has_one_owner(&self, state: &State) -> bool {
        let passing = state.processes.iter().flat_map(|process| {
            let by = process.worker.map_or(0, usize::from);
            process.attempts.iter().filter(move |attempt| self.passes(&state.db, attempt, by))
        });
        passing.count() <= 1
    }

    fn is_alone(&self, state: &State) -> bool {
        let attempts = state.processes.iter().flat_map(|process| &process.attempts);
        let n_bodies = attempts.filter(|attempt| attempt.phase == super::state::Phase::Body).count();
        state.noted.disturbed || n_bodies <= 1
    }

    /// Whether the run is soon due or owned by a live worker, without further faults and with every
    /// process working.
    fn is_found(&self, state: &State) -> bool {
        let mut state = state.clone();
        let mut actions = Vec::new();
        state.strays.clear();
        for _ in 0..=SOON {
            // The work of one tick. The limit only stops a model that loops.
            for _ in 0..100 {
                if is_in_hand(&state) {
                    return true;
                }
                actions.clear();
                self.may(&state, &mut actions);
                let wanted = |action: &&Action| !action.is_fault() && **action != Action::Tick;
                let Some(action) = actions.iter().find(wanted) else { break };
                state = self.after(&state, *action);
            }
            state.tick();
        }
        is_in_hand(&state)
    }
}

/// Whether the run has ended, is blocked, is due with a worker to claim it, or belongs to a live
/// worker that knows it and can continue.
fn is_in_hand(state: &State) -> bool {
    let works = |process: &Process| {
        process.is_connected(&state.server) && process.worker.is_some_and(|worker| state.lives(worker))
    };
    match state.db.place {
        Place::Blocked | Place::Completed | Place::Failed => true,
        Place::Ready => state.processes.iter().any(works),
        Place::Lease { token, worker } => state.process_of(worker).is_some_and(|process| {
            let knows = process.attempts.iter().any(|attempt| attempt.token == token);
            works(process) && process.status == Status::Running && knows && has_lease(state, token)
        }),
    }
}
