//! PgBouncer between us and the database. Skipped, and saying so, where it is not installed.
#![expect(clippy::print_stderr, reason = "who reads the tests' output must see what was skipped")]

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{ClientError, Timings};
use runledger_tests::testing_db::TestDb;
use runledger_tests::{Fixture, eventually};
use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use super::told;

#[job(name = "bad_input.behind")]
async fn behind(n: u32) -> Result<u32> {
    Ok(n)
}

/// A running PgBouncer, which ends with this value.
struct Bouncer {
    child: Child,
    dir: PathBuf,
    url: String,
}

impl Bouncer {
    /// One that opens at most so many sessions of the server. None where there is none to start, or where the database is not on a socket of this machine.
    async fn start(database: &TestDb, mode: &str, sessions: u32) -> Option<Self> {
        let target: PgConnectOptions = database.url().parse().ok()?;
        let Some(socket) = target.get_socket().cloned() else {
            eprintln!("skipped: the database is not reached by a socket");
            return None;
        };
        let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
        let dir = std::env::temp_dir().join(format!("runledger-bouncer-{}-{port}", std::process::id()));
        fs::create_dir_all(&dir).ok()?;
        let (user, name) = (target.get_username(), target.get_database()?);
        let (socket, dir_name) = (socket.display(), dir.display());
        let settings = format!(
            "[databases]\n{name} = host={socket} port={} user={user}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {dir_name}/users\npool_mode = {mode}\ndefault_pool_size = {sessions}\n\
             ignore_startup_parameters = extra_float_digits\n",
            target.get_port()
        );
        fs::write(dir.join("settings.ini"), settings).ok()?;
        fs::write(dir.join("users"), format!("\"{user}\" \"\"\n")).ok()?;
        let mut command = Command::new("pgbouncer");
        command.arg("-q").stdout(Stdio::null()).stderr(Stdio::null());
        if rustix::process::geteuid().is_root() {
            // It refuses to be root; the embedded server of root belongs to this user.
            command.args(["-u", "postgres"]);
        }
        let Ok(child) = command.arg(dir.join("settings.ini")).spawn() else {
            eprintln!("skipped: PgBouncer is not installed");
            return None;
        };
        let url = format!("postgres://{user}@127.0.0.1:{port}/{name}?sslmode=disable");
        let bouncer = Self { child, dir, url };
        eventually(|| async { PgConnection::connect(&bouncer.url).await.is_ok() }, |up| *up).await;
        Some(bouncer)
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_behind_pgbouncer_in_transaction_mode_does_not_start_and_says_why() {
    let fixture = Fixture::new().await;
    let Some(bouncer) = Bouncer::start(&fixture.database, "transaction", 20).await else { return };
    let db = Db::connect(&bouncer.url).await.unwrap();
    let error = App::new(db).with(jobs![behind]).timings(Timings::FAST).start().await.unwrap_err();
    assert!(matches!(error, ClientError::Setup(_)), "{error:?}");
    let said = told(&error);
    assert!(said.contains("PgBouncer in transaction or statement mode"), "{said}");
    assert!(said.contains("connect to PostgreSQL directly, or through a pooler in session mode"), "{said}");
    assert!(fixture.db.workers().await.unwrap().is_empty(), "it registered all the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_prepared_statements_clash_behind_pgbouncer_is_told_of_the_pooler() {
    let fixture = Fixture::new().await;
    let Some(bouncer) = Bouncer::start(&fixture.database, "transaction", 1).await else { return };
    let first = Db::connect(&bouncer.url).await;
    // The statements of the first are still prepared in the one session.
    let second = Db::connect(&bouncer.url).await.unwrap_err();
    assert!(told(&second).contains("session mode"), "{}", told(&second));
    drop(first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_behind_pgbouncer_in_session_mode_runs() {
    let fixture = Fixture::new().await;
    let Some(bouncer) = Bouncer::start(&fixture.database, "session", 20).await else { return };
    let db = Db::connect(&bouncer.url).await.unwrap();
    let worker = App::new(db.clone()).with(jobs![behind]).timings(Timings::FAST).start().await.unwrap();
    let run = behind(7).enqueue(&db).await.unwrap();
    assert_eq!(run.result_within(Duration::from_secs(20)).await.unwrap(), 7);
    worker.stop().await;
}
