//! A proxy before PostgreSQL that loses messages on purpose. It understands just enough of the protocol to know which
//! statement an answer belongs to.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinHandle;

/// A running proxy. Its connections are cut when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The beginning of a statement whose next answer with rows is to be lost.
    lose: Option<String>,
    n_lost: u32,
    refuse: bool,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Proxy {
    /// Listens for clients of the database at `url`.
    ///
    /// # Errors
    /// When the address is not one of a database, or no port is free.
    pub async fn start(url: &str) -> Result<Self> {
        let target: PgConnectOptions = url.parse()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if lock(&shared).refuse {
                    continue;
                }
                let (target, shared) = (target.clone(), Arc::clone(&shared));
                // Ends with either of its streams.
                tokio::spawn(async move { serve(client, &target, &shared).await });
            }
        });
        Ok(Self { address, state, task })
    }

    /// The connection string of the same database through this proxy.
    ///
    /// # Errors
    /// When `url` is not one of a database.
    pub fn url(&self, url: &str) -> Result<String> {
        let target: PgConnectOptions = url.parse()?;
        let (user, database) =
            (target.get_username(), target.get_database().context("no database is named")?);
        Ok(format!("postgres://{user}@{}/{database}?sslmode=disable", self.address))
    }

    /// Loses the next answer with rows to a statement that begins like this: the server has carried it out, and the
    /// connection is cut.
    pub fn lose_answer(&self, statement: &str) {
        lock(&self.state).lose = Some(statement.to_owned());
    }

    /// How many answers were lost.
    #[must_use]
    pub fn n_lost(&self) -> u32 {
        lock(&self.state).n_lost
    }

    /// Whether new connections are refused. Those that exist live on.
    pub fn refuse(&self, refuse: bool) {
        lock(&self.state).refuse = refuse;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn connect(target: &PgConnectOptions) -> std::io::Result<Box<dyn Stream>> {
    let socket = target.get_socket().cloned().or_else(|| {
        let host = target.get_host();
        host.starts_with('/').then(|| PathBuf::from(host))
    });
    Ok(match socket {
        Some(dir) => {
            Box::new(UnixStream::connect(dir.join(format!(".s.PGSQL.{}", target.get_port()))).await?)
        }
        None => Box::new(TcpStream::connect((target.get_host(), target.get_port())).await?),
    })
}

/// The statements that a client has prepared on one connection, by name.
#[derive(Debug, Default)]
struct Prepared {
    statements: HashMap<Vec<u8>, Vec<u8>>,
    /// Whether the one that runs is the one whose answer is to be lost.
    is_running: bool,
}

async fn serve(
    mut client: TcpStream,
    target: &PgConnectOptions,
    state: &Mutex<State>,
) -> std::io::Result<()> {
    let mut server = connect(target).await?;
    let mut startup = vec![0; 4];
    client.read_exact(&mut startup).await?;
    let length = u32::from_be_bytes([startup[0], startup[1], startup[2], startup[3]]) as usize;
    startup.resize(length.max(4), 0);
    client.read_exact(&mut startup[4..]).await?;
    server.write_all(&startup).await?;
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let (mut from_client, mut to_client) = client.split();
    let prepared = Mutex::new(Prepared::default());
    let upward = async {
        loop {
            let (kind, body) = message(&mut from_client).await?;
            prepared.lock().unwrap_or_else(PoisonError::into_inner).note(kind, &body, state);
            send(&mut to_server, kind, &body).await?;
        }
    };
    let downward = async {
        let mut is_lost = false;
        loop {
            let (kind, body) = message(&mut from_server).await?;
            let is_running = prepared.lock().unwrap_or_else(PoisonError::into_inner).is_running;
            if kind == b'D' && is_running && lock(state).lose.take().is_some() {
                is_lost = true;
            }
            // `Z` says that the server is ready again: what it did is committed.
            if is_lost && kind == b'Z' {
                lock(state).n_lost += 1;
                return Err::<(), _>(std::io::ErrorKind::ConnectionReset.into());
            }
            if !is_lost {
                send(&mut to_client, kind, &body).await?;
            }
        }
    };
    tokio::select! {
        end = upward => end,
        end = downward => end,
    }
}

impl Prepared {
    /// `P` prepares a statement under a name, `B` binds parameters to one and so begins to run it.
    fn note(&mut self, kind: u8, body: &[u8], state: &Mutex<State>) {
        let mut texts = body.split(|byte| *byte == 0);
        let (first, second) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
        match kind {
            b'P' => {
                // Remembered even while nothing is to be lost: it may be prepared long before.
                self.statements.insert(first.to_vec(), second.to_vec());
            }
            b'B' => {
                let wanted = lock(state).lose.clone();
                let statement = self.statements.get(second);
                self.is_running = wanted
                    .zip(statement)
                    .is_some_and(|(wanted, statement)| statement.starts_with(wanted.as_bytes()));
            }
            _ => {}
        }
    }
}

async fn message(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(u8, Vec<u8>)> {
    let kind = from.read_u8().await?;
    let length = from.read_u32().await?.saturating_sub(4);
    let mut body = vec![0; length as usize];
    from.read_exact(&mut body).await?;
    Ok((kind, body))
}

async fn send(to: &mut (impl AsyncWrite + Unpin), kind: u8, body: &[u8]) -> std::io::Result<()> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX).saturating_add(4);
    let mut bytes = Vec::with_capacity(body.len() + 5);
    bytes.push(kind);
    bytes.extend(length.to_be_bytes());
    bytes.extend(body);
    to.write_all(&bytes).await?;
    to.flush().await
}
