//! Describes the machine and the server of the page.

use std::process::Command;

use sqlx::PgConnection;

use crate::Result;

/// The folder of the npm registry's PostgreSQL 18, as in the page's command.
const PROGRAMS: &str = "/var/tmp/runledger-fault-tools-$(id -u)/postgres-18/bin";

/// The date, the commit and the machine.
pub async fn describe(connection: &mut PgConnection) -> Result<String> {
    let version: String = sqlx::query_scalar("show server_version").fetch_one(&mut *connection).await?;
    let date: String =
        sqlx::query_scalar("select to_char(now(), 'YYYY-MM-DD')").fetch_one(&mut *connection).await?;
    let mut settings = Vec::new();
    for name in [
        "fsync",
        "synchronous_commit",
        "full_page_writes",
        "shared_buffers",
        "max_wal_size",
        "max_connections",
    ] {
        let query = sqlx::query_scalar("select current_setting($1)");
        let value: String = query.bind(name).fetch_one(&mut *connection).await?;
        settings.push(format!("`{name} = {value}`"));
    }
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    let model = field(&read("/proc/cpuinfo"), "model name").unwrap_or("an unknown processor").to_owned();
    let kib = field(&read("/proc/meminfo"), "MemTotal")
        .and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok());
    let memory =
        kib.map_or("unknown memory".to_owned(), |kib| format!("{} GiB of memory", (kib + (1 << 19)) >> 20));
    Ok(format!(
        "Measured on {date} of commit `{}`.\n\n- **Machine**: {cores} cores ({model}), {memory}\n- **Server**: PostgreSQL {version} (from the npm registry) \
         on the same machine behind a Unix socket, {}, with `pg_stat_statements`",
        commit(),
        settings.join(", ")
    ))
}

/// The command that makes the page.
pub fn command() -> String {
    format!(
        ".ci/fault-tools\nRUNLEDGER_PG_BIN={PROGRAMS} \\\n    cargo run --release --manifest-path tests/benches/upstream/Cargo.toml -- --page docs/benchmarks/upstream.md \\\n    > docs/benchmarks/upstream.jsonl"
    )
}

fn commit() -> String {
    let said = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let said = said.ok().filter(|said| said.status.success());
    let commit = said.and_then(|said| String::from_utf8(said.stdout).ok());
    commit.map_or("unknown".to_owned(), |commit| commit.trim().to_owned())
}

/// The first value of `name` in a file of `name: value` lines.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}
