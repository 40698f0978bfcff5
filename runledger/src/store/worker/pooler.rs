//! Detects a transaction pooler: a pooler that may execute each transaction of a client in another
//! server session. With such a pooler, session locks are neither exclusive nor released when their
//! process dies. Notifications never arrive, and names of prepared statements clash. A worker must
//! not start there.

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::store::session::connect;

/// The number of probes. Another client of a busy pooler may run between the statements of a probe
/// and hide its result.
const ROUNDS: u32 = 3;

/// Whether these options lead to a transaction pooler. All statements use the simple protocol. It
/// prepares nothing, so the result is right with any pooler.
pub(crate) async fn shares_sessions(options: &PgConnectOptions) -> Result<bool, sqlx::Error> {
    let (mut one, mut other) = (connect(options).await?, connect(options).await?);
    let mut is_shared = false;
    for _ in 0..ROUNDS {
        is_shared = is_shared || share_a_session(&mut one, &mut other).await?;
    }
    // An error on close changes nothing.
    let _ = tokio::join!(one.close(), other.close());
    Ok(is_shared)
}

/// Changes a session setting on `one`. The connections share sessions if `other` sees the setting,
/// or if `one` does not see it while `other` is in a transaction.
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
