//! The actions that are possible in a state.

use super::act::{Action, has_lease};
use super::config::{Guard, Ownership, PROCESSES, ticks};
use super::state::{Claim, Heart, Life, Phase, Place, Process, State, Status, WORKERS};

impl Ownership {
    /// Collects the actions that are possible in a state.
    pub fn may(&self, state: &State, actions: &mut Vec<Action>) {
        if state.db.place.is_terminal() {
            // Messages in flight may still arrive. Nothing else matters any more.
            self.may_still_arrive(state, actions);
            return;
        }
        self.may_go_wrong(state, actions);
        for process in 0..PROCESSES {
            self.may_live(state, process, actions);
            self.may_work(state, process, actions);
        }
        if state.server.up {
            actions.extend((0..state.strays.len()).map(Action::Stray));
        } else {
            actions.push(Action::Up);
        }
        // A running worker sends its heartbeats in time, because it has a thread for them. Anything
        // that prevents them is a separate fault.
        let beats = |process: &Process| {
            !process.is_connected(&state.server)
                || process.worker.is_none()
                || process.heart == Heart { age: 0, reply: None }
        };
        // Only a pause takes time between the guard and the body.
        let passes = |process: &Process| {
            process.status != Status::Paused
                && process.attempts.iter().any(|attempt| attempt.phase == Phase::Passed)
        };
        if state.processes.iter().all(beats) && !state.processes.iter().any(passes) {
            actions.push(Action::Tick);
        }
    }

    fn may_still_arrive(&self, state: &State, actions: &mut Vec<Action>) {
        let mut all = Vec::new();
        (0..PROCESSES).for_each(|at| self.may_work(state, at, &mut all));
        let arrives = |action: &Action| {
            matches!(
                action,
                Action::Write(..)
                    | Action::Body(..)
                    | Action::Guard(..)
                    | Action::Send(..)
                    | Action::Written(..)
            )
        };
        actions.extend(all.into_iter().filter(arrives));
        actions.extend((0..state.strays.len()).map(Action::Stray).filter(|_| state.server.up));
        actions.extend((state.faults.failovers > 0 && state.server.up).then_some(Action::Promote));
    }

    fn may_go_wrong(&self, state: &State, actions: &mut Vec<Action>) {
        let (faults, server) = (&state.faults, &state.server);
        if faults.restarts > 0 && server.up {
            actions.push(Action::Down);
        }
        if server.up && faults.failovers > 0 {
            actions.extend(state.standby.is_none().then_some(Action::Lag));
            actions.push(Action::Promote);
        }
        for (at, process) in state.processes.iter().enumerate() {
            if process.status == Status::Gone {
                continue;
            }
            if process.status == Status::Running {
                actions.extend((faults.pauses > 0).then_some(Action::Pause(at)));
                actions.extend((faults.cuts > 0).then_some(Action::Cut(at)));
            }
            if faults.crashes > 0 {
                actions.extend([Action::Crash(at), Action::PowerLoss(at)]);
            }
            let locked = process.worker.is_some_and(|worker| server.locked[usize::from(worker)]);
            if faults.locks > 0 && locked && server.up {
                actions.push(Action::LoseLock(at));
            }
            if faults.replies > 0 && process.is_connected(server) {
                if process.claim.is_some() {
                    actions.push(Action::LoseClaim(at));
                }
                for (number, attempt) in process.attempts.iter().enumerate() {
                    match attempt.phase {
                        Phase::Answered(..) => actions.push(Action::LoseReply(at, number)),
                        Phase::Sent(_) => actions.push(Action::Linger(at, number)),
                        Phase::Waiting | Phase::Passed | Phase::Body => {}
                    }
                }
            }
        }
    }

    /// Actions of a process for its worker and for others.
    fn may_live(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let process = &state.processes[at];
        match process.status {
            Status::Gone => {
                actions.push(Action::Start(at));
                return;
            }
            Status::Paused | Status::Cut => {
                actions.push(Action::GoOn(at));
                return;
            }
            Status::Running => {}
        }
        if !state.server.up {
            return;
        }
        let Some(worker) = process.worker else {
            if state.fresh_worker().is_some() {
                actions.push(Action::Register(at));
            }
            return;
        };
        match process.heart.reply {
            Some(_) => actions.push(Action::Pulse(at)),
            None if process.heart.age > 0 || process.memory.incarnation != Some(state.server.incarnation) => {
                actions.push(Action::Beat(at));
            }
            // Its next heartbeat reports this. Without it the model would wait for a tick.
            None if !state.lives(worker) => actions.push(Action::Beat(at)),
            None => {}
        }
        if !state.server.locked[usize::from(worker)] {
            actions.push(Action::Relock(at));
        }
        if self.is_out_of_step(state, at) {
            actions.push(Action::Reconcile(at));
        }
        for other in 0..WORKERS {
            if self.may_bury(state, at, other) {
                actions.push(Action::Bury(at, other));
            }
        }
        if self.sweep && matches!(state.db.place, Place::Lease { worker, .. } if !state.lives(worker)) {
            actions.push(Action::Adopt(at));
        }
    }

    /// Actions of a process for the run.
    fn may_work(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let process = &state.processes[at];
        let (up, running) = (state.server.up, process.status == Status::Running);
        match process.claim {
            Some(Claim::Sent(_)) if up && process.status != Status::Cut => {
                actions.push(Action::ExecuteClaim(at));
            }
            Some(Claim::Answered(..)) if up && running => actions.push(Action::Claimed(at)),
            None if up && running && process.worker.is_some() && process.attempts.len() < 2 => {
                actions.extend((state.db.place == Place::Ready).then_some(Action::Claim(at)));
            }
            _ => {}
        }
        for (number, attempt) in process.attempts.iter().enumerate() {
            let awake = matches!(process.status, Status::Running | Status::Cut);
            match attempt.phase {
                Phase::Waiting if awake && self.guard_passes(&process.heart) => {
                    actions.push(Action::Guard(at, number));
                }
                Phase::Passed if awake && attempt.steps == self.all_steps() => {
                    actions.push(Action::Send(at, number));
                }
                Phase::Passed if awake => actions.push(Action::Body(at, number)),
                Phase::Body if awake => {
                    actions.push(Action::Send(at, number));
                    actions.extend((state.faults.failures > 0).then_some(Action::Fail(at, number)));
                }
                // A statement sent before a pause executes during it.
                Phase::Sent(_) if up && process.status != Status::Cut => {
                    actions.push(Action::Write(at, number));
                }
                Phase::Answered(..) if up && running => actions.push(Action::Written(at, number)),
                _ => {}
            }
        }
    }

    const fn guard_passes(&self, heart: &Heart) -> bool {
        match self.guard {
            Guard::Suspect | Guard::Reply => heart.age < ticks::GUARD,
            Guard::Lease => heart.age < ticks::LEASE,
            Guard::Nothing => true,
        }
    }

    pub(super) const fn all_steps(&self) -> u8 {
        (1 << self.n_steps) - 1
    }

    /// Whether a lease is unknown to its worker, or an attempt of the worker has lost its lease.
    fn is_out_of_step(&self, state: &State, at: usize) -> bool {
        let process = &state.processes[at];
        let unknown = match state.db.place {
            Place::Lease { token, worker } => {
                Some(worker) == process.worker && !process.knows(token, self.notes_claims)
            }
            _ => false,
        };
        self.reconcile && (unknown || process.attempts.iter().any(|attempt| !has_lease(state, attempt.token)))
    }

    /// `Maintenance::examine`
    fn may_bury(&self, state: &State, at: usize, other: usize) -> bool {
        let (row, memory) = (&state.db.workers[other], &state.processes[at].memory);
        if row.state != Life::Active || state.processes[at].worker.map(usize::from) == Some(other) {
            return false;
        }
        let is_evidence = !self.incarnation || row.lock_incarnation == Some(state.server.incarnation);
        let known_long =
            memory.incarnation == Some(state.server.incarnation) && memory.known_for >= ticks::LEASE;
        let trusted = !memory.changed || memory.known_for >= ticks::LEASE;
        let trusted = trusted && (!self.doubts_silence || is_evidence || known_long);
        if row.silence >= ticks::LEASE && trusted {
            return true;
        }
        let is_suspect = row.silence >= ticks::SUSPECT || !self.suspicion;
        is_suspect && is_evidence && row.lock_incarnation.is_some() && !state.server.locked[other]
    }
}
