//! The report: every figure of the engine, its limit and the peers, interleaved in one run, as JSON lines, tables and plots.

mod machine;
mod plan;
mod plot;
mod table;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use runledger::dev::{Options, Server};
use tokio::process::Command;

use crate::Res;
use crate::line::Line;
use crate::work::{connect, execute};
use plan::{Figure, PLAN, Run};

/// How a report is made.
struct Settings {
    /// How often everything is measured.
    rounds: usize,
    /// Only figures whose name begins so.
    only: String,
    /// Where it is written.
    folder: PathBuf,
    /// The program that measures the peers, if it is built.
    peers: Option<PathBuf>,
}

/// `bench report [--rounds N] [--only FIGURE] [--folder PATH] [--peers PATH]`
pub async fn run(arguments: &[String]) -> Res<()> {
    let settings = Settings::parse(arguments)?;
    fs::create_dir_all(&settings.folder)?;
    let server = start(&settings).await?;
    let results = settings.folder.join("results.jsonl");
    let mut file = fs::File::create(&results)?;
    let mut lines = Vec::new();
    for round in 1..=settings.rounds {
        for figure in PLAN.iter().filter(|figure| figure.name.starts_with(&settings.only)) {
            for run in figure.runs {
                // A figure that fails is shown as missing; the others go on.
                match measure(&settings, &server, figure, run).await {
                    Ok(None) => {}
                    Ok(Some(line)) => {
                        writeln!(
                            file,
                            "{}",
                            serde_json::json!({ "round": round, "figure": figure.name, "line": line })
                        )?;
                        tell(round, &line);
                        lines.push((figure.name, line));
                    }
                    Err(error) => complain(figure.name, run.who, &error.to_string()),
                }
            }
        }
    }
    for figure in PLAN.iter().filter(|figure| lines.iter().any(|(name, _)| *name == figure.name)) {
        let of_figure: Vec<&Line> =
            lines.iter().filter(|(name, _)| *name == figure.name).map(|(_, line)| line).collect();
        fs::write(settings.folder.join(format!("{}.svg", figure.name)), plot::bars(figure, &of_figure))?;
    }
    let page = table::page(&machine::describe(&server).await?, settings.rounds, &lines);
    fs::write(settings.folder.join("README.md"), page)?;
    Ok(())
}

impl Settings {
    fn parse(arguments: &[String]) -> Res<Self> {
        let mut settings = Self {
            rounds: 3,
            only: String::new(),
            folder: PathBuf::from("docs/benchmarks"),
            peers: Some(PathBuf::from("tests/benches/peers/target/release/runledger-peers")),
        };
        for pair in arguments.chunks(2) {
            match pair {
                [name, value] if name == "--rounds" => settings.rounds = value.parse()?,
                [name, value] if name == "--only" => settings.only.clone_from(value),
                [name, value] if name == "--folder" => settings.folder = value.into(),
                [name, value] if name == "--peers" => settings.peers = Some(value.into()),
                other => {
                    return Err(format!(
                        "`{other:?}`: use --rounds, --only, --folder or --peers with a value"
                    )
                    .into());
                }
            }
        }
        settings.peers = settings.peers.filter(|program| program.exists());
        Ok(settings)
    }
}

/// A server of the report's own, with commits that reach the disk.
async fn start(settings: &Settings) -> Res<Server> {
    let mut options = Options::dev();
    options.max_connections = 300;
    options.base_dir = Some(std::env::temp_dir().join(format!("runledger-report-{}", std::process::id())));
    if settings.peers.is_none() {
        complain(
            "peers",
            "all",
            "not built: cargo build --release --manifest-path tests/benches/peers/Cargo.toml",
        );
    }
    Ok(Server::start(options).await?)
}

/// Runs one program once on a database of its own. None where the program is not there.
async fn measure(settings: &Settings, server: &Server, figure: &Figure, run: &Run) -> Res<Option<Line>> {
    let own = std::env::current_exe()?;
    let program: &Path = match (run.who, &settings.peers) {
        ("runledger" | "limit", _) => &own,
        (_, Some(peers)) => peers,
        (_, None) => return Ok(None),
    };
    let database = "measured";
    let mut admin = connect(&server.url("postgres")).await?;
    execute(&mut admin, &format!("drop database if exists {database} with (force)")).await?;
    execute(&mut admin, &format!("create database {database}")).await?;
    let child = Command::new(program)
        .arg(run.who)
        .arg(figure.program)
        .args(figure.arguments)
        .args(run.arguments)
        .env("DATABASE_URL", server.url(database))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let output = tokio::time::timeout(plan::LIMIT, child.wait_with_output()).await??;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().rev().find(|line| line.starts_with('{')) {
        Some(line) if output.status.success() => Ok(Some(serde_json::from_str(line)?)),
        _ => Err(String::from_utf8_lossy(&output.stderr).into()),
    }
}

#[expect(clippy::print_stderr, reason = "a report takes minutes; whoever waits wants to see it go on")]
fn tell(round: usize, line: &Line) {
    let value = line.rate.map_or_else(
        || {
            format!(
                "p50 {:.2} ms, p99 {:.2} ms",
                line.p50_ms.unwrap_or(f64::NAN),
                line.p99_ms.unwrap_or(f64::NAN)
            )
        },
        |rate| format!("{rate:.0}/s"),
    );
    eprintln!("round {round}: {} {}: {value}", line.figure, line.who);
}

#[expect(clippy::print_stderr, reason = "what is missing in the report must be seen where it was made")]
fn complain(figure: &str, who: &str, error: &str) {
    eprintln!("{figure} {who}: {error}");
}
