//! Link: creates new runs from old ones, with some of their recorded steps.

use serde_json::value::RawValue;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::model::payload::Stored;
use crate::model::replay::Recorded;
use crate::model::replay::recorded::StoredStep;
use crate::model::run::state::RunState;
use crate::store::attempt::checkpoint::{seen_text, steps};
use crate::store::write::write;
use crate::store::{sparse, sql};

/// A run that another run is created from.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) run_id: Uuid,
    /// How often it has continued as new.
    pub(crate) slice: i32,
    pub(crate) parent_id: Option<Uuid>,
    /// How often its parent has continued as new.
    pub(crate) parent_slice: u32,
    pub(crate) state: RunState,
    /// A step has its output only if that can be the id of a run. It has `true` for its
    /// compensation, and only if the run executed the step itself.
    pub(crate) steps: Vec<Recorded>,
    /// Whether the run compensates, or has compensated.
    pub(crate) is_compensated: bool,
    /// Whether a payload is encrypted. An encrypted payload is bound to its run, so only the client
    /// can copy it.
    pub(crate) is_sealed: bool,
    /// Whether it is a graph or a node of one.
    pub(crate) in_graph: bool,
    pub(crate) has_active_key: bool,
}

/// A run to create.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) run_id: Uuid,
    pub(crate) origin_id: Uuid,
    pub(crate) parent_id: Option<Uuid>,
    /// Whether a payload of its origin is encrypted.
    pub(crate) is_sealed: bool,
    /// Replaces the input of its origin.
    pub(crate) input: Option<Stored>,
    pub(crate) steps: Vec<KeptStep>,
    /// Replace the payloads of signals.
    pub(crate) signals: Vec<KeptSignal>,
    /// The payloads that replace the progress of bodies, each with the key of its step.
    pub(crate) progress: Vec<(String, Stored)>,
}

/// Where a new run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// At the start, like its origin.
    Anew,
    /// At a step of its origin, with the signals that no copied step consumed, and without
    /// progress. A child that is revived with it keeps the progress of the child that it replaces.
    AtStep,
    /// Where its origin ended: with its signals and its progress.
    AtEnd,
}

impl Begin {
    pub(crate) fn keeps_signals(self) -> bool {
        self != Self::Anew
    }

    pub(crate) fn keeps_progress(self, is_first: bool) -> bool {
        match self {
            Self::Anew => false,
            Self::AtStep => !is_first,
            Self::AtEnd => true,
        }
    }
}

/// A recorded step that the new run copies.
#[derive(Debug)]
pub(crate) struct KeptStep {
    pub(crate) key: String,
    /// Replaces its output: the id of a child that replaces another, or the same output encrypted
    /// for the new run.
    pub(crate) output: Option<Stored>,
    /// Replaces its error.
    pub(crate) error: Option<Stored>,
    /// Replaces the call that compensates the step.
    pub(crate) compensation: Option<Stored>,
    pub(crate) seen: Option<Vec<u64>>,
}

/// A signal to copy, with another payload.
#[derive(Debug)]
pub(crate) struct KeptSignal {
    pub(crate) name: String,
    pub(crate) number: i32,
    pub(crate) payload: Stored,
}

/// The payloads of a run that another run is created from.
#[derive(Debug)]
pub(crate) struct Payloads {
    pub(crate) input: Stored,
    /// The latest input of a run that has continued as new.
    pub(crate) continued: Option<Stored>,
    pub(crate) steps: Vec<StoredStep>,
    pub(crate) signals: Vec<Signal>,
    /// The last progress of bodies, each with the key of its step.
    pub(crate) progress: Vec<(String, Stored)>,
}

/// A signal that was sent to a run from which another is created.
#[derive(Debug)]
pub(crate) struct Signal {
    pub(crate) name: String,
    pub(crate) number: i32,
    pub(crate) idempotency_key: String,
    pub(crate) payload: Stored,
}

/// Reads the payloads of a run.
pub(crate) async fn payloads(connection: &mut PgConnection, run_id: Uuid) -> Result<Payloads, sqlx::Error> {
    type Sent = (String, i32, String, Box<RawValue>);
    let row = sqlx::query(sql::LINK_FROM).bind(run_id).fetch_one(connection).await?;
    let undecodable = |error: serde_json::Error| sqlx::Error::Decode(error.into());
    let signals: Option<String> = row.try_get("signals")?;
    let sent: Vec<Sent> = serde_json::from_str(signals.as_deref().unwrap_or("[]")).map_err(undecodable)?;
    let progress: Option<String> = row.try_get("progress")?;
    let noted: Vec<(String, Box<RawValue>)> =
        serde_json::from_str(progress.as_deref().unwrap_or("[]")).map_err(undecodable)?;
    let noted = noted.into_iter().map(|(key, value)| (key, Stored::read(value.get().to_owned())));
    let signals = sent.into_iter().map(|(name, number, idempotency_key, payload)| {
        let payload = Stored::read(payload.get().to_owned());
        Signal { name, number, idempotency_key, payload }
    });
    Ok(Payloads {
        input: Stored::read(row.try_get("input")?),
        continued: row.try_get::<Option<String>, _>("continued")?.map(Stored::read),
        steps: steps(&row)?,
        signals: signals.collect(),
        progress: noted.collect(),
    })
}

/// Reads runs and their steps. Leaves out runs that do not exist.
pub(crate) async fn origins(
    connection: &mut PgConnection,
    runs: &[Uuid],
) -> Result<Vec<Origin>, sqlx::Error> {
    let rows = sqlx::query(sql::ORIGINS).bind(runs).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(Origin {
                run_id: row.try_get("run_id")?,
                slice: row.try_get("slice")?,
                parent_id: row.try_get("parent_id")?,
                parent_slice: row.try_get::<i32, _>("parent_slice")?.unsigned_abs(),
                state: super::inspect::state(row)?,
                steps: steps(row)?.into_iter().map(StoredStep::unopened).collect(),
                is_compensated: row.try_get("is_compensated")?,
                is_sealed: row.try_get("is_sealed")?,
                in_graph: row.try_get("in_graph")?,
                has_active_key: row.try_get::<Option<bool>, _>("has_active_key")?.unwrap_or(false),
            })
        })
        .collect()
}

/// Returns a live descendant of a run, if there is one.
pub(crate) async fn going_on_below(
    connection: &mut PgConnection,
    run_id: Uuid,
) -> Result<Option<Uuid>, sqlx::Error> {
    sqlx::query_scalar(sql::GOING_ON_BELOW).bind(run_id).fetch_optional(connection).await
}

/// Creates a run, and the descendants that are created with it. Returns false and creates nothing
/// if the run exists, or if its origin has continued as new since `slice`.
pub(crate) async fn link(
    connection: &mut PgConnection,
    first: Uuid,
    links: &[Link],
    begin: Begin,
    slice: i32,
) -> Result<bool, sqlx::Error> {
    let steps: Vec<(Uuid, &KeptStep)> =
        links.iter().flat_map(|link| link.steps.iter().map(|step| (link.run_id, step))).collect();
    let sent: Vec<(Uuid, &KeptSignal)> =
        links.iter().flat_map(|link| link.signals.iter().map(|signal| (link.run_id, signal))).collect();
    let noted: Vec<(Uuid, &(String, Stored))> =
        links.iter().flat_map(|link| link.progress.iter().map(|noted| (link.run_id, noted))).collect();
    let row = write(sql::LINK, |make| {
        sqlx::query(make)
            .bind(first)
            .bind(links.iter().map(|link| link.run_id).collect::<Vec<_>>())
            .bind(links.iter().map(|link| link.origin_id).collect::<Vec<_>>())
            .bind(links.iter().map(|link| link.parent_id).collect::<Vec<_>>())
            .bind(steps.iter().map(|(run_id, _)| *run_id).collect::<Vec<_>>())
            .bind(steps.iter().map(|(_, step)| step.key.as_str()).collect::<Vec<_>>())
            .bind(steps.iter().map(|(_, step)| step.output.as_ref().map(Stored::as_str)).collect::<Vec<_>>())
            .bind(steps.iter().map(|(_, step)| seen_text(step.seen.as_deref())).collect::<Vec<_>>())
            .bind(begin.keeps_signals())
            .bind(sparse(links.iter().map(|link| link.input.as_ref().map(Stored::as_str))))
            .bind(sparse(steps.iter().map(|(_, step)| step.error.as_ref().map(Stored::as_str))))
            .bind(sent.iter().map(|(run_id, _)| *run_id).collect::<Vec<_>>())
            .bind(sent.iter().map(|(_, signal)| signal.name.as_str()).collect::<Vec<_>>())
            .bind(sent.iter().map(|(_, signal)| signal.number).collect::<Vec<_>>())
            .bind(sent.iter().map(|(_, signal)| signal.payload.as_str()).collect::<Vec<_>>())
            .bind(sparse(steps.iter().map(|(_, step)| step.compensation.as_ref().map(Stored::as_str))))
            .bind(noted.iter().map(|(run_id, _)| *run_id).collect::<Vec<_>>())
            .bind(noted.iter().map(|(_, (key, _))| key.as_str()).collect::<Vec<_>>())
            .bind(noted.iter().map(|(_, (_, value))| value.as_str()).collect::<Vec<_>>())
            .bind(begin.keeps_progress(true))
            .bind(slice)
            .fetch_one(connection)
    })
    .await?;
    row.try_get("created")
}

/// Another run that has the same recorded step as a given run.
#[derive(Debug)]
pub(crate) struct Sharer {
    pub(crate) run_id: Uuid,
    /// Whether this run is a direct or indirect origin of the given run.
    pub(crate) is_before: bool,
    pub(crate) has_ended: bool,
    /// Whether this run has compensated the step.
    pub(crate) is_compensated: bool,
    /// Whether this run has continued as new since, so that it is unknown whether it compensated
    /// the step.
    pub(crate) has_forgotten: bool,
}

/// Returns the other runs that have this recorded step of a run. Empty if the run executed the step
/// itself.
pub(crate) async fn sharers(
    connection: &mut PgConnection,
    run_id: Uuid,
    key: &str,
) -> Result<Vec<Sharer>, sqlx::Error> {
    let rows = sqlx::query(sql::SHARERS).bind(run_id).bind(key).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(Sharer {
                run_id: row.try_get("run_id")?,
                is_before: row.try_get("is_before")?,
                has_ended: row.try_get("has_ended")?,
                is_compensated: row.try_get("is_compensated")?,
                has_forgotten: row.try_get("has_forgotten")?,
            })
        })
        .collect()
}
