//! The probe for a pooler that gives a client another session of the server with every transaction. Behind one, session
//! locks are neither exclusive nor released with their process, notifications never arrive, and names of prepared
//! statements clash: a worker must not start there.

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::session::connect;

/// How often the probe is made: another client of a busy pooler may get between its statements and hide what they show.
const ROUNDS: u32 = 3;

/// Whether a connection string leads to such a pooler. All statements go by the simple protocol: it prepares nothing, so it works, and tells
/// the truth, behind any pooler.
pub(crate) async fn shares_sessions(options: &PgConnectOptions) -> Result<bool, sqlx::Error> {
    let (mut one, mut other) = (connect(options).await?, connect(options).await?);
    let mut is_shared = false;
    for _ in 0..ROUNDS {
        is_shared = is_shared || share_a_session(&mut one, &mut other).await?;
    }
    // A failure to say goodbye changes nothing.
    let _ = tokio::join!(one.close(), other.close());
    Ok(is_shared)
}

/// Makes a setting of a session on one connection. If the other one sees it, or the first one no longer does while the other is in a transaction,
/// they share sessions.
async fn share_a_session(one: &mut PgConnection, other: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let mark = uuid::Uuid::now_v7().to_string();
    let set = format!("select pg_catalog.set_config('runledger.probe', '{mark}', false)");
    sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut *one).await?;
    if probe(other).await?.as_deref() == Some(&mark) {
        return Ok(true);
    }
    sqlx::raw_sql("begin").execute(&mut *other).await?;
    let is_kept = probe(one).await?.as_deref() == Some(&mark);
    sqlx::raw_sql("rollback").execute(other).await?;
    Ok(!is_kept)
}

async fn probe(connection: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
    let row = sqlx::raw_sql("select pg_catalog.current_setting('runledger.probe', true)")
        .fetch_one(connection)
        .await?;
    row.try_get(0)
}
