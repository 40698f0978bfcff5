//! The machine and the server on which a report was made.

use runledger::dev::Server;

use crate::Res;
use crate::work::connect;

/// What whoever reads the figures must know of the machine.
pub async fn describe(server: &Server) -> Res<String> {
    let mut connection = connect(&server.url("postgres")).await?;
    let version: String = sqlx::query_scalar("show server_version").fetch_one(&mut connection).await?;
    let mut settings = Vec::new();
    for name in ["fsync", "synchronous_commit", "shared_buffers", "max_wal_size"] {
        let query = sqlx::query_scalar("select current_setting($1)");
        let value: String = query.bind(name).fetch_one(&mut connection).await?;
        settings.push(format!("`{name} = {value}`"));
    }
    let date: String =
        sqlx::query_scalar("select to_char(now(), 'YYYY-MM-DD')").fetch_one(&mut connection).await?;
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": an unknown processor");
    Ok(format!(
        "Made on {date}: {cores} cores ({}), PostgreSQL {version} on the same machine behind a Unix socket, {}.",
        model.trim_start_matches([' ', '\t', ':']),
        settings.join(", ")
    ))
}
