//! Measures the engine beside its limit: the bare SQL of the same work through the same driver.
//!
//! `bench WHO FIGURE [--name value]…` measures one figure once, on the empty database that `DATABASE_URL` names, and prints one JSON line.
//! `WHO` is `runledger` or `limit`; `bench list` says which figures each has. `bench report` measures all of them, and the peers, and writes
//! `docs/benchmarks`.

mod arguments;
mod build;
mod engine;
mod limit;
mod line;
mod pace;
mod pinned;
mod report;
mod work;

use arguments::Arguments;
use line::Line;

/// What every step of a measurement returns.
pub type Res<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The figures that can be measured, by who.
const FIGURES: [(&str, &[&str]); 2] = [("runledger", engine::FIGURES), ("limit", limit::FIGURES)];

#[tokio::main]
async fn main() -> Res<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => list(),
        ["worker", ..] => engine::serve(&url()?, &Arguments::parse(&arguments[1..])?).await?,
        ["report", ..] => report::run(&arguments[1..]).await?,
        [who, figure, ..] => {
            let rest = Arguments::parse(&arguments[2..])?;
            let line = measure(who, figure, &url()?, &rest).await?.of_commit(build::commit_name());
            rest.check_all_used()?;
            line.print();
        }
        _ => return Err("usage: bench WHO FIGURE [--name value]…, bench list, or bench report".into()),
    }
    Ok(())
}

fn url() -> Res<String> {
    Ok(std::env::var("DATABASE_URL").map_err(|_| "DATABASE_URL must name an empty database")?)
}

async fn measure(who: &str, figure: &str, url: &str, arguments: &Arguments) -> Res<Line> {
    match who {
        "runledger" => engine::measure(figure, url, arguments).await,
        "limit" => limit::measure(figure, url, arguments).await,
        other => Err(format!("nobody is called `{other}` here; use runledger or limit").into()),
    }
}

#[expect(clippy::print_stdout, reason = "the list is what was asked for")]
fn list() {
    for (who, figures) in FIGURES {
        for figure in figures {
            println!("{}", serde_json::json!({ "who": who, "figure": figure }));
        }
    }
}
