//! Lists runs, and shows the details of one run.

use std::fmt::Write;

use runledger::{
    AttemptInfo, Db, Failure, FailureKind, LogLine, RunInfo, StepInfo, TenantScope, TimelineEntry,
};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use super::Said;
use super::args::Runs;
use super::shown::{instant, json as json_line, shown, table, when};

/// Lists a page of runs, and prints the cursor of the next page.
pub(crate) async fn list(db: &Db, wanted: Runs, json: bool) -> Said {
    let mut list = db.runs(wanted.scope.into()).limit(wanted.limit);
    for job in &wanted.job {
        list = list.job(job);
    }
    for queue in wanted.queue {
        list = list.queue(queue);
    }
    for state in wanted.state {
        list = list.state(state);
    }
    if let Some(place) = wanted.after {
        list = list.after(place);
    }
    let page = list.await?;
    let next = page.next.map(|place| place.to_string());
    if json {
        let runs: Vec<Value> = page.runs.iter().map(run_value).collect();
        return json_line(&json!({ "runs": runs, "next": next }));
    }
    let rows: Vec<_> = page
        .runs
        .iter()
        .map(|run| {
            let error = run.error.as_ref().map(|error| shown(&error.message)).unwrap_or_default();
            let (state, attempt) = (run.state.to_string(), run.attempt.to_string());
            let (tenant, queue) = (shown(&run.tenant), shown(&run.queue));
            [
                run.run_id.to_string(),
                job(run),
                state,
                attempt,
                tenant,
                queue,
                when(Some(run.created_at)),
                error,
            ]
        })
        .collect();
    let titles = ["RUN", "JOB", "STATE", "ATTEMPT", "TENANT", "QUEUE", "CREATED", "ERROR"];
    let mut said = table(titles, &rows);
    if let Some(next) = next {
        let _ = writeln!(said, "there may be more: --after {next}");
    }
    Ok(said)
}

/// Shows the state of a run, its error with the causes, and its attempts.
pub(crate) async fn show(db: &Db, run: Uuid, scope: &TenantScope, json: bool) -> Said {
    let run = db.run_within(scope, run).await?;
    let attempts = db.run(run.run_id).attempts().await?;
    if json {
        let mut value = run_value(&run);
        value["attempts"] = attempts.iter().map(attempt_value).collect();
        return json_line(&value);
    }
    let mut said = String::new();
    for (title, value) in facts(&run) {
        let _ = writeln!(said, "{title:<16}{value}");
    }
    if let Some(error) = &run.error {
        said.push_str(&failure(error));
    }
    if !attempts.is_empty() {
        let rows: Vec<_> = attempts.iter().map(attempt_row).collect();
        let titles = ["ATTEMPT", "STEP", "WORKER", "STARTED", "ENDED", "ERROR"];
        let _ = write!(said, "\n{}", table(titles, &rows));
    }
    Ok(said)
}

/// The facts about a run, each with a title.
fn facts(run: &RunInfo) -> Vec<(&'static str, String)> {
    let id = |id: Option<Uuid>| id.map(|id| id.to_string());
    let instant = |time: Option<_>| time.map(|time| when(Some(time)));
    let signals = (!run.awaited_signals.is_empty()).then(|| shown(run.awaited_signals.join(", ")));
    let facts = [
        ("run", Some(run.run_id.to_string())),
        ("job", Some(job(run))),
        ("state", Some(run.state.to_string())),
        ("tenant", (!run.tenant.is_empty()).then(|| shown(&run.tenant))),
        ("queue", Some(shown(&run.queue))),
        ("priority", Some(run.priority.to_string())),
        ("idempotency key", run.idempotency_key.as_ref().map(shown)),
        ("parent", id(run.parent_id)),
        ("origin", id(run.origin_id)),
        ("attempt", Some(run.attempt.to_string())),
        ("crashes", (run.crashes > 0).then(|| run.crashes.to_string())),
        ("cause", run.cause.as_ref().map(shown)),
        ("waits for", signals),
        ("paused", run.pause_reason.as_ref().map(shown)),
        ("compensating", run.compensating.then(|| "what its steps did is taken back first".to_owned())),
        ("created", instant(Some(run.created_at))),
        ("ready", instant(run.ready_at)),
        ("started", instant(run.started_at)),
        ("finished", instant(run.finished_at)),
        ("worker", run.worker_id.map(|id| id.to_string())),
    ];
    facts.into_iter().filter_map(|(title, value)| Some((title, value?))).collect()
}

/// A failure with its causes, one per line.
fn failure(failure: &Failure) -> String {
    // Most failures are errors that the function returned, and the text of a cancellation says what
    // it is.
    let is_plain = matches!(failure.kind, FailureKind::Error | FailureKind::Cancelled);
    let kind = (!is_plain).then(|| json!(failure.kind));
    let kind = kind.as_ref().and_then(Value::as_str).map(|kind| format!("{kind}: ")).unwrap_or_default();
    let place = failure.location.as_ref().map(|place| format!(" (at {})", shown(place))).unwrap_or_default();
    let mut said = format!("{:<16}{kind}{}{place}\n", "error", shown(&failure.message));
    for cause in &failure.causes {
        let _ = writeln!(said, "{:<16}{}", "  because", shown(cause));
    }
    said
}

fn attempt_row(attempt: &AttemptInfo) -> [String; 6] {
    let worker = attempt.worker.as_ref().map_or_else(|| attempt.worker_id.to_string(), shown);
    let error = attempt.error.as_ref().map(|error| shown(error.to_string())).unwrap_or_default();
    [
        attempt.attempt.to_string(),
        shown(&attempt.step_key),
        worker,
        when(attempt.started_at),
        when(Some(attempt.ended_at)),
        error,
    ]
}

/// Lists the recorded steps of a run.
pub(crate) async fn steps(db: &Db, run: Uuid, json: bool) -> Said {
    db.run(run).info().await?;
    let steps = db.run(run).steps().await?;
    if json {
        let steps: Vec<_> = steps.iter().map(Step::of).collect();
        return json_line(&steps);
    }
    let rows: Vec<_> = steps
        .iter()
        .map(|step| {
            let (result, value) = match &step.result {
                Ok(output) => ("output", shown(output)),
                Err(failure) => ("error", shown(failure.to_string())),
            };
            let recorded = when(Some(step.recorded_at));
            [step.ordinal.to_string(), shown(&step.key), recorded, result.to_owned(), value]
        })
        .collect();
    Ok(table(["PLACE", "STEP", "RECORDED", "RESULT", "VALUE"], &rows))
}

/// A step as JSON. Its output stays raw, because another type would lose digits of long numbers.
#[derive(Serialize)]
struct Step<'s> {
    key: &'s str,
    ordinal: i64,
    claim: i32,
    recorded_at: String,
    output: Option<Box<RawValue>>,
    error: Option<&'s Failure>,
}

impl<'s> Step<'s> {
    fn of(step: &'s StepInfo) -> Self {
        let StepInfo { key, ordinal, claim, recorded_at, .. } = step;
        let output = step.result.as_ref().ok().and_then(|text| serde_json::from_str(text).ok());
        let error = step.result.as_ref().err();
        Self { key, ordinal: *ordinal, claim: *claim, recorded_at: instant(*recorded_at), output, error }
    }
}

/// Shows the timeline of a run.
pub(crate) async fn timeline(db: &Db, run: Uuid, json: bool) -> Said {
    db.run(run).info().await?;
    let told = db.run(run).timeline().await?;
    if json {
        let told: Vec<Value> = told.iter().map(entry_value).collect();
        return json_line(&told);
    }
    let rows: Vec<_> = told
        .iter()
        .map(|entry| {
            let attempt = entry.attempt.map(|attempt| attempt.to_string()).unwrap_or_default();
            let worker = entry.worker_id.map(|worker| worker.to_string()).unwrap_or_default();
            let text = |text: &Option<String>| text.as_ref().map(shown).unwrap_or_default();
            let (step, detail) = (text(&entry.step_key), text(&entry.detail));
            [instant(entry.at), entry.what.as_str().replace('_', " "), step, attempt, worker, detail]
        })
        .collect();
    Ok(table(["AT", "WHAT", "STEP", "ATTEMPT", "WORKER", "DETAIL"], &rows))
}

fn entry_value(entry: &TimelineEntry) -> Value {
    json!({
        "at": instant(entry.at),
        "what": entry.what.as_str(),
        "step_key": entry.step_key,
        "attempt": entry.attempt,
        "worker_id": entry.worker_id,
        "detail": entry.detail,
    })
}

/// Prints the logs of a run's bodies.
pub(crate) async fn logs(db: &Db, run: Uuid, from: u64, json: bool) -> Said {
    db.run(run).info().await?;
    let mut lines: Vec<LogLine> = Vec::new();
    loop {
        let next = lines.last().map_or(from.max(1), |line| line.number + 1);
        let more = db.run(run).logs(next).await?;
        if more.is_empty() {
            break;
        }
        lines.extend(more);
    }
    if json {
        let lines: Vec<Value> = lines.iter().map(line_value).collect();
        return json_line(&lines);
    }
    Ok(lines.iter().map(line).collect())
}

fn line(line: &LogLine) -> String {
    let step = if line.step_key.is_empty() { String::new() } else { format!(" [{}]", shown(&line.step_key)) };
    let fields: String =
        line.fields.iter().map(|(name, value)| format!(" {}={}", shown(name), shown(value))).collect();
    format!(
        "{} {} {:<5} {}/{}{step}: {}{fields}\n",
        line.number,
        instant(line.logged_at),
        shown(&line.level),
        shown(&line.target),
        line.attempt,
        shown(&line.message)
    )
}

fn line_value(line: &LogLine) -> Value {
    json!({
        "number": line.number,
        "step_key": line.step_key,
        "attempt": line.attempt,
        "level": line.level,
        "target": line.target,
        "message": line.message,
        "fields": line.fields,
        "logged_at": instant(line.logged_at),
    })
}

/// The name of the job, with its version if that is above 1.
fn job(run: &RunInfo) -> String {
    if run.version > 1 { format!("{}@{}", shown(&run.job), run.version) } else { shown(&run.job) }
}

fn run_value(run: &RunInfo) -> Value {
    json!({
        "run_id": run.run_id,
        "job": run.job,
        "version": run.version,
        "tenant": (!run.tenant.is_empty()).then_some(&run.tenant),
        "queue": run.queue,
        "priority": run.priority,
        "idempotency_key": run.idempotency_key,
        "parent_id": run.parent_id,
        "origin_id": run.origin_id,
        "created_at": instant(run.created_at),
        "state": run.state,
        "attempt": run.attempt,
        "crashes": run.crashes,
        "cause": run.cause,
        "ready_at": run.ready_at.map(instant),
        "worker_id": run.worker_id,
        "started_at": run.started_at.map(instant),
        "finished_at": run.finished_at.map(instant),
        "error": run.error,
        "compensating": run.compensating,
        "pause_reason": run.pause_reason,
        "awaited_signals": run.awaited_signals,
    })
}

fn attempt_value(attempt: &AttemptInfo) -> Value {
    json!({
        "attempt": attempt.attempt,
        "step_key": attempt.step_key,
        "worker_id": attempt.worker_id,
        "worker": attempt.worker,
        "started_at": attempt.started_at.map(instant),
        "ended_at": instant(attempt.ended_at),
        "error": attempt.error,
    })
}
