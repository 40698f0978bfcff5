//! PgBouncer before a server.

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

/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(10);

/// When a client's session of the server is given to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// After each transaction.
    Transaction,
    /// When the client goes.
    Session,
}

/// A running PgBouncer, which ends with this value.
#[derive(Debug)]
pub struct Bouncer {
    child: Child,
    dir: PathBuf,
    url: String,
}

impl Bouncer {
    /// One before the server of `url`, which has to be on a socket of this machine; it opens at most so many sessions of it.
    ///
    /// # Errors
    /// [`tools::Missing`] where there is none to start; when it does not come up.
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

    /// The address of the database through it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Kills it, and starts another in its place.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn restart(&mut self) -> Result<()> {
        self.child.kill().await?;
        self.child = spawn(&self.dir)?;
        self.answers().await
    }

    /// Waits until it lets clients in; gives up when it has gone, or after [`PATIENCE`].
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
        // It dies with `kill_on_drop`; what cannot be deleted is left to the system's own cleaning.
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
        // It refuses to be root; the embedded server of root belongs to this user.
        command.args(["-u", "postgres"]);
    }
    Ok(command.arg(dir.join("settings.ini")).spawn()?)
}
