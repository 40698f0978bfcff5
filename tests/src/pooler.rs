//! PgBouncer in front of a server.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::process::{Child, Command};

use crate::{PATIENCE, tools};

/// The polling interval of waits.
const POLL: Duration = Duration::from_millis(10);

/// When PgBouncer gives a server session to another client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// After each transaction.
    Transaction,
    /// When the client disconnects.
    Session,
}

/// A running PgBouncer. It ends with this value.
#[derive(Debug)]
pub struct Bouncer {
    child: Child,
    dir: PathBuf,
    url: String,
}

impl Bouncer {
    /// Starts a PgBouncer in front of the server of `url`, which must be on a local socket. It
    /// opens at most `sessions` sessions.
    ///
    /// # Errors
    /// [`tools::Missing`] if PgBouncer is not installed. Also if it does not start.
    pub async fn start(url: &str, mode: Mode, sessions: u32) -> Result<Self> {
        let target: PgConnectOptions = url.parse()?;
        let socket = target.get_socket().context("the database is not reached by a socket")?.display();
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let dir = std::env::temp_dir().join(format!("runledger-bouncer-{}-{port}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let name = target.get_database().context("the address names no database")?;
        let (user, server_port, dir_name) = (target.get_username(), target.get_port(), dir.display());
        let mode = match mode {
            Mode::Transaction => "transaction",
            Mode::Session => "session",
        };
        let settings = format!(
            "[databases]\n{name} = host={socket} port={server_port} user={user}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {dir_name}/users\npool_mode = {mode}\ndefault_pool_size = {sessions}\n\
             ignore_startup_parameters = extra_float_digits\nserver_login_retry = 1\n",
        );
        fs::write(dir.join("settings.ini"), settings)?;
        fs::write(dir.join("users"), format!("\"{user}\" \"\"\n"))?;
        let url = format!("postgres://{user}@127.0.0.1:{port}/{name}?sslmode=disable");
        let mut bouncer = Self { child: spawn(&dir)?, dir, url };
        bouncer.answers().await?;
        Ok(bouncer)
    }

    /// Returns the address of the database through PgBouncer.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Kills PgBouncer and starts another one.
    ///
    /// # Errors
    /// If PgBouncer does not start.
    pub async fn restart(&mut self) -> Result<()> {
        self.child.kill().await?;
        self.child = spawn(&self.dir)?;
        self.answers().await
    }

    /// Waits until PgBouncer accepts clients. Fails if it has exited, or after [`PATIENCE`].
    async fn answers(&mut self) -> Result<()> {
        let began = Instant::now();
        while let Err(error) = PgConnection::connect(&self.url).await {
            let gone = self.child.try_wait()?;
            ensure!(gone.is_none(), "PgBouncer went away: {gone:?}");
            ensure!(began.elapsed() < PATIENCE, "PgBouncer does not let anybody in: {error}");
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        // `kill_on_drop` ends PgBouncer. The system cleans up what cannot be deleted here.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn spawn(dir: &Path) -> Result<Child> {
    let (program, libraries) = tools::pgbouncer()?;
    let mut command = Command::new(program);
    command.arg("-q").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    if rustix::process::geteuid().is_root() {
        // PgBouncer refuses to run as root. The embedded server of root belongs to this user.
        command.args(["-u", "postgres"]);
    }
    Ok(command.arg(dir.join("settings.ini")).spawn()?)
}
