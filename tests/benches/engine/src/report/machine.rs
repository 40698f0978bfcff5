//! Describes the machine and the server of a report.

use sqlx::PgConnection;

use crate::Res;

/// Describes the processor, the memory, and the server's version and settings.
pub async fn describe(connection: &mut PgConnection) -> Res<String> {
    let version: String = sqlx::query_scalar("show server_version").fetch_one(&mut *connection).await?;
    let mut settings = Vec::new();
    for name in ["fsync", "synchronous_commit", "shared_buffers", "max_wal_size", "max_connections"] {
        let query = sqlx::query_scalar("select current_setting($1)");
        let value: String = query.bind(name).fetch_one(&mut *connection).await?;
        settings.push(format!("`{name} = {value}`"));
    }
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    let model = field(&read("/proc/cpuinfo"), "model name").unwrap_or("an unknown processor").to_owned();
    let memory = read("/proc/meminfo");
    let kib = field(&memory, "MemTotal").and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok());
    let memory = kib.map_or_else(
        || "unknown memory".to_owned(),
        |kib| format!("{} GiB of memory", (kib + (1 << 19)) >> 20),
    );
    Ok(format!(
        "{cores} cores ({model}), {memory}, PostgreSQL {version} on the same machine behind a Unix socket, {}",
        settings.join(", ")
    ))
}

/// Today's date, by the server.
pub async fn date(connection: &mut PgConnection) -> Res<String> {
    Ok(sqlx::query_scalar("select to_char(now(), 'YYYY-MM-DD')").fetch_one(connection).await?)
}

/// The first value of `name` in a file of `name: value` lines.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}
