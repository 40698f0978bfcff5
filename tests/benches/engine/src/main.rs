//! Measures the engine and its limit: the bare SQL of the same work through the same driver.
//!
//! `bench WHO FIGURE [--name value]…` measures one figure once, on the empty database in
//! `DATABASE_URL`, and prints one JSON line. `WHO` is `runledger` or `limit`.

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
use clap::Parser;
use line::Line;

/// The result of a measurement.
pub type Res<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const FIGURES: [(&str, &[&str]); 2] = [("runledger", engine::FIGURES), ("limit", limit::FIGURES)];

/// Measure the engine and the bare SQL of the same work
#[derive(Parser)]
#[command(name = "bench", arg_required_else_help = true)]
enum Command {
    /// List the figures and who has them
    List,
    /// Measure every figure and every peer, and write `docs/benchmarks`
    Report(report::Settings),
    /// Run as a worker of a figure
    #[command(hide = true)]
    Worker {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        parameters: Vec<String>,
    },
    /// `WHO FIGURE [--name value]…`. Each figure has its own parameters.
    #[command(external_subcommand)]
    Measure(Vec<String>),
}

#[tokio::main]
async fn main() -> Res<()> {
    match Command::parse() {
        Command::List => list(),
        Command::Report(settings) => report::run(settings).await?,
        Command::Worker { parameters } => engine::serve(&url()?, &Arguments::parse(&parameters)?).await?,
        Command::Measure(words) => {
            let [who, figure, rest @ ..] = words.as_slice() else {
                return Err("usage: bench WHO FIGURE [--name value]…, bench list, or bench report".into());
            };
            let rest = Arguments::parse(rest)?;
            let line = measure(who, figure, &url()?, &rest).await?.of_commit(build::commit_name());
            rest.check_all_used()?;
            line.print();
        }
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
