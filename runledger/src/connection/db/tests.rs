//! Errors of a `Db` that cannot open a connection.

use std::net::TcpListener;

use sqlx::postgres::PgConnectOptions;

use super::*;

/// A local port without a listener.
fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test(start_paused = true)]
async fn acquire_without_server_reports_connection_refused_and_not_pool_timeout() {
    let options = PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(closed_port());
    let error = Db::lazily(options, 1).acquire().await.unwrap_err();
    assert!(
        matches!(&error, sqlx::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused),
        "{error:?}"
    );
}
