//! The engine's own figures, by its public interface alone.

mod drain;
mod enqueue;
mod latency;
mod workflows;

use runledger::Db;
use sqlx::postgres::PgConnectOptions;

use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;

/// What can be measured.
pub const FIGURES: &[&str] = &["enqueue", "enqueue-tx", "bulk", "drain", "workflows", "step", "latency"];

const WHO: &str = "runledger";

/// Measures one figure.
pub async fn measure(figure: &str, url: &str, arguments: &Arguments) -> Res<Line> {
    match figure {
        "enqueue" => enqueue::single(url, arguments).await,
        "enqueue-tx" => enqueue::in_transaction(url, arguments).await,
        "bulk" => enqueue::bulk(url, arguments).await,
        "drain" => drain::measure(url, arguments).await,
        "workflows" => workflows::many(url, arguments).await,
        "step" => workflows::one(url, arguments).await,
        "latency" => latency::measure(url, arguments).await,
        other => Err(format!("there is no figure `{other}`; there are {FIGURES:?}").into()),
    }
}

/// A client with as many connections as its callers need.
async fn client(url: &str, connections: usize) -> Res<Db> {
    let options: PgConnectOptions = url.parse()?;
    Ok(Db::connect_with(options, u32::try_from(connections)?).await?)
}
