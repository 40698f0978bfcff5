//! The latency from an insert call to the claim in another session. On an idle system a
//! notification wakes the claimer. Under load the claimer polls each millisecond, because commits
//! that notify wait for each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::Row;
use sqlx::postgres::PgListener;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::drain::{Batch, CHANNEL, Claimer, session};
use super::{WHO, connections};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::pace::{self, Starts};
use crate::work::{connect, payload, until};

/// The same number as the engine's clients.
const CLIENTS: usize = 32;

/// At most this many claimed batches wait for settlement.
const UNSETTLED: usize = 64;

const ENQUEUE: &str = "
    with run as (insert into bare.run (id, job, queue, input) values ($1, 'j', 'q', $2::text::json)),
    ready as (insert into bare.ready (queue, priority, id) values ('q', 0, $1))
    select case when $4 then pg_notify($3, '') end";

/// The pause between two claims under load.
const POLL: Duration = Duration::from_millis(1);

/// Inserts at `--rate` per second. Rate 0 means one row per 20 ms.
pub async fn measure(url: &str, arguments: &Arguments) -> Res<Line> {
    let (rate, seconds) = (arguments.get("rate", 0), arguments.get("seconds", 10));
    let begun = Starts::default();
    let is_told = rate == 0;
    let mut listener = PgListener::connect(url).await?;
    listener.listen(CHANNEL).await?;
    let listener = is_told.then_some(listener);
    let (settle, batches) = mpsc::channel(UNSETTLED);
    let claimer = tokio::spawn(claim(Claimer::open(url).await?, listener, begun.clone(), settle));
    let settler = tokio::spawn(settle_all(url.to_owned(), batches));
    let clients = connections(url, CLIENTS).await?;
    let began = Instant::now();
    let end = tokio::time::sleep(Duration::from_secs(seconds));
    let waits = pace::keep(pace::pause(rate)?, &begun, end, |n| {
        let client = Arc::clone(&clients[n % CLIENTS]);
        async move {
            let insert = sqlx::query(ENQUEUE).bind(Uuid::now_v7()).bind(payload(n)).bind(CHANNEL);
            insert.bind(is_told).execute(&mut *client.lock().await).await?;
            Ok(())
        }
    })
    .await?;
    let took = began.elapsed();
    until(&mut connect(url).await?, "select count(*) from bare.outcome", waits.len()).await?;
    claimer.abort();
    settler.abort();
    let notes = if is_told {
        "a notification with each insert; one connection listens, one claims, one settles"
    } else {
        "no notifications; one connection claims each millisecond, one settles"
    };
    Ok(Line::latency(WHO, "latency", arguments, waits, took).noting(notes))
}

/// Claims all due rows at each notification or after each pause. It keeps no cursor: a row that
/// commits late may be due before rows already claimed.
async fn claim(
    mut claimer: Claimer,
    mut listener: Option<PgListener>,
    begun: Starts,
    settle: mpsc::Sender<Batch>,
) -> Res<()> {
    loop {
        match &mut listener {
            Some(listener) => drop(listener.recv().await?),
            None => tokio::time::sleep(POLL).await,
        }
        loop {
            claimer.rewind();
            let Some(batch) = claimer.claim().await? else { break };
            for row in &batch.rows {
                let input: serde_json::Value = serde_json::from_str(row.try_get("input")?)?;
                let n = input["user_id"].as_u64().ok_or("a payload has no number")?;
                begun.add(usize::try_from(n)?);
            }
            settle.send(batch).await.map_err(|_| "the settler is gone")?;
        }
    }
}

async fn settle_all(url: String, mut batches: mpsc::Receiver<Batch>) -> Res<()> {
    let mut connection = session(&url).await?;
    while let Some(batch) = batches.recv().await {
        batch.settle(&mut connection).await?;
    }
    Ok(())
}
