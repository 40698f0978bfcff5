//! The engine's figures, measured through its public API only.

mod backlog;
mod copies;
mod drain;
mod ended;
mod enqueue;
mod idle;
mod latency;
mod memory;
mod process;
mod processes;
mod recovery;
mod sleepers;
mod snapshot;
mod workflows;

use runledger::Db;
use sqlx::postgres::PgConnectOptions;

use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;

pub use process::serve;

pub const FIGURES: &[&str] = &[
    "enqueue",
    "enqueue-tx",
    "bulk",
    "drain",
    "costs",
    "workflows",
    "step-costs",
    "step",
    "latency",
    "backlog",
    "one-transaction",
    "snapshot",
    "sleepers",
    "processes",
    "recovery",
    "idle",
    "memory",
];

const WHO: &str = "runledger";

pub async fn measure(figure: &str, url: &str, arguments: &Arguments) -> Res<Line> {
    match figure {
        "enqueue" => enqueue::single(url, arguments).await,
        "enqueue-tx" => enqueue::in_transaction(url, arguments).await,
        "bulk" => enqueue::bulk(url, arguments).await,
        "drain" | "costs" => drain::measure(url, figure, arguments).await,
        "workflows" | "step-costs" => workflows::many(url, figure, arguments).await,
        "step" => workflows::one(url, arguments).await,
        "latency" => latency::measure(url, arguments).await,
        "backlog" => backlog::measure(url, arguments).await,
        "one-transaction" => backlog::one_transaction(url, arguments).await,
        "snapshot" => snapshot::measure(url, arguments).await,
        "sleepers" => sleepers::measure(url, arguments).await,
        "processes" => processes::measure(url, arguments).await,
        "recovery" => recovery::measure(url, arguments).await,
        "idle" => idle::measure(url, arguments).await,
        "memory" => memory::measure(url, arguments).await,
        other => Err(format!("there is no figure `{other}`; there are {FIGURES:?}").into()),
    }
}

async fn client(url: &str, connections: usize) -> Res<Db> {
    let options: PgConnectOptions = url.parse()?;
    Ok(Db::connect_with(options, u32::try_from(connections)?).await?)
}
