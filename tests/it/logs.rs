//! Logs of bodies, stored by run.

use std::sync::OnceLock;

use runledger::prelude::*;
use runledger::{App, LogLine, RunLogs, Timings, Worker};
use runledger_tests::rows::{scalar, soon};
use runledger_tests::{Fixture, eventually};
use tracing::{Event, Instrument, Level, Subscriber};
use tracing_subscriber::layer::{self, Layer};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;
use uuid::Uuid;

#[job(max_attempts = 2, backoff = "1ms..1ms")]
pub async fn speaks(#[inject] context: &Context) -> Result<u32> {
    tracing::info!(count = 3, who = "ann", "begins");
    tracing::debug!("not kept");
    tokio::task::yield_now().await;
    if context.attempt() == 1 {
        tracing::warn!("fails");
        return Err("on purpose".into());
    }
    let within = tracing::info_span!("inner");
    async { tracing::error!(ok = true, "in a span of its own") }.instrument(within).await;
    let spawned = tokio::spawn(async { tracing::info!("in a task of its own") }.in_current_span());
    spawned.await.unwrap();
    tokio::spawn(async { tracing::info!("of nobody") }).await.unwrap();
    Ok(1)
}

#[workflow]
async fn talks(wf: &Wf) -> Result<()> {
    tracing::info!("between steps");
    wf.run(speaks()).await?;
    wf.step("inline", || async {
        tracing::info!("in an inline step");
        Ok::<(), Error>(())
    })
    .await?;
    wf.tx("closure", |_tx| async move {
        tracing::info!("in a transaction");
        Ok::<(), Error>(())
    })
    .await?;
    Ok(())
}

#[job]
async fn chatters(n: u64) -> Result<()> {
    for line in 0..n {
        tracing::info!(line, "{}", "x".repeat(200));
        if line % 1_000 == 0 {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

#[job]
async fn says_much() -> Result<()> {
    tracing::info!(long = "y".repeat(5_000), "{}\0", "€".repeat(5_000));
    Ok(())
}

/// Logs an event while it is formatted.
struct Restless;

impl std::fmt::Debug for Restless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        tracing::info!("is shown");
        f.write_str("restless")
    }
}

#[job]
async fn says_odd_things() -> Result<()> {
    tracing::info!(target: "a\0b", "of an odd target");
    tracing::info!(value = ?Restless, "has shown it");
    Ok(())
}

/// A layer that stores data in the span of each event, like exporters of spans.
struct Counts;

impl<S> Layer<S> for Counts
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_event(&self, event: &Event<'_>, context: layer::Context<'_, S>) {
        if let Some(span) = context.event_span(event) {
            span.extensions_mut().replace(0_u64);
        }
    }
}

/// Starts a worker that stores logs, in a process whose subscriber receives them.
pub async fn worker(db: &Db) -> Worker {
    static HEARD: OnceLock<()> = OnceLock::new();
    HEARD.get_or_init(|| tracing_subscriber::registry().with(Counts).with(RunLogs::layer()).init());
    let app = App::new(db.clone())
        .with(jobs![speaks, talks, chatters, says_much, says_odd_things])
        .timings(Timings::FAST);
    app.keep_logs(Level::INFO).start().await.unwrap()
}

async fn kept(db: &Db, run_id: Uuid, n_lines: usize) -> Vec<LogLine> {
    eventually(async || db.run(run_id).logs(1).await.unwrap(), |lines| lines.len() == n_lines).await
}

fn said(lines: &[LogLine]) -> Vec<(&str, &str, &str)> {
    lines.iter().map(|line| (line.step_key.as_str(), line.level.as_str(), line.message.as_str())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn body_logs_are_stored_by_run_and_attempt_with_fields() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db).await;
    let [one, other] = [speaks().enqueue(&db).await.unwrap(), speaks().enqueue(&db).await.unwrap()];
    for run in [&one, &other] {
        soon(run.result()).await.unwrap();
        let lines = kept(&db, run.id(), 5).await;
        assert_eq!(
            said(&lines),
            [
                ("", "INFO", "begins"),
                ("", "WARN", "fails"),
                ("", "INFO", "begins"),
                ("", "ERROR", "in a span of its own"),
                ("", "INFO", "in a task of its own"),
            ]
        );
        assert_eq!(lines.iter().map(|line| line.attempt).collect::<Vec<_>>(), [1, 1, 2, 2, 2]);
        assert_eq!(lines.iter().map(|line| line.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        let fields: Vec<_> =
            lines[0].fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(fields, [("count", "3"), ("who", "ann")]);
        assert_eq!(lines[0].target, "it::logs");
        assert_eq!(said(&run.logs(4).await.unwrap()), said(&lines[3..]));
        assert!(!format!("{:?}", lines[0]).contains("begins"));
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn step_and_transaction_logs_are_stored_under_step_keys() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db).await;
    let run = talks().enqueue(&db).await.unwrap();
    soon(run.result()).await.unwrap();
    // A stop writes all pending lines.
    worker.stop().await;
    assert_eq!(
        said(&run.logs(1).await.unwrap()),
        [
            ("", "INFO", "between steps"),
            ("speaks", "INFO", "begins"),
            ("speaks", "WARN", "fails"),
            // The engine's own event about the run.
            ("", "WARN", "a try of a step failed"),
            ("speaks", "INFO", "begins"),
            ("speaks", "ERROR", "in a span of its own"),
            ("speaks", "INFO", "in a task of its own"),
            ("inline", "INFO", "in an inline step"),
            ("closure", "INFO", "in a transaction"),
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn log_is_bounded_in_lines_and_length_without_blocking_body() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db).await;
    let run = chatters(30_000).enqueue(&db).await.unwrap();
    soon(run.result()).await.unwrap();
    let much = says_much().enqueue(&db).await.unwrap();
    soon(much.result()).await.unwrap();
    worker.stop().await;
    let n_lines: i64 = scalar(&db, "select count(*) from runledger.log").await;
    assert!((1_000..=10_001).contains(&n_lines), "{n_lines}");
    let gaps: i64 =
        scalar(&db, "select max(number) - count(*) from runledger.log where line ->> 'message' like 'xxx%'")
            .await;
    assert_eq!(gaps, 0);
    let lines = much.logs(1).await.unwrap();
    // This line may have been dropped like any other if too many lines were waiting.
    if let [line] = &lines[..] {
        assert_eq!(
            (line.message.chars().count(), line.message.chars().last()),
            ((8 << 10) / 3 + 1, Some('…'))
        );
        assert_eq!(line.fields["long"].len(), (1 << 10) + '…'.len_utf8());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nul_in_target_is_replaced_and_reentrant_logging_is_harmless() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db).await;
    let run = says_odd_things().enqueue(&db).await.unwrap();
    soon(run.result()).await.unwrap();
    worker.stop().await;
    let mut lines = run.logs(1).await.unwrap();
    // While a scoped subscriber exists in this process, `tracing` drops events that are logged
    // inside an event.
    lines.retain(|line| line.message != "is shown");
    assert_eq!(said(&lines), [("", "INFO", "of an odd target"), ("", "INFO", "has shown it")]);
    assert_eq!((lines[0].target.as_str(), lines[1].fields["value"].as_str()), ("a\u{fffd}b", "restless"));
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_unwritable_log_does_not_block_other_logs() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let refused = speaks().enqueue(&db).await.unwrap();
    let last =
        "insert into runledger.log (run_id, number, step_key, attempt, level, target, line, bytes, logged_at)
                values ($1, 9223372036854775807, '', 1, 'INFO', '', '{}', 0, now())";
    sqlx::query(last).bind(refused.id()).execute(db.pool()).await.unwrap();
    let worker = worker(&db).await;
    soon(refused.result()).await.unwrap();
    let run = speaks().enqueue(&db).await.unwrap();
    soon(run.result()).await.unwrap();
    kept(&db, run.id(), 5).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_of_unknown_run_is_empty() {
    let Fixture { db, database: _database } = Fixture::new().await;
    assert_eq!(db.run(Uuid::nil()).logs(1).await.unwrap().len(), 0);
}
