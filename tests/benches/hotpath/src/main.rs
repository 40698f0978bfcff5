//! Compares designs for the storage of runs and prints one JSON line per result. Drops the schema
//! `hp` of the database in `DATABASE_URL`.
//!
//! Commands: `cycle`, `drain`, `lanes`, `arrivals`, `soak`, `latency`, `fence`, `keyed`. Without
//! arguments, each prints its usage.

mod claimer;
mod cycle;
mod drain;
mod fence;
mod instant;
mod keyed;
mod lanes;
mod latency;
mod net;
mod pg;
mod soak;
mod variant;
mod work;

/// The result of a measurement.
pub type Res<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Res<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = args.split_first() else {
        return Err("usage: hotpath COMMAND ARGUMENT…".into());
    };
    match command.as_str() {
        "cycle" => cycle::run(rest).await,
        "drain" => drain::run(rest).await,
        "fence" => fence::run(rest).await,
        "latency" => latency::run(rest).await,
        "keyed" => keyed::run(rest).await,
        "lanes" => lanes::cost(rest).await,
        "arrivals" => lanes::arrivals(rest).await,
        "soak" => soak::run(rest).await,
        other => Err(format!(
            "there is no command `{other}`; use cycle, drain, lanes, arrivals, soak, latency, fence or keyed"
        )
        .into()),
    }
}

#[expect(clippy::print_stdout, reason = "the results are what the program is for")]
/// Prints a result as one line of JSON.
pub fn emit(result: &serde_json::Value) {
    println!("{result}");
}
