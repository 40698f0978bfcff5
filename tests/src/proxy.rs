//! A proxy in front of the server. It counts the statements of its clients, and breaks their
//! connections exactly at the message that a test chooses.
//!
//! A [`Mode`] applies to all connections until the next one is set. A [`Fault`] hits one statement,
//! once. [`Proxy::cut`] acts at once.
//!
//! ```text
//! client ──▶ read, count, faults ──▶ in flight ──▶ mode ──▶ server
//!        ◀── mode ◀── in flight ◀── faults, read ◀──
//! ```

mod wire;

use std::io;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Messages sent but not delivered, in one direction of one connection. More than a test sends into
/// a black hole.
const IN_FLIGHT: usize = 1 << 16;

/// The number of pieces into which a second of throttled bytes is cut. A short message takes 1/100
/// s.
const PIECES: u32 = 100;

/// What happens to all messages, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// They are delivered.
    #[default]
    Pass,
    /// Existing connections work. New ones are closed at once.
    Refuse,
    /// Nothing is delivered, not even the end of a connection. The next mode delivers it, as after
    /// a partition that TCP survives.
    BlackHole,
    /// They are delivered this much later.
    Delay(Duration),
    /// At most this many bytes are delivered per second.
    Throttle(NonZeroU32),
}

/// What happens to one statement. Afterwards its connection is useless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server executes it, and the client receives no reply.
    LoseReply,
    /// As `LoseReply`, for the next reply with rows. Replies without rows pass.
    LoseRows,
    /// The server executes it, and the client receives this many bytes of the reply.
    Truncate(usize),
    /// The client loses its connection. The statement reaches the server only at
    /// [`Proxy::release`].
    Hold,
    /// The statement and everything after it on its connection are lost. Both ends stay open, as
    /// after a firewall has forgotten the connection.
    Strand,
}

/// A proxy for one test. Its connections end with it.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    server: Mutex<PgConnectOptions>,
    statements: Mutex<Vec<String>>,
    mode: watch::Sender<Mode>,
    cuts: watch::Sender<u32>,
    strandings: watch::Sender<u32>,
    armed: Mutex<Vec<Armed>>,
    met: Mutex<Vec<String>>,
    released: Notify,
}

/// A fault, and the beginning of the statement that it hits.
#[derive(Debug)]
struct Armed {
    beginning: String,
    fault: Fault,
}

impl Proxy {
    /// Starts a proxy in front of the server of `url`, which must accept unencrypted connections.
    ///
    /// # Errors
    /// If the address is invalid, or if no port is free.
    pub async fn start(url: &str) -> io::Result<Self> {
        Self::at(url, ("127.0.0.1", 0)).await
    }

    /// As [`start`](Self::start), at this address.
    ///
    /// # Errors
    /// If an address is invalid, or if the proxy cannot listen there.
    pub async fn at(url: &str, address: (&str, u16)) -> io::Result<Self> {
        let server = Mutex::new(url.parse().map_err(io::Error::other)?);
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            server,
            statements: Mutex::default(),
            mode: watch::Sender::default(),
            cuts: watch::Sender::default(),
            strandings: watch::Sender::default(),
            armed: Mutex::default(),
            met: Mutex::default(),
            released: Notify::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { url: wire::through(url, address), shared, accepting })
    }

    /// Returns the address of the same database through the proxy.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the first line of each statement since the last [`forget`](Self::forget).
    #[must_use]
    pub fn statements(&self) -> Vec<String> {
        lock(&self.shared.statements).clone()
    }

    /// Counts the statements whose first line begins with `beginning`.
    #[must_use]
    pub fn count(&self, beginning: &str) -> usize {
        lock(&self.shared.statements).iter().filter(|line| line.starts_with(beginning)).count()
    }

    /// Resets the statement count.
    pub fn forget(&self) {
        lock(&self.shared.statements).clear();
    }

    /// Sets the mode.
    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Leads new connections to another server. To simulate a failover, also [`cut`](Self::cut) the
    /// connections to the old one.
    ///
    /// # Errors
    /// If the address is invalid.
    pub fn lead_to(&self, url: &str) -> io::Result<()> {
        *lock(&self.shared.server) = url.parse().map_err(io::Error::other)?;
        Ok(())
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn n_connections(&self) -> usize {
        self.shared.cuts.receiver_count()
    }

    /// Ends all connections. New ones are accepted, unless the mode refuses them.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Delivers nothing more on existing connections. Both ends stay open, as after a firewall has
    /// forgotten the connections. New connections work.
    pub fn strand(&self) {
        self.shared.strandings.send_modify(|strandings| *strandings += 1);
    }

    /// Arms a fault for the next statement whose first line begins with `beginning`. There is one
    /// armed fault for each beginning.
    pub fn arm(&self, beginning: &str, fault: Fault) {
        let mut armed = lock(&self.shared.armed);
        armed.retain(|armed| armed.beginning != beginning);
        armed.push(Armed { beginning: beginning.to_owned(), fault });
    }

    /// Disarms all faults.
    pub fn disarm(&self) {
        lock(&self.shared.armed).clear();
    }

    /// Returns how many statements met a fault.
    #[must_use]
    pub fn n_faults(&self) -> usize {
        lock(&self.shared.met).len()
    }

    /// Returns the beginnings for which those faults were armed, in the order in which they
    /// happened.
    #[must_use]
    pub fn met(&self) -> Vec<String> {
        lock(&self.shared.met).clone()
    }

    /// Sends a held statement to the server.
    pub fn release(&self) {
        self.shared.released.notify_one();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

impl Shared {
    fn mode(&self) -> Mode {
        *self.mode.borrow()
    }

    /// Waits for the end of a black hole.
    async fn reachable(&self) {
        // The sender lives as long as `self`.
        let _ = self.mode.subscribe().wait_for(|mode| *mode != Mode::BlackHole).await;
    }

    fn is_armed(&self, statement: &str) -> bool {
        lock(&self.armed).iter().any(|armed| statement.starts_with(&armed.beginning))
    }

    /// Takes the armed fault for this statement, if it is one of the `wanted`.
    fn strike(&self, statement: &str, wanted: impl Fn(Fault) -> bool) -> Option<Fault> {
        let meets = |armed: &Armed| statement.starts_with(&armed.beginning) && wanted(armed.fault);
        let mut armed = lock(&self.armed);
        let struck = armed.iter().position(meets).map(|at| armed.remove(at))?;
        lock(&self.met).push(struck.beginning);
        Some(struck.fault)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if shared.mode() == Mode::Refuse {
            continue;
        }
        let (mut cuts, mut strandings) = (shared.cuts.subscribe(), shared.strandings.subscribe());
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let stranded = Notify::new();
            let mut relay = pin!(relay(client, &shared, &stranded));
            tokio::select! {
                // The connection ends with its client or its server. Tests do both on purpose.
                _ = &mut relay => {}
                _ = cuts.changed() => {}
                // The relay stays alive but is no longer polled.
                _ = strandings.changed() => drop(cuts.changed().await),
                () = stranded.notified() => drop(cuts.changed().await),
            }
        });
    }
}

/// A message in flight, with the time at which it was sent.
type Sent = (Instant, Vec<u8>);

/// The statement whose reply a fault may hit, and the number of that reply.
type Marked = Mutex<Option<(usize, String)>>;

async fn relay(mut client: TcpStream, shared: &Shared, stranded: &Notify) -> io::Result<()> {
    client.set_nodelay(true)?;
    shared.reachable().await;
    let server = lock(&shared.server).clone();
    let mut server = wire::dial(&server).await?;
    let startup = wire::startup(&mut client).await?;
    let held = {
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = tokio::io::split(&mut server);
        let (asked, arrives) = mpsc::channel(IN_FLIGHT);
        let (answered, returns) = mpsc::channel(IN_FLIGHT);
        let marked = Marked::default();
        let upward = async {
            tokio::join!(
                ask(from_client, startup, asked, shared, &marked, stranded),
                deliver(arrives, to_server, shared)
            )
        };
        let downward = async {
            tokio::join!(answer(from_server, answered, shared, &marked), deliver(returns, to_client, shared))
        };
        tokio::select! {
            (held, _) = upward => held?,
            (end, _) = downward => return end,
        }
    };
    // The client has lost its connection.
    shared.released.notified().await;
    server.write_all(&held).await?;
    server.shutdown().await?;
    // The server closes the connection once it has executed the request.
    tokio::io::copy(&mut server, &mut tokio::io::sink()).await.map(drop)
}

/// Forwards the client's messages. Ends with the client, or at a held statement, and then returns
/// the rest of the request.
async fn ask(
    from: impl AsyncRead + Unpin,
    startup: Vec<u8>,
    to: mpsc::Sender<Sent>,
    shared: &Shared,
    marked: &Marked,
    stranded: &Notify,
) -> io::Result<Vec<u8>> {
    let mut from = BufReader::new(from);
    let mut prepared = wire::Prepared::default();
    // The reply to the startup message comes first.
    let mut n_replies = 1;
    send(&to, startup).await?;
    loop {
        let message = wire::message(&mut from).await?;
        if let Some(statement) = prepared.executed(&message) {
            lock(&shared.statements).push(statement.clone());
            if shared.strike(&statement, |fault| fault == Fault::Hold).is_some() {
                return with_rest_of_request(message, &mut from).await;
            }
            if shared.strike(&statement, |fault| fault == Fault::Strand).is_some() {
                stranded.notify_one();
                return std::future::pending().await;
            }
            if shared.is_armed(&statement) {
                *lock(marked) = Some((n_replies, statement));
            }
        }
        n_replies += usize::from(wire::ends_request(&message));
        send(&to, message).await?;
    }
}

async fn with_rest_of_request(
    mut message: Vec<u8>,
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    while !wire::ends_request(&message) {
        request.append(&mut message);
        message = wire::message(from).await?;
    }
    request.append(&mut message);
    Ok(request)
}

/// Forwards the server's messages. Ends with the server, or once the server has sent all of a reply
/// that is to be lost.
async fn answer(
    from: impl AsyncRead + Unpin,
    to: mpsc::Sender<Sent>,
    shared: &Shared,
    marked: &Marked,
) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let mut n_replies = 0;
    // The bytes of a lost reply that still arrive.
    let mut n_left = None;
    loop {
        let mut message = wire::message(&mut from).await?;
        let (is_row, is_last) = (message[0] == wire::ROW, message[0] == wire::READY);
        n_left = n_left.or_else(|| bytes_to_arrive(shared, marked, n_replies, is_row));
        if let Some(n_left) = &mut n_left {
            message.truncate(*n_left);
            *n_left -= message.len();
        }
        send(&to, message).await?;
        if is_last && n_left.is_some() {
            return Ok(());
        }
        n_replies += usize::from(is_last);
    }
}

/// If this reply is lost from this message on, returns how many of its bytes arrive.
fn bytes_to_arrive(shared: &Shared, marked: &Marked, n_replies: usize, is_row: bool) -> Option<usize> {
    let marked = lock(marked);
    let (_, statement) = marked.as_ref().filter(|(reply, _)| *reply == n_replies)?;
    let fault = shared.strike(statement, |fault| match fault {
        Fault::LoseReply | Fault::Truncate(_) => true,
        Fault::LoseRows => is_row,
        Fault::Hold | Fault::Strand => false,
    });
    fault.map(|fault| if let Fault::Truncate(n_bytes) = fault { n_bytes } else { 0 })
}

async fn send(to: &mpsc::Sender<Sent>, message: Vec<u8>) -> io::Result<()> {
    to.send((Instant::now(), message)).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
}

/// Delivers the messages in flight according to the mode, until the sender is gone.
async fn deliver(
    mut from: mpsc::Receiver<Sent>,
    mut to: impl AsyncWrite + Unpin,
    shared: &Shared,
) -> io::Result<()> {
    while let Some((sent_at, message)) = from.recv().await {
        let n_bytes = match shared.mode() {
            Mode::Throttle(rate) => rate.get().div_ceil(PIECES) as usize,
            Mode::Pass | Mode::Refuse | Mode::BlackHole | Mode::Delay(_) => message.len().max(1),
        };
        for piece in message.chunks(n_bytes) {
            match shared.mode() {
                Mode::Delay(by) => tokio::time::sleep_until(sent_at + by).await,
                Mode::Throttle(_) => tokio::time::sleep(Duration::from_secs(1) / PIECES).await,
                Mode::Pass | Mode::Refuse | Mode::BlackHole => {}
            }
            shared.reachable().await;
            to.write_all(piece).await?;
        }
    }
    // A black hole also hides the end of a connection.
    shared.reachable().await;
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
