//! A proxy before the server, that counts the statements of a client and can lose the acknowledgement of a commit.
//!
//! It reads the messages of the client as the protocol's version 3 frames them: `P` names a statement, `B` binds it, `E` executes it, `Q` is a simple one.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// What happens to the next commit that comes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is carried out, and the connection is cut before the client hears of it.
    LoseReply,
    /// The connection of the client is cut, and the commit reaches the server only when [`Proxy::release`] says so.
    Hold,
}

/// A proxy of its own for one test.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    shared: Arc<Shared>,
    listener: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    statements: Mutex<Vec<String>>,
    fault: Mutex<Option<Fault>>,
    n_faults: Mutex<usize>,
    released: Notify,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Proxy {
    /// Listens before the server of `url`.
    ///
    /// # Errors
    /// Where the address cannot be read, or there is no port to listen on.
    pub async fn start(url: &str) -> io::Result<Self> {
        let upstream: PgConnectOptions = url.parse().map_err(io::Error::other)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let ours = Arc::clone(&shared);
        let listener = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, shared) = (upstream.clone(), Arc::clone(&ours));
                // A connection ends with its client or its server: both are things that tests do.
                tokio::spawn(async move { relay(client, &upstream, &shared).await.ok() });
            }
        });
        Ok(Self { url: through(url, port), shared, listener })
    }

    /// The address of the same database through the proxy.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The statements since the last [`forget`](Self::forget): the first line of each.
    #[must_use]
    pub fn statements(&self) -> Vec<String> {
        lock(&self.shared.statements).clone()
    }

    /// How many statements there were whose first line begins like this.
    #[must_use]
    pub fn count(&self, beginning: &str) -> usize {
        lock(&self.shared.statements).iter().filter(|line| line.starts_with(beginning)).count()
    }

    /// Starts counting anew.
    pub fn forget(&self) {
        lock(&self.shared.statements).clear();
    }

    /// Lets the next commit meet a fault.
    pub fn arm(&self, fault: Fault) {
        *lock(&self.shared.fault) = Some(fault);
    }

    /// How many commits have met a fault.
    #[must_use]
    pub fn n_faults(&self) -> usize {
        *lock(&self.shared.n_faults)
    }

    /// Lets a held commit through.
    pub fn release(&self) {
        self.shared.released.notify_one();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn relay(mut client: TcpStream, upstream: &PgConnectOptions, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut server = dial(upstream).await?;
    let mut messages = Messages::default();
    let mut answer = vec![0; 64 * 1024];
    loop {
        let mut asked = Vec::with_capacity(16 * 1024);
        tokio::select! {
            read = client.read_buf(&mut asked) => {
                if read? == 0 {
                    return Ok(());
                }
                let statements = messages.read(&asked);
                let commits = statements.iter().any(|text| text.eq_ignore_ascii_case("commit"));
                lock(&shared.statements).extend(statements);
                let fault = if commits { lock(&shared.fault).take() } else { None };
                if let Some(fault) = fault {
                    *lock(&shared.n_faults) += 1;
                    return fail(fault, client, server, &asked, shared).await;
                }
                server.write_all(&asked).await?;
            }
            read = server.read(&mut answer) => {
                let n_bytes = read?;
                if n_bytes == 0 {
                    return Ok(());
                }
                client.write_all(&answer[..n_bytes]).await?;
            }
        }
    }
}

async fn fail(
    fault: Fault,
    client: TcpStream,
    mut server: Box<dyn Stream>,
    commit: &[u8],
    shared: &Shared,
) -> io::Result<()> {
    let mut kept = Some(client);
    if fault == Fault::Hold {
        kept = None;
        shared.released.notified().await;
    }
    server.write_all(commit).await?;
    // The first byte of the answer comes after the commit.
    server.read_u8().await?;
    drop(kept);
    Ok(())
}

async fn dial(upstream: &PgConnectOptions) -> io::Result<Box<dyn Stream>> {
    match upstream.get_socket() {
        Some(folder) => {
            let path = folder.join(format!(".s.PGSQL.{}", upstream.get_port()));
            Ok(Box::new(UnixStream::connect(path).await?))
        }
        None => Ok(Box::new(TcpStream::connect((upstream.get_host(), upstream.get_port())).await?)),
    }
}

/// The messages of one client.
#[derive(Default)]
struct Messages {
    pending: Vec<u8>,
    started: bool,
    prepared: HashMap<Vec<u8>, String>,
    bound: Vec<u8>,
}

impl Messages {
    /// Takes bytes, and gives the statements that have been asked for in them.
    fn read(&mut self, bytes: &[u8]) -> Vec<String> {
        self.pending.extend_from_slice(bytes);
        let mut statements = Vec::new();
        loop {
            // The first message has no kind.
            let kind_len = usize::from(self.started);
            let Some(length) = self.pending.get(kind_len..kind_len + 4) else { return statements };
            let length = length.iter().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte));
            if self.pending.len() < kind_len + length {
                return statements;
            }
            let message: Vec<u8> = self.pending.drain(..kind_len + length).collect();
            if self.started {
                statements.extend(self.statement(message[0], &message[5..]));
            }
            self.started = true;
        }
    }

    fn statement(&mut self, kind: u8, body: &[u8]) -> Option<String> {
        let mut words = body.split(|byte| *byte == 0);
        let first = words.next().unwrap_or_default().to_vec();
        let second = words.next().unwrap_or_default().to_vec();
        match kind {
            b'Q' => return Some(first_line(&first)),
            b'P' => {
                self.prepared.insert(first, first_line(&second));
            }
            b'B' => self.bound = second,
            b'E' => return Some(self.prepared.get(&self.bound).cloned().unwrap_or_default()),
            _ => {}
        }
        None
    }
}

fn first_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().next().unwrap_or_default().to_owned()
}

/// `url` with another server: what stands between the user and the database.
fn through(url: &str, port: u16) -> String {
    let address = url.split_once('?').map_or(url, |(address, _)| address);
    let from = address.rfind('@').map_or_else(|| address.find("://").map_or(0, |at| at + 3), |at| at + 1);
    let database = address[from..].split_once('/').map_or("", |(_, database)| database);
    format!("{}127.0.0.1:{port}/{database}?sslmode=disable", &address[..from])
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
