//! Merges states that differ only in names: the order of processes, the numbers of workers, the
//! numbers of tokens. Without this there would be too many states.

use super::config::{Guard, Ownership, ticks};
use super::state::{Attempt, Claim, Db, Life, Place, State, Stray, Token, WORKERS, Worker};

/// The new name of each old one, in order of first use.
struct Names {
    given: Vec<u8>,
}

impl Names {
    fn of(&mut self, old: u8) -> u8 {
        let at = self.given.iter().position(|known| *known == old).unwrap_or_else(|| {
            self.given.push(old);
            self.given.len() - 1
        });
        u8::try_from(at).unwrap_or(u8::MAX)
    }
}

impl Ownership {
    /// Returns the one state that stands for all states that differ only in names.
    #[must_use]
    pub fn canonical(&self, state: State) -> State {
        let mut state = self.without_the_irrelevant(state);
        let mut turned = state.clone();
        turned.processes.reverse();
        for db in std::iter::once(&mut turned.db).chain(&mut turned.standby) {
            for worker in db.workers.iter_mut().filter(|worker| worker.state != Life::Unknown) {
                worker.name = 1 - worker.name;
            }
        }
        rename(&mut state);
        rename(&mut turned);
        state.min(turned)
    }

    /// Clears ages that no decision of this configuration reads.
    fn without_the_irrelevant(&self, mut state: State) -> State {
        let oldest = if self.guard == Guard::Lease { ticks::LEASE } else { ticks::GUARD };
        let one_server = self.faults.restarts + self.faults.failovers == 0;
        for process in &mut state.processes {
            process.heart.age = process.heart.age.min(oldest);
            if let Some((age, ..)) = &mut process.heart.reply {
                *age = (*age).min(oldest);
            }
            if one_server || process.worker.is_none() {
                process.memory.known_for = 0;
            }
            process.attempts.sort_unstable();
        }
        state.strays.sort_unstable();
        state
    }
}

fn rename(state: &mut State) {
    let (mut tokens, mut workers) = (Names { given: Vec::new() }, Names { given: Vec::new() });
    let attempt = |attempt: &mut Attempt, tokens: &mut Names| attempt.token = tokens.of(attempt.token);
    for process in &mut state.processes {
        if let Some(worker) = &mut process.worker {
            *worker = workers.of(*worker);
        }
        match &mut process.claim {
            None => {}
            Some(Claim::Sent(token)) => *token = tokens.of(*token),
            Some(Claim::Answered(token, given)) => {
                *token = tokens.of(*token);
                given.iter_mut().for_each(|given| attempt(given, &mut tokens));
            }
        }
        process.attempts.iter_mut().for_each(|held| attempt(held, &mut tokens));
    }
    let mut place = |db: &mut Db, tokens: &mut Names| {
        if let Place::Lease { token, worker } = &mut db.place {
            (*token, *worker) = (tokens.of(*token), workers.of(*worker));
        }
    };
    place(&mut state.db, &mut tokens);
    state.standby.iter_mut().for_each(|standby| place(standby, &mut tokens));
    for stray in &mut state.strays {
        stray_names(stray, &mut tokens, &mut workers);
    }
    state.strays.sort_unstable();
    // Rows without a name are forgotten, so every remaining row has a name.
    let old = |new: usize| workers.given.get(new).map(|old| usize::from(*old));
    let moved = |rows: &[Worker; WORKERS]| {
        std::array::from_fn(|new| old(new).map_or(Worker::UNKNOWN, |old| rows[old]))
    };
    state.db.workers = moved(&state.db.workers);
    if let Some(standby) = &mut state.standby {
        standby.workers = moved(&standby.workers);
    }
    let locked = state.server.locked;
    state.server.locked = std::array::from_fn(|new| old(new).is_some_and(|old| locked[old]));
}

fn stray_names(stray: &mut Stray, tokens: &mut Names, workers: &mut Names) {
    let (token, worker): (&mut Token, &mut u8) = match stray {
        Stray::Claim(token, worker) => (token, worker),
        Stray::Write(attempt, _, worker) => (&mut attempt.token, worker),
    };
    (*token, *worker) = (tokens.of(*token), workers.of(*worker));
}
