//! Creates new runs from old ones: rerun from the start, fork at a step, or revive a failed run.
//!
//! A run that has ended never changes. Each operation creates a new run, linked to the old one as
//! its origin.

use std::collections::HashMap;

use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::client::enqueue::activate;
use crate::client::graph_copy::copy_of;
use crate::client::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::connection;
use crate::engine::step::signals::key_of;
use crate::model::payload::{PayloadError, PayloadKind, Place, Sealer, Stored};
use crate::model::replay::Recorded;
use crate::model::replay::history_prefix::{self, Child, Children, started};
use crate::model::replay::recorded::{StoredStep, place_of_error};
use crate::model::run::name::nearest;
use crate::model::run::request::{child_run_id, revived_run_id};
use crate::model::run::state::RunState;
use crate::store::graph::submit;
use crate::store::run::link::{
    Begin, KeptSignal, KeptStep, Link, Origin, Payloads, going_on_below, link, origins, payloads,
};
use crate::store::session::BEGIN;
use crate::store::write::commit;

/// How many keys an error lists if no key is similar to the requested one.
const KEYS_SHOWN: usize = 8;

impl<T> RunHandle<T> {
    /// Creates a new run that executes an ended run again from the start.
    ///
    /// The new run has the same job, input, options, queue, priority and tenant. It has no
    /// idempotency key and no parent. It starts at once: a `delay` or `start_at` of the old run
    /// does not apply. Each call creates another run.
    ///
    /// # Errors
    /// [`ClientError::WrongState`] if the run is live, [`ClientError::BelongsToGraph`],
    /// [`ClientError::NoSuchRun`], or a database error.
    ///
    /// # Cost
    /// One query and one statement.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still create the run.
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

    /// Creates a new run that keeps the recorded steps before `step_key` and executes from there.
    ///
    /// The original run is not changed and keeps running if it is live. It may be in any state.
    /// Each call creates another run.
    ///
    /// - **Parallel branches** keep the steps that did not depend on the result of `step_key`.
    /// - **Recorded values**: once one branch requests a value of [`now`](crate::Wf::now),
    ///   [`uuid`](crate::Wf::uuid), [`random`](crate::Wf::random) or
    ///   [`patched`](crate::Wf::patched), every branch may have seen it. If the new run would
    ///   request such a value again in parallel with other branches, it keeps only the steps that
    ///   started before the last result any branch received before that request. It executes the
    ///   later ones again.
    /// - **Signals** of the original are copied. The new run receives those that no kept step
    ///   consumed.
    /// - **Progress** is not copied: each step that the new run executes starts from its beginning.
    /// - **Children** that kept steps started stay children of the original. They are cancelled
    ///   only with the original, also when it fails. If the new run awaits one, it polls every 5 s.
    ///   Exception: a child that failed or was cancelled, and whose end no kept step has seen, is
    ///   replaced as in [`revive`](Self::revive).
    /// - **Sagas**: the effects of the kept steps exist once, and both runs rely on them. If the
    ///   new run fails or is cancelled, it compensates only its own steps, because the original may
    ///   have completed. [`Saga::compensate`](crate::Saga::compensate) in the new run compensates
    ///   kept steps after the original has ended, unless the original or another fork did so
    ///   already; until then the new run is blocked. If the original fails later, it compensates
    ///   its own steps, including those that a fork relies on.
    /// - **Compensated steps** cannot be kept. Fork from a step before them. The same holds for
    ///   steps that the original is about to compensate.
    ///
    /// # Errors
    /// [`ClientError::UnknownStep`], [`ClientError::StepCompensated`],
    /// [`ClientError::BelongsToGraph`], [`ClientError::NoSuchRun`], or a database error.
    ///
    /// # Cost
    /// One query and one statement, plus one query per level of children.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still create the run.
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
        let is_being_compensated = origin.is_compensated && !origin.state.is_terminal();
        if let Some(key) = history_prefix::taken_back(&origin.steps, &steps, is_being_compensated) {
            return Err(ClientError::StepCompensated { run_id: self.id(), key: key.to_owned() });
        }
        let (links, remade) =
            with_children(connection, Uuid::now_v7(), self.id(), origin.is_sealed, steps).await?;
        self.linked(connection, Whole { links, remade, origin: Kept::of(&origin) }, Begin::AtStep).await
    }

    /// Creates a new run that continues a failed or cancelled run from where it ended.
    ///
    /// The new run keeps all recorded steps, except the failures that ended the old run: those
    /// steps execute again with fresh attempts. The progress and the signals of the old run are
    /// copied. Children that failed or were cancelled are revived too, if no kept step has seen
    /// their end. A child graph is submitted again and executes completely.
    ///
    /// A run is revived at most once: the id of the new run follows from the id of the old one. A
    /// second call returns the same run, with [`created`](Self::created) false. `expected` is the
    /// state of the run as you saw it when you decided to revive it.
    ///
    /// All descendants of the run must have ended. The descendants of a failed or cancelled run are
    /// cancelled, which takes a moment.
    ///
    /// You cannot revive a run whose compensations have run, because the effects of its steps are
    /// gone. Use [`rerun`](Self::rerun). Steps that the code compensated by
    /// [`Saga::compensate`](crate::Saga::compensate) before the run failed stay compensated, once.
    ///
    /// # Errors
    /// [`ClientError::WrongState`] if the run is not in the state `expected`, or is neither failed
    /// nor cancelled; [`ClientError::DescendantsRunning`]; [`ClientError::CompensationsRan`];
    /// [`ClientError::BelongsToGraph`]; [`ClientError::NoSuchRun`]; or a database error.
    ///
    /// # Cost
    /// Two queries and one statement, plus one query per level of children.
    ///
    /// # Cancel safety
    /// A dropped call may still create the run. Repeating it returns the same run.
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

    /// Checks every reason that forbids a revive.
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
        if origin.is_compensated {
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
        // A sealed payload is bound to its run, so the copy must be sealed again.
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
            return Ok(self.sibling(first, created));
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
        Ok(self.sibling(first, created))
    }

    fn refused(&self, state: RunState, verb: &'static str) -> ClientError {
        ClientError::WrongState { run_id: self.id(), state, verb }
    }
}

fn is_revivable(state: RunState) -> bool {
    matches!(state, RunState::Failed | RunState::Cancelled)
}

/// The runs that one transaction creates.
struct Whole {
    /// The run and its descendants.
    links: Vec<Link>,
    remade: Vec<Remade>,
    origin: Kept,
}

/// The properties of the original run that the new run depends on.
struct Kept {
    /// The slice that the kept steps belong to.
    slice: i32,
    /// Whether the original has an active key, and so the new run.
    has_active_key: bool,
}

impl Kept {
    fn of(origin: &Origin) -> Self {
        Self { slice: origin.slice, has_active_key: origin.has_active_key }
    }
}

/// A graph that replaces a child graph. All of its nodes execute again.
struct Remade {
    run_id: Uuid,
    origin_id: Uuid,
    parent_id: Uuid,
}

/// Returns the new run, and the replacements of its failed and cancelled children and child graphs
/// whose end no kept step has seen. Each replacement has the id that its parent would give it.
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
        for child in found.into_iter().filter(|child| is_revivable(child.state) && !child.is_compensated) {
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
            compensation: None,
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

/// Seals the payloads that a run copies from its origin.
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
        if let Some(compensation) = recorded.compensation() {
            let place = |run_id| Place::new(run_id, PayloadKind::Compensation, key);
            step.compensation = Some(sealer.reseal(&place(from), &place(to), compensation.clone())?);
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
