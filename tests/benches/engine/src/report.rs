//! The report: every figure of the engine, its limit and the peers, interleaved in one run, as JSON
//! lines, tables and plots.

mod machine;
mod plan;
mod plot;
mod results;
mod settings;
mod summary;
mod table;
mod target;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use futures::future::join_all;
use runledger::dev::{self, Options, Server};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use crate::Res;
use crate::build::Build;
use crate::line::Line;
use crate::work::{connect, execute};
use plan::{Figure, Mode, PLAN, Run};
use results::{Entry, Head, Results, Wanted};
pub use settings::Settings;

/// `bench report [--quick | --smoke] [--rounds N] [--only FIGURE…] [--hold SECONDS] [--anew]
/// [--folder PATH] [--readme PATH] [--peers PATH]`
pub async fn run(mut settings: Settings) -> Res<()> {
    settings.find_peers()?;
    let build = Build::of(settings.peers.as_deref())?;
    fs::create_dir_all(&settings.folder)?;
    if settings.peers.is_none() {
        complain(
            "the peers are not built: cargo build --release --manifest-path tests/benches/peers/Cargo.toml",
        );
    }
    // The report starts its own server, whose commits reach the disk.
    let mut options = Options::dev();
    options.max_connections = 300;
    options.base_dir = Some(std::env::temp_dir().join(format!("runledger-report-{}", std::process::id())));
    let server = Server::start(options.clone()).await?;
    let made = tokio::select! {
        made = make(&settings, build, &server) => made,
        stopped = asked_to_stop() => stopped.and(Err("interrupted; the same command goes on from here".into())),
    };
    // The data takes gigabytes and has no further use.
    drop(server);
    tokio::task::spawn_blocking(move || dev::reset(&options)).await??;
    made
}

/// Waits for Ctrl-C or SIGTERM.
async fn asked_to_stop() -> Res<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed?,
        _ = terminated.recv() => {}
    }
    Ok(())
}

async fn make(settings: &Settings, build: Build, server: &Server) -> Res<()> {
    let mut admin = connect(&server.url("postgres")).await?;
    let date = machine::date(&mut admin).await?;
    let machine = machine::describe(&mut admin).await?;
    let commit = build.name();
    let (mode, rounds, hold) = (settings.mode(), settings.rounds(), settings.hold);
    let head = Head { mode, rounds, date: date.clone(), machine, build: Some(build), hold };
    let (mut results, wanted) = settings.results(head)?;
    let is_again = !settings.only.is_empty() && !results.entries.is_empty();
    // Contenders run one after the other, except in figures whose contenders do not disturb each
    // other.
    for group in wanted.chunk_by(|one, other| {
        (one.round, one.figure) == (other.round, other.figure)
            && plan::figure(one.figure).is_some_and(|figure| figure.together)
    }) {
        let mode = results.head.mode;
        let measured = join_all(group.iter().map(|wanted| entry(settings, mode, server, wanted)));
        for mut entry in measured.await {
            entry.again = is_again.then(|| date.clone());
            entry.line = entry.line.map(|line| line.of_commit(commit.clone()));
            tell(&entry);
            results.add(entry)?;
        }
        // Writes the page after every figure, so that an interrupted report leaves a whole page.
        render(settings, &results)?;
    }
    render(settings, &results)?;
    let asked =
        |figure: &str| settings.only.is_empty() || wanted.iter().any(|wanted| wanted.figure == figure);
    match failures(results.entries.iter().filter(|entry| asked(&entry.figure))) {
        // The page has a row for each failure. The error also tells the caller that the report is
        // incomplete.
        Some(failures) => Err(format!("failed: {failures}").into()),
        None => Ok(()),
    }
}

/// Takes one measurement. The entry holds the error if it fails.
async fn entry(settings: &Settings, mode: Mode, server: &Server, wanted: &Wanted) -> Entry {
    let began = Instant::now();
    let figure = plan::figure(wanted.figure);
    let run = figure.and_then(|figure| figure.runs.iter().find(|run| run.name == wanted.who));
    let measured = match (figure, run) {
        (Some(figure), Some(run)) => measure(settings, mode, server, figure, run).await,
        _ => Err("not in the plan".into()),
    };
    let (line, failed) = match measured {
        Ok(line) => (Some(line), None),
        Err(error) => (None, Some(reason(&error.to_string()))),
    };
    let (figure, who) = (wanted.figure.to_owned(), wanted.who.to_owned());
    Entry { round: wanted.round, figure, who, line, failed, took: began.elapsed().as_secs_f64(), again: None }
}

/// Names the failed measurements.
fn failures<'e>(entries: impl Iterator<Item = &'e Entry>) -> Option<String> {
    let failed = entries.filter(|entry| entry.failed.is_some());
    let names: Vec<String> = failed.map(|entry| format!("{} of {}", entry.figure, entry.who)).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Writes the page, the plots and the README's table.
fn render(settings: &Settings, results: &Results) -> Res<()> {
    for (name, text) in pages(results) {
        fs::write(settings.folder.join(name), text)?;
    }
    let readme = fs::read_to_string(&settings.readme)?;
    Ok(fs::write(&settings.readme, summary::insert(&readme, &results.head, &results.entries)?)?)
}

/// The files of the report's folder that show its results, by name.
fn pages(results: &Results) -> Vec<(String, String)> {
    let (head, entries) = (&results.head, &results.entries);
    let is_measured =
        |figure: &&Figure| entries.iter().any(|entry| entry.figure == figure.name && entry.line.is_some());
    let plots = PLAN.iter().filter(is_measured);
    let mut pages: Vec<(String, String)> = plots
        .map(|figure| (format!("{}.svg", figure.name), plot::bars(figure, head.mode, entries)))
        .collect();
    pages.push(("README.md".to_owned(), table::page(head, entries)));
    pages
}

/// Runs one program once on a new database.
async fn measure(settings: &Settings, mode: Mode, server: &Server, figure: &Figure, run: &Run) -> Res<Line> {
    let own = std::env::current_exe()?;
    let program: &Path = match (run.who, &settings.peers) {
        ("runledger" | "limit", _) => &own,
        (_, Some(peers)) => peers,
        (_, None) => return Err("not built".into()),
    };
    // A name is never reused: a worker process of an abandoned measurement may still run, and must
    // not find a new database under its old name.
    let database = format!("measured_{}", uuid::Uuid::now_v7().simple());
    let mut admin = connect(&server.url("postgres")).await?;
    execute(&mut admin, &format!("create database {database}")).await?;
    let mut arguments = figure.arguments(run, mode);
    if let (Some(seconds), true) = (settings.hold, figure.holds()) {
        arguments.extend(["--seconds".to_owned(), seconds.to_string()]);
    }
    let line = measure_on(&server.url(&database), program, figure, run, &arguments).await;
    execute(&mut admin, &format!("drop database if exists {database} with (force)")).await?;
    // The next measurement must not pay for this one's unwritten pages.
    execute(&mut admin, "checkpoint").await?;
    line
}

async fn measure_on(
    url: &str,
    program: &Path,
    figure: &Figure,
    run: &Run,
    arguments: &[String],
) -> Res<Line> {
    let child = Command::new(program)
        .arg(run.who)
        .arg(figure.program)
        .args(arguments)
        .env("DATABASE_URL", url)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let Ok(output) = tokio::time::timeout(figure.limit, child.wait_with_output()).await else {
        return Err(format!("not done after {} s", figure.limit.as_secs()).into());
    };
    let output = output?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().rev().find(|line| line.starts_with('{')) {
        Some(line) if output.status.success() => Ok(serde_json::from_str(line)?),
        _ => Err(String::from_utf8_lossy(&output.stderr).into()),
    }
}

/// The last line of a program's output, shortened for a table and without paths of this machine.
fn reason(said: &str) -> String {
    const MOST: usize = 160;
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    let words = last.split_whitespace().map(|word| if word.contains('/') { "…" } else { word });
    let text = words.collect::<Vec<_>>().join(" ").replace('|', "¦");
    if text.chars().count() > MOST { text.chars().take(MOST).chain(['…']).collect() } else { text }
}

#[expect(clippy::print_stderr, reason = "a report takes minutes; whoever waits wants to see it go on")]
fn tell(entry: &Entry) {
    let Some(figure) = plan::figure(&entry.figure) else { return };
    let one = std::slice::from_ref(entry);
    let value = match (&entry.failed, table::median(one, &entry.figure, &entry.who, figure.value)) {
        (Some(why), _) => format!("failed: {why}"),
        (None, Some(value)) => format!("{} {}", table::shown(value), figure.unit),
        (None, None) => "no such number".to_owned(),
    };
    eprintln!("round {}: {} {}: {value} ({:.0} s)", entry.round, entry.figure, entry.who, entry.took);
}

#[expect(clippy::print_stderr, reason = "what is missing in the report must be seen where it was made")]
fn complain(what: &str) {
    eprintln!("{what}");
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::results::Results;
    use super::results::tests::measured;
    use super::{failures, pages, reason, summary};

    /// After a change of a text, `RUNLEDGER_UPDATE_GOLDEN=1` writes the files again.
    #[test]
    fn page_plots_and_readme_show_recorded_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let (folder, readme) = (root.join("docs/benchmarks"), root.join("README.md"));
        let results = Results::read(&folder.join("results.jsonl")).unwrap();
        let mut wanted: Vec<_> =
            pages(&results).into_iter().map(|(name, text)| (folder.join(name), text)).collect();
        let before = fs::read_to_string(&readme).unwrap();
        wanted.push((readme, summary::insert(&before, &results.head, &results.entries).unwrap()));
        for (path, text) in wanted {
            if std::env::var_os("RUNLEDGER_UPDATE_GOLDEN").is_some() {
                fs::write(&path, &text).unwrap();
            }
            assert!(fs::read_to_string(&path).unwrap() == text, "{} shows other results", path.display());
        }
    }

    #[test]
    fn failures_list_each_figure_and_failed_contender() {
        let mut entries = [measured(1, "drain", "limit", 1.0), measured(2, "drain", "dbos", 1.0)];
        assert_eq!(failures(entries.iter()), None);
        (entries[1].line, entries[1].failed) = (None, Some("timed out".to_owned()));
        assert_eq!(failures(entries.iter()).as_deref(), Some("drain of dbos"));
    }

    #[test]
    fn failure_reason_is_one_short_line_without_paths() {
        assert_eq!(reason("first\nno socket at /tmp/x/y | gone\n\n"), "no socket at … ¦ gone");
        assert_eq!(reason(""), "it said nothing");
        assert_eq!(reason(&"ä".repeat(500)).chars().count(), 161);
    }
}
