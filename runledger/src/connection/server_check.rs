//! Servers that the engine refuses before it writes anything.

use sqlx::postgres::PgConnectOptions;

use super::client_error::ClientError;
use super::source::shown_host;
use crate::store::session::server::{OLDEST_VERSION, Server, socket_folder};

/// Refuses a server that is too old for the statements, and a database that cannot store every
/// text.
pub(crate) fn check_server(server: &Server) -> Result<(), ClientError> {
    if server.version_num < OLDEST_VERSION {
        return Err(ClientError::ServerTooOld { version: server.version.clone() });
    }
    if server.encoding != "UTF8" {
        let Server { database, encoding, .. } = server;
        return Err(ClientError::Config(format!(
            "database `{database}` has the encoding `{encoding}`, and Runledger needs `UTF8`; nothing was written; create a database with `encoding 'UTF8'` \
             (and `template template0`)"
        )));
    }
    Ok(())
}

/// Refuses a read-only server, and a role whose own tables would be created in the engine's schema.
pub(crate) fn check_writable(server: Server, options: &PgConnectOptions) -> Result<(), ClientError> {
    let why = match (server.in_recovery, server.read_only) {
        (true, _) => "a standby",
        (false, true) => "read-only",
        (false, false) if server.creates_in_ours => {
            return Err(ClientError::SearchPath { role: server.role, address: address(options) });
        }
        (false, false) => return Ok(()),
    };
    Err(ClientError::NotWritable { database: server.database, why })
}

/// The address in a connection string, without its password and settings.
fn address(options: &PgConnectOptions) -> String {
    let (role, port) = (options.get_username(), options.get_port());
    let database = options.get_database().unwrap_or(role);
    match socket_folder(options) {
        Some(folder) => format!("postgres://{role}@localhost:{port}/{database}?host={}", folder.display()),
        None => format!("postgres://{role}@{}:{port}/{database}", shown_host(options.get_host())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Server {
        Server {
            version_num: 150_000,
            version: "15.0".to_owned(),
            encoding: "UTF8".to_owned(),
            in_recovery: false,
            read_only: false,
            database: "shop".to_owned(),
            role: "ada".to_owned(),
            creates_in_ours: false,
        }
    }

    fn refused(server: Server) -> String {
        let checked = check_server(&server)
            .and_then(|()| check_writable(server, &PgConnectOptions::new_without_pgpass()));
        checked.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn current_primary_is_accepted() {
        assert_eq!(refused(server()), "");
    }

    #[test]
    fn server_older_than_postgresql_13_is_refused_with_its_version() {
        let old = Server { version_num: 120_022, version: "12.22".to_owned(), ..server() };
        assert_eq!(
            refused(old),
            "the server is PostgreSQL 12.22; Runledger needs PostgreSQL 13 or newer; connect to a newer server"
        );
    }

    #[test]
    fn sql_ascii_database_is_refused_with_its_encoding() {
        let refused = refused(Server { encoding: "SQL_ASCII".to_owned(), ..server() });
        assert!(refused.starts_with("database `shop` has the encoding `SQL_ASCII`"), "{refused}");
    }

    #[test]
    fn standby_is_refused_as_standby_and_not_as_read_only() {
        let refused = refused(Server { in_recovery: true, read_only: true, ..server() });
        assert!(refused.contains("`shop` is a standby and cannot be written to"), "{refused}");
    }

    #[test]
    fn read_only_server_is_refused_as_read_only() {
        let refused = refused(Server { read_only: true, ..server() });
        assert!(refused.contains("`shop` is read-only and cannot be written to"), "{refused}");
    }

    #[test]
    fn socket_address_shows_its_folder_as_host_setting() {
        let options = PgConnectOptions::new_without_pgpass().username("ada").port(5433).database("shop");
        let (by_host, by_socket) = (options.clone().host("/run/pg"), options.socket("/run/pg"));
        assert_eq!(address(&by_host), "postgres://ada@localhost:5433/shop?host=/run/pg");
        assert_eq!(address(&by_host), address(&by_socket));
    }
}
