//! Reads what the engine checks about a server before it writes anything, and the server's address.

use std::path::Path;

use sqlx::postgres::PgConnectOptions;
use sqlx::{PgConnection, Row};

use crate::store::sql;

/// The oldest PostgreSQL version that the statements run on.
pub(crate) const OLDEST_VERSION: i32 = 130_000;

/// The server, as a connection reports it.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) version_num: i32,
    pub(crate) version: String,
    /// The encoding of the database.
    pub(crate) encoding: String,
    pub(crate) in_recovery: bool,
    pub(crate) read_only: bool,
    pub(crate) database: String,
    pub(crate) role: String,
    pub(crate) creates_in_ours: bool,
}

pub(crate) async fn server(connection: &mut PgConnection) -> Result<Server, sqlx::Error> {
    let row = sqlx::query(sql::SERVER).fetch_one(connection).await?;
    Ok(Server {
        version_num: row.try_get("version_num")?,
        version: row.try_get("version")?,
        encoding: row.try_get("encoding")?,
        in_recovery: row.try_get("in_recovery")?,
        read_only: row.try_get("read_only")?,
        database: row.try_get("database")?,
        role: row.try_get("role")?,
        creates_in_ours: row.try_get("creates_in_ours")?,
    })
}

/// The folder of the socket that the driver uses. A host that begins with `/` is also such a
/// folder.
pub(crate) fn socket_folder(options: &PgConnectOptions) -> Option<&Path> {
    let host = Path::new(options.get_host());
    options.get_socket().map(AsRef::as_ref).or_else(|| host.has_root().then_some(host))
}

/// Identifies a server among the servers that this process connects to.
pub(crate) fn server_key(options: &PgConnectOptions) -> String {
    match socket_folder(options) {
        Some(folder) => format!("{}:{}", folder.display(), options.get_port()),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_path_and_socket_option_give_same_server_key() {
        let options = || PgConnectOptions::new_without_pgpass().host("localhost").port(5433);
        assert_eq!(server_key(&options()), "localhost:5433");
        let (by_host, by_socket) = (options().host("/run/pg"), options().socket("/run/pg"));
        assert_eq!(server_key(&by_host), "/run/pg:5433");
        assert_eq!(server_key(&by_host), server_key(&by_socket));
    }
}
