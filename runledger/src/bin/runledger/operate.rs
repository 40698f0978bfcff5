//! Acts on runs, jobs and resources, and shows metrics.

use std::time::Duration;

use runledger::{Cancelled, Db, JobMetrics, JobOverrides, Paused, Quantiles, Resource, TenantScope};
use serde_json::{Value, json};
use uuid::Uuid;

use super::Said;
use super::shown::{json as json_line, long, shown, table};

/// The largest page of resources that the library returns.
const PAGE: usize = 1_000;

/// Formats a result: a sentence for people, or a value for programs.
fn said(json: bool, sentence: String, value: &Value) -> Said {
    if json { json_line(value) } else { Ok(sentence + "\n") }
}

pub(crate) async fn cancel(db: &Db, run: Uuid, reason: &str, json: bool) -> Said {
    let (done, sentence) = match db.run(run).cancel(reason).await? {
        Cancelled::Now => ("cancelled", "is cancelled".to_owned()),
        Cancelled::AlreadyEnded(state) => {
            ("already_ended", format!("was {state} already; what goes on below it is cancelled"))
        }
        _ => ("requested", "is cancelled at its next await, or once what it did is taken back".to_owned()),
    };
    said(json, format!("run `{run}` {sentence}"), &json!({ "run_id": run, "cancel": done }))
}

pub(crate) async fn pause(db: &Db, run: Uuid, reason: &str, json: bool) -> Said {
    let (done, sentence) = match db.run(run).pause(reason).await? {
        Paused::Now => ("paused", "is paused"),
        _ => ("requested", "is paused at its next await"),
    };
    said(json, format!("run `{run}` {sentence}"), &json!({ "run_id": run, "pause": done }))
}

pub(crate) async fn resume(db: &Db, run: Uuid, json: bool) -> Said {
    db.run(run).resume().await?;
    said(json, format!("run `{run}` goes on"), &json!({ "run_id": run, "resume": "resumed" }))
}

pub(crate) async fn adopt(db: &Db, json: bool) -> Said {
    let adopted = db.adopt().await?;
    let sentence = if adopted.was_copy {
        format!("this database was a copy and is installation `{}` now; workers start here", adopted.id)
    } else {
        format!("this database is no copy: it is installation `{}`; nothing was written", adopted.id)
    };
    said(json, sentence, &json!({ "installation": adopted.id, "was_copy": adopted.was_copy }))
}

/// The overrides of a job under this name.
async fn overrides(db: &Db, job: &str) -> Result<Option<JobOverrides>, runledger::ClientError> {
    let all = db.overrides().await?;
    Ok(all.into_iter().find(|stored| stored.job == job).map(|stored| stored.overrides))
}

pub(crate) async fn disable(db: &Db, job: &str, why: &str, json: bool) -> Said {
    let overrides = overrides(db, job).await?.unwrap_or_default();
    db.set_overrides(job, overrides.disabled(why)).await?;
    let sentence = format!(
        "job `{}` is disabled on every worker from its next heartbeat on: {}",
        shown(job),
        shown(why)
    );
    said(json, sentence, &json!({ "job": job, "disabled": why }))
}

pub(crate) async fn enable(db: &Db, job: &str, json: bool) -> Said {
    let overrides = overrides(db, job).await?.unwrap_or_default();
    if overrides.why_disabled().is_none() {
        return Err(not_disabled(db, job).await?.into());
    }
    let rest = overrides.enabled();
    if rest == JobOverrides::new() {
        db.clear_overrides(job).await?;
    } else {
        db.set_overrides(job, rest).await?;
    }
    let sentence = format!("job `{}` is enabled on every worker from its next heartbeat on", shown(job));
    said(json, sentence, &json!({ "job": job, "disabled": null }))
}

async fn not_disabled(db: &Db, job: &str) -> Result<String, runledger::ClientError> {
    let disabled =
        db.overrides().await?.into_iter().filter(|stored| stored.overrides.why_disabled().is_some());
    let names: Vec<String> = disabled.map(|stored| format!("`{}`", stored.job)).collect();
    let which = if names.is_empty() { "no job".to_owned() } else { names.join(", ") };
    Ok(format!("job `{job}` is not disabled under this name; nothing was written; disabled is {which}"))
}

pub(crate) async fn permits(db: &Db, name: &str, permits: Option<u32>, json: bool) -> Said {
    let before = db.set_permits(name, permits).await?;
    let now = permits.map_or("1 permit, as nobody says otherwise".to_owned(), |n| {
        format!("{n} {}", if n == 1 { "permit" } else { "permits" })
    });
    let was = before.map_or("nothing was said before".to_owned(), |n| format!("{n} before"));
    let value = json!({ "resource": name, "permits": permits, "before": before });
    said(json, format!("resource `{}` has {now}; {was}", shown(name)), &value)
}

pub(crate) async fn resources(db: &Db, json: bool) -> Said {
    let mut all: Vec<Resource> = Vec::new();
    loop {
        let more = db.resources(all.last().map(|last| last.name.as_str())).await?;
        let is_last = more.len() < PAGE;
        all.extend(more);
        if is_last {
            break;
        }
    }
    if json {
        let value = |it: &Resource| json!({ "resource": it.name, "permits": it.permits, "is_said": it.is_set, "held": it.n_held, "waiting": it.n_waiting });
        return json_line(&all.iter().map(value).collect::<Vec<_>>());
    }
    let row = |it: &Resource| {
        let said = if it.is_set { "yes" } else { "no" };
        let (permits, held, waiting) =
            (it.permits.to_string(), it.n_held.to_string(), it.n_waiting.to_string());
        [shown(&it.name), permits, said.to_owned(), held, waiting]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    Ok(table(["RESOURCE", "PERMITS", "SAID", "HELD", "WAITING"], &rows))
}

pub(crate) async fn metrics(db: &Db, scope: TenantScope, window: Duration, json: bool) -> Said {
    let metrics = db.metrics(scope, window).await?;
    if json {
        let jobs: Vec<Value> = metrics.jobs.iter().map(metrics_value).collect();
        return json_line(&json!({ "jobs": jobs, "is_partial": metrics.is_partial }));
    }
    let titles = [
        "TENANT",
        "JOB",
        "QUEUED",
        "DUE FOR",
        "SCHEDULED",
        "RUNNING",
        "WAITING",
        "BLOCKED",
        "PAUSED",
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "RETRIED",
        "WAIT P50",
        "WAIT P95",
        "WORK P50",
        "WORK P95",
    ];
    let rows: Vec<_> = metrics.jobs.iter().map(metrics_row).collect();
    let mut said = table(titles, &rows);
    if metrics.is_partial {
        said.push_str("there are more runs than were looked at: the counts are at least these\n");
    }
    Ok(said)
}

fn metrics_row(job: &JobMetrics) -> [String; 17] {
    let counts = [
        job.scheduled,
        job.running,
        job.waiting,
        job.blocked,
        job.paused,
        job.completed,
        job.failed,
        job.cancelled,
        job.retried,
    ];
    let [scheduled, running, waiting, blocked, paused, completed, failed, cancelled, retried] =
        counts.map(|n| n.to_string());
    let p50 = |of: &Option<Quantiles>| long(of.as_ref().map(|of| of.p50));
    let p95 = |of: &Option<Quantiles>| long(of.as_ref().map(|of| of.p95));
    [
        shown(&job.tenant),
        shown(&job.job),
        job.queued.to_string(),
        long(job.oldest),
        scheduled,
        running,
        waiting,
        blocked,
        paused,
        completed,
        failed,
        cancelled,
        retried,
        p50(&job.wait),
        p95(&job.wait),
        p50(&job.work),
        p95(&job.work),
    ]
}

fn metrics_value(job: &JobMetrics) -> Value {
    let seconds = |of: &Option<Quantiles>| {
        of.as_ref().map(|of| json!({ "p50": of.p50.as_secs_f64(), "p95": of.p95.as_secs_f64() }))
    };
    json!({
        "tenant": (!job.tenant.is_empty()).then_some(&job.tenant),
        "job": job.job,
        "queued": job.queued,
        "oldest_seconds": job.oldest.map(|oldest| oldest.as_secs_f64()),
        "scheduled": job.scheduled,
        "running": job.running,
        "waiting": job.waiting,
        "blocked": job.blocked,
        "paused": job.paused,
        "completed": job.completed,
        "failed": job.failed,
        "cancelled": job.cancelled,
        "retried": job.retried,
        "wait_seconds": seconds(&job.wait),
        "work_seconds": seconds(&job.work),
    })
}
