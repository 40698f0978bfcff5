//! Another go at a run: again from the start, from one of its steps, or from where it failed. A run that has ended never changes, so each is a new one,
//! linked to the old one by its origin.

use std::collections::HashMap;

use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::enqueue::activate;
use super::graph_copy::copy_of;
use super::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::connection;
use crate::definition::job::Job;
use crate::engine::signals::key_of;
use crate::model::history_prefix::{self, Child, Children, started};
use crate::model::name::nearest;
use crate::model::payload::{PayloadError, PayloadKind, Place, Sealer, Stored};
use crate::model::recorded::{StoredStep, place_of_error};
use crate::model::replay::Recorded;
use crate::model::request::{child_run_id, revived_run_id};
use crate::model::state::RunState;
use crate::store::graph::submit;
use crate::store::link::{
    Begin, KeptSignal, KeptStep, Link, Origin, Payloads, going_on_below, link, origins, payloads,
};
use crate::store::session::BEGIN;
use crate::store::write::commit;

/// How many keys an error names where none is near the one that was given.
const KEYS_SHOWN: usize = 8;

impl<J: Job> RunHandle<J> {
    /// Runs an ended run again, from the start: a new run with the same job, input, options, queue, priority and tenant, without the idempotency key and
    /// without the parent. It starts at once: a `delay` or `start_at` of the old one is over.
    ///
    /// Each call makes another run. Costs a query and a statement.
    ///
    /// # Errors
    /// [`ClientError::WrongState`] where the run goes on, [`ClientError::NoSuchRun`], or a failure of the database.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have made the run.
    pub async fn rerun(&self) -> Result<Self, ClientError> {
        let mut connection = connection(self.pool()?).await?;
        let origin = self.origin(&mut connection).await?;
        if !origin.state.is_terminal() {
            return Err(self.refused(origin.state, "run again"));
        }
        let again = Link {
            run_id: Uuid::now_v7(),
            origin_id: self.id(),
            parent_id: None,
            is_sealed: origin.is_sealed,
            input: None,
            steps: Vec::new(),
            signals: Vec::new(),
            progress: Vec::new(),
        };
        let whole = Whole { links: vec![again], remade: Vec::new(), origin: Kept::of(&origin) };
        self.linked(&mut connection, whole, Begin::Anew).await
    }

    /// Goes on from one of the recorded steps of a run, whatever its state: a new run that has on record what was claimed before that step, and does that
    /// step and what follows anew. Of other branches it has what they did without having seen that step's result. A value of [`now`](crate::Wf::now),
    /// [`uuid`](crate::Wf::uuid), [`random`](crate::Wf::random) or [`patched`](crate::Wf::patched) all branches see as soon as one has asked for it: where
    /// that is to be asked for anew beside them, the new run goes on behind the last result that any of them was given before, and does again what they had
    /// begun since. The signals that were sent to the old
    /// run are the new one's too: those that no kept step has taken it takes. The old run is not touched: what it still does, it does beside the new one.
    ///
    /// The new run has none of the old run's progress: each step that it executes begins at its start.
    ///
    /// A child that the kept steps have started stays the child of the old run, and is cancelled with that one alone, also where that fails; the new run, where it waits for its
    /// end, looks every 5 seconds. Only where it has failed or was cancelled, and no kept step has seen that, another go at it takes its place, as in
    /// [`revive`](Self::revive).
    ///
    /// What the kept steps of a [saga](crate::Saga) did is done once, and both runs rest on it. The code of the new run can take it back:
    /// [`Saga::undo`](crate::Saga::undo) does so once the old run has ended, unless that one or another fork of it has taken it back already, and until then parks the new
    /// run. Where the new run fails or is cancelled, only what it did itself is taken back: the old run may have completed with the rest. An old run that
    /// goes on and then fails takes back what it did, also what a fork rests on. What is taken back already, or about to be, cannot be kept: fork from a step
    /// before it.
    ///
    /// Each call makes another run. Costs a query and a statement, and a query for each depth of children.
    ///
    /// # Errors
    /// [`ClientError::UnknownStep`], [`ClientError::StepCompensated`], [`ClientError::NoSuchRun`], or a failure of the database.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have made the run.
    pub async fn fork(&self, step_key: &str) -> Result<Self, ClientError> {
        let mut connection = connection(self.pool()?).await?;
        loop {
            // Not created: the run has continued as new since its steps were read.
            let fork = self.fork_once(&mut connection, step_key).await?;
            if fork.created() {
                return Ok(fork);
            }
        }
    }

    async fn fork_once(&self, connection: &mut PgConnection, step_key: &str) -> Result<Self, ClientError> {
        let origin = self.origin(connection).await?;
        let steps = history_prefix::before(origin.steps.clone(), step_key).ok_or_else(|| {
            ClientError::UnknownStep {
                run_id: self.id(),
                key: step_key.to_owned(),
                hint: hint(&origin.steps, step_key),
            }
        })?;
        let is_being_undone = origin.is_undone && !origin.state.is_terminal();
        if let Some(key) = history_prefix::taken_back(&origin.steps, &steps, is_being_undone) {
            return Err(ClientError::StepCompensated { run_id: self.id(), key: key.to_owned() });
        }
        let (links, remade) =
            with_children(connection, Uuid::now_v7(), self.id(), origin.is_sealed, steps).await?;
        self.linked(connection, Whole { links, remade, origin: Kept::of(&origin) }, Begin::AtStep).await
    }

    /// Tries a failed or cancelled run again from where it ended: a new run with all its recorded steps but the failures that ended it, so that these are
    /// tried again with fresh attempts, and with the progress of the old one and the signals that were sent to it. Children that failed or were cancelled, and
    /// whose end the run has not worked with, are revived with it; a graph is submitted once more, and all of it runs anew.
    ///
    /// Once: the id of the new run follows from that of the old one, and whoever comes later is given the same run,
    /// [`created`](Self::created) being false. The state is the one in which the run was shown to whoever decides. The run must be quiet: all that it has
    /// started has ended. What goes on below a run that fails or is cancelled is cancelled, which takes a moment.
    ///
    /// A run whose compensations have run is not revived: what its steps did is not there any more. Run it again. What its own code had taken back by
    /// [`Saga::undo`](crate::Saga::undo) before it failed stays taken back, once.
    ///
    /// Costs two queries and a statement, and a query for each depth of children.
    ///
    /// # Errors
    /// [`ClientError::WrongState`] where the run is not in that state, or it is neither failed nor cancelled; [`ClientError::DescendantsRunning`]; [`ClientError::CompensationsRan`];
    /// [`ClientError::NoSuchRun`]; or a failure of the database.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have made the run. Repeating it gives the same run.
    pub async fn revive(&self, expected: RunState) -> Result<Self, ClientError> {
        let mut connection = connection(self.pool()?).await?;
        let origin = self.origin(&mut connection).await?;
        self.check_revivable(&mut connection, &origin, expected).await?;
        let kept = Kept::of(&origin);
        let steps = history_prefix::without_last_failures(origin.steps);
        let run_id = revived_run_id(self.id());
        let (links, remade) =
            with_children(&mut connection, run_id, self.id(), origin.is_sealed, steps).await?;
        self.linked(&mut connection, Whole { links, remade, origin: kept }, Begin::AtEnd).await
    }

    /// Every reason against a revive.
    async fn check_revivable(
        &self,
        connection: &mut PgConnection,
        origin: &Origin,
        expected: RunState,
    ) -> Result<(), ClientError> {
        let verb = match expected {
            RunState::Failed => "revived as a failed run",
            RunState::Cancelled => "revived as a cancelled run",
            _ => "revived: only a failed or a cancelled run can be",
        };
        if origin.state != expected || !is_revivable(origin.state) {
            return Err(self.refused(origin.state, verb));
        }
        if origin.is_undone {
            return Err(ClientError::CompensationsRan { run_id: self.id() });
        }
        match going_on_below(connection, self.id()).await? {
            Some(below) => Err(ClientError::DescendantsRunning { run_id: self.id(), below }),
            None => Ok(()),
        }
    }

    async fn origin(&self, connection: &mut PgConnection) -> Result<Origin, ClientError> {
        let found = origins(connection, &[self.id()]).await?;
        let origin = found.into_iter().next().ok_or(ClientError::NoSuchRun { run_id: self.id() })?;
        if origin.in_graph {
            return Err(ClientError::BelongsToGraph { run_id: self.id() });
        }
        Ok(origin)
    }

    async fn linked(
        &self,
        connection: &mut PgConnection,
        Whole { mut links, remade, origin: Kept { slice, has_active_key } }: Whole,
        begin: Begin,
    ) -> Result<Self, ClientError> {
        let Some(first) = links.first().map(|link| link.run_id) else { return Ok(self.clone()) };
        // What is sealed is sealed for its run.
        for made in links.iter_mut().filter(|link| link.is_sealed) {
            let held = payloads(connection, made.origin_id).await?;
            let sealed = reseal(made, held, begin, made.run_id == first, &self.sealer());
            sealed.map_err(|source| ClientError::Unreadable { run_id: made.origin_id, source })?;
        }
        let mut graphs = Vec::with_capacity(remade.len());
        for Remade { run_id, origin_id, parent_id } in remade {
            let copied = copy_of(connection, origin_id, run_id, &self.sealer()).await?;
            graphs.extend(copied.map(|(_, graph)| (graph, parent_id)));
        }
        if graphs.is_empty() && !has_active_key {
            let created = link(connection, first, &links, begin, slice).await?;
            return Ok(Self::new(first, created, self.home()));
        }
        let mut tx = connection.begin_with(BEGIN).await?;
        let created = link(&mut tx, first, &links, begin, slice).await?;
        for (graph, parent_id) in graphs.iter().filter(|_| created) {
            submit(&mut tx, graph, Some(*parent_id)).await?;
        }
        if has_active_key && created {
            activate(&mut tx, &[first]).await?;
        }
        commit("link_whole", tx.commit()).await?;
        Ok(Self::new(first, created, self.home()))
    }

    fn refused(&self, state: RunState, verb: &'static str) -> ClientError {
        ClientError::WrongState { run_id: self.id(), state, verb }
    }
}

fn is_revivable(state: RunState) -> bool {
    matches!(state, RunState::Failed | RunState::Cancelled)
}

/// What is made in one go.
struct Whole {
    /// The run, and those below it.
    links: Vec<Link>,
    remade: Vec<Remade>,
    origin: Kept,
}

/// The properties of the original run that the new run depends on.
struct Kept {
    /// The slice that the steps are of.
    slice: i32,
    /// Whether it has an active key, as the new run.
    has_active_key: bool,
}

impl Kept {
    fn of(origin: &Origin) -> Self {
        Self { slice: origin.slice, has_active_key: origin.has_active_key }
    }
}

/// A graph that takes the place of one that a run has started: all of it runs anew.
struct Remade {
    run_id: Uuid,
    origin_id: Uuid,
    parent_id: Uuid,
}

/// The new run, and those that take the places of failed and cancelled children whose end the kept steps do not know; and graphs that do. The id of each is the
/// one that its parent would give it.
async fn with_children(
    connection: &mut PgConnection,
    run_id: Uuid,
    origin_id: Uuid,
    is_sealed: bool,
    steps: Vec<Recorded>,
) -> Result<(Vec<Link>, Vec<Remade>), ClientError> {
    let (mut links, mut remade) = (Vec::new(), Vec::new());
    let mut left = vec![(run_id, origin_id, None, is_sealed, steps)];
    while let Some((run_id, origin_id, parent_id, is_sealed, steps)) = left.pop() {
        let candidates: Vec<Uuid> = steps.iter().filter_map(started).collect();
        let found = if candidates.is_empty() { Vec::new() } else { origins(connection, &candidates).await? };
        let mut outputs = vec![None; steps.len()];
        let children = Children::among(&steps);
        for child in found.into_iter().filter(|child| is_revivable(child.state) && !child.is_undone) {
            let Some(parent_id) = child.parent_id else { continue };
            let known = Child { run_id: child.run_id, parent_id, slice: child.parent_slice };
            let Some(place) = children.start_of(known) else { continue };
            let new_id = child_run_id(run_id, &steps[place].key);
            outputs[place] = Some(Stored::read(format!("\"{new_id}\"")));
            if child.in_graph {
                remade.push(Remade { run_id: new_id, origin_id: child.run_id, parent_id: run_id });
                continue;
            }
            let steps = history_prefix::without_last_failures(child.steps);
            left.push((new_id, child.run_id, Some(run_id), child.is_sealed, steps));
        }
        let kept = |(step, output): (Recorded, _)| KeptStep {
            key: step.key,
            output,
            error: None,
            undo: None,
            seen: step.seen,
        };
        let steps = steps.into_iter().zip(outputs).map(kept).collect();
        links.push(Link {
            run_id,
            origin_id,
            parent_id,
            is_sealed,
            input: None,
            steps,
            signals: Vec::new(),
            progress: Vec::new(),
        });
    }
    Ok((links, remade))
}

/// Seals what a run takes over from its origin for the run.
fn reseal(
    link: &mut Link,
    held: Payloads,
    begin: Begin,
    is_first: bool,
    sealer: &Sealer,
) -> Result<(), PayloadError> {
    let (from, to) = (link.origin_id, link.run_id);
    let input = held.continued.filter(|_| begin.keeps_signals()).unwrap_or(held.input);
    let place = |run_id| Place::new(run_id, PayloadKind::Input, "");
    link.input = Some(sealer.reseal(&place(from), &place(to), input)?);
    let recorded: HashMap<&str, &StoredStep> = held.steps.iter().map(|step| (step.key(), step)).collect();
    for step in &mut link.steps {
        let key = step.key.as_str();
        let Some(recorded) = recorded.get(key) else { continue };
        match recorded.result() {
            Ok(output) if step.output.is_none() => {
                let (from, to) = (Place::of_step(from, key), Place::of_step(to, key));
                step.output = Some(sealer.reseal(&from, &to, output.clone())?);
            }
            Ok(_) => {}
            Err(error) => {
                let (from, to) = (place_of_error(from, key), place_of_error(to, key));
                step.error = Some(sealer.reseal_failure(&from, &to, error.clone())?);
            }
        }
        if let Some(undo) = recorded.undo() {
            let place = |run_id| Place::new(run_id, PayloadKind::Undo, key);
            step.undo = Some(sealer.reseal(&place(from), &place(to), undo.clone())?);
        }
    }
    for signal in held.signals.into_iter().filter(|_| begin.keeps_signals()) {
        let key = key_of(&signal.name, &signal.idempotency_key);
        let place = |run_id| Place::new(run_id, PayloadKind::Signal, &key);
        let payload = sealer.reseal(&place(from), &place(to), signal.payload)?;
        link.signals.push(KeptSignal { name: signal.name, number: signal.number, payload });
    }
    for (key, value) in held.progress.into_iter().filter(|_| begin.keeps_progress(is_first)) {
        let place = |run_id| Place::new(run_id, PayloadKind::Progress, &key);
        let value = sealer.reseal(&place(from), &place(to), value)?;
        link.progress.push((key, value));
    }
    Ok(())
}

fn hint(steps: &[Recorded], key: &str) -> String {
    let keys = || steps.iter().map(|step| step.key.as_str());
    if let Some(near) = nearest(key, keys()) {
        return format!("; did you mean `{near}`?");
    }
    if steps.is_empty() {
        return "; it has none at all".to_owned();
    }
    let shown: Vec<String> = keys().take(KEYS_SHOWN).map(|key| format!("`{key}`")).collect();
    let more = if steps.len() > KEYS_SHOWN { ", …" } else { "" };
    format!("; it has {}{more}", shown.join(", "))
}
