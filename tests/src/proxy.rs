//! A proxy before the server: it counts the statements of its clients, and breaks their connections where a test says, to the message.
//!
//! A [`Mode`] holds for all connections until the next; a [`Fault`] meets one statement, once; [`Proxy::cut`] is for now.
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

/// Messages that were sent and have not arrived, in one direction of one connection: more than a test sends into a black hole.
const IN_FLIGHT: usize = 1 << 16;

/// Into how many pieces the bytes of a throttled second are cut: a hundredth of a second is what a short message takes.
const PIECES: u32 = 100;

/// What happens to everything that is sent, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It arrives.
    #[default]
    Pass,
    /// It arrives on connections that exist. New ones are closed at once.
    Refuse,
    /// It is read and does not arrive, not even the end of a connection. With the next mode it does, as after a partition that TCP outlives.
    BlackHole,
    /// It arrives this much later.
    Delay(Duration),
    /// No more than so many bytes of it arrive in a second.
    Throttle(NonZeroU32),
}

/// What happens to one statement. Its connection is of no more use in each case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is carried out, and the client hears nothing of it.
    LoseReply,
    /// The same, for the next one whose reply has rows. What finds nothing goes by.
    LoseRows,
    /// It is carried out, and the client hears so many bytes of the reply.
    Truncate(usize),
    /// The client loses its connection, and the statement reaches the server only when [`Proxy::release`] says so.
    Hold,
    /// It reaches nobody, and nothing else does on its connection, which stays open for both ends, as one that a firewall has just forgotten.
    Strand,
}

/// A proxy of its own for one test. Its connections end with it.
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

/// A fault, and how the statement begins that is to meet it.
#[derive(Debug)]
struct Armed {
    beginning: String,
    fault: Fault,
}

impl Proxy {
    /// Listens before the server of `url`, which has to accept connections without encryption.
    ///
    /// # Errors
    /// Where the address cannot be read, or there is no port to listen on.
    pub async fn start(url: &str) -> io::Result<Self> {
        Self::at(url, ("127.0.0.1", 0)).await
    }

    /// The same at an address of the caller's choice.
    ///
    /// # Errors
    /// Where an address cannot be read, or not be listened on.
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

    /// From now on, until the next mode.
    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Leads new connections to the server of another address, which is only asked for where it is: whoever promotes a standby wants the connections
    /// to the old server [`cut`](Self::cut) too.
    ///
    /// # Errors
    /// Where the address cannot be read.
    pub fn lead_to(&self, url: &str) -> io::Result<()> {
        *lock(&self.shared.server) = url.parse().map_err(io::Error::other)?;
        Ok(())
    }

    /// How many connections there are.
    #[must_use]
    pub fn n_connections(&self) -> usize {
        self.shared.cuts.receiver_count()
    }

    /// Ends every connection there is. New ones are accepted, unless the mode says otherwise.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Lets nothing more arrive on the connections there are, which stay open for both ends, as when a firewall has forgotten them. New ones work.
    pub fn strand(&self) {
        self.shared.strandings.send_modify(|strandings| *strandings += 1);
    }

    /// Lets the next statement whose first line begins like this meet a fault. Faults for several wait side by side, for each beginning one.
    pub fn arm(&self, beginning: &str, fault: Fault) {
        let mut armed = lock(&self.shared.armed);
        armed.retain(|armed| armed.beginning != beginning);
        armed.push(Armed { beginning: beginning.to_owned(), fault });
    }

    /// Takes back the faults that wait.
    pub fn disarm(&self) {
        lock(&self.shared.armed).clear();
    }

    /// How many statements have met a fault.
    #[must_use]
    pub fn n_faults(&self) -> usize {
        lock(&self.shared.met).len()
    }

    /// The beginnings by which they were to, in the order in which they did.
    #[must_use]
    pub fn met(&self) -> Vec<String> {
        lock(&self.shared.met).clone()
    }

    /// Lets a held statement through.
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

    /// The fault that this statement is to meet, if it is one of these. Gives it once.
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
                // A connection ends with its client or its server: both are things that tests do.
                _ = &mut relay => {}
                _ = cuts.changed() => {}
                // Kept, and not polled any more.
                _ = strandings.changed() => drop(cuts.changed().await),
                () = stranded.notified() => drop(cuts.changed().await),
            }
        });
    }
}

/// A message on its way, and since when.
type Sent = (Instant, Vec<u8>);

/// The statement of a client that may meet a fault in its reply, and which reply that is.
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
    // The server closes when it has done what was asked.
    tokio::io::copy(&mut server, &mut tokio::io::sink()).await.map(drop)
}

/// Reads what the client asks. Ends with the client, or where a statement is to be held, with the rest of its request.
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
    // The reply to the startup comes before the first.
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

/// Reads what the server answers. Ends with the server, or with a reply that was lost, which the server has said to its end.
async fn answer(
    from: impl AsyncRead + Unpin,
    to: mpsc::Sender<Sent>,
    shared: &Shared,
    marked: &Marked,
) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let mut n_replies = 0;
    // Of a reply that is lost: how many bytes of it are still to arrive.
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

/// How many bytes of this reply are to arrive, where it is one to be lost from this message on.
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

/// Lets arrive what is in flight, as the mode says, until nothing more can come.
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
    // The end of a connection does not leave a black hole either.
    shared.reachable().await;
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
