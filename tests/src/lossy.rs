//! A proxy between a client and the server of the tests. It breaks connections where a test says, to the message: it reads the protocol.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runledger::Db;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A proxy in front of a database. It lives as long as this value.
#[derive(Debug)]
pub struct Proxy {
    options: PgConnectOptions,
    folder: PathBuf,
    switch: Arc<Switch>,
    accepting: JoinHandle<()>,
}

/// What the proxy does to its connections now.
#[derive(Debug, Default)]
struct Switch {
    blackhole: watch::Sender<bool>,
    cuts: watch::Sender<u32>,
    /// The reply to the next statement with this text is lost.
    needle: Mutex<Option<String>>,
    lost: AtomicU32,
}

impl Proxy {
    /// A proxy in front of the database of a client. It passes everything on.
    ///
    /// # Panics
    /// Where no socket can be made.
    pub async fn before(db: &Db) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = (*db.pool().connect_options()).clone();
        let name = format!("rl-proxy-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        let socket = folder.join(format!(".s.PGSQL.{}", server.get_port()));
        let bound = std::fs::create_dir_all(&folder).and_then(|()| UnixListener::bind(&socket));
        let listener = bound.unwrap_or_else(|error| unreachable!("{error}: {}", socket.display()));
        let options = server.clone().socket(&folder).ssl_mode(PgSslMode::Disable);
        let switch = Arc::new(Switch::default());
        let accepting = tokio::spawn(accept(listener, server, Arc::clone(&switch)));
        Self { options, folder, switch, accepting }
    }

    /// How to connect through the proxy.
    #[must_use]
    pub fn options(&self) -> PgConnectOptions {
        self.options.clone()
    }

    /// Ends every connection there is. New ones are accepted.
    pub fn cut(&self) {
        self.switch.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Swallows everything without ending a connection, or goes on where it stopped.
    pub fn blackhole(&self, swallow: bool) {
        self.switch.blackhole.send_replace(swallow);
    }

    /// Loses the reply to the next statement whose text contains `needle`: the server carries it out, and then the connection ends.
    pub fn lose_reply_to(&self, needle: &str) {
        *self.switch.needle() = Some(needle.to_owned());
    }

    /// How many replies were lost.
    #[must_use]
    pub fn n_lost(&self) -> u32 {
        self.switch.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
        // A folder that stays is no harm to anybody.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Switch {
    fn needle(&self) -> MutexGuard<'_, Option<String>> {
        self.needle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the reply to this statement is to be lost. Says yes once.
    fn strikes(&self, statement: &str) -> bool {
        self.needle().take_if(|needle| statement.contains(needle.as_str())).is_some()
    }

    async fn pass(&self) {
        // The sender lives as long as `self`.
        let _ = self.blackhole.subscribe().wait_for(|swallow| !swallow).await;
    }
}

trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

async fn accept(listener: UnixListener, server: PgConnectOptions, switch: Arc<Switch>) {
    while let Ok((client, _)) = listener.accept().await {
        let (server, switch) = (server.clone(), Arc::clone(&switch));
        tokio::spawn(async move {
            let mut cuts = switch.cuts.subscribe();
            let Ok(server) = connect(&server).await else { return };
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = tokio::io::split(server);
            let losing = AtomicBool::new(false);
            tokio::select! {
                _ = upward(from_client, to_server, &switch, &losing) => {}
                _ = downward(from_server, to_client, &switch, &losing) => {}
                _ = cuts.changed() => {}
            }
        });
    }
}

async fn connect(options: &PgConnectOptions) -> std::io::Result<Box<dyn Duplex>> {
    match options.get_socket() {
        Some(folder) => {
            let socket = folder.join(format!(".s.PGSQL.{}", options.get_port()));
            Ok(Box::new(UnixStream::connect(socket).await?))
        }
        None => Ok(Box::new(TcpStream::connect((options.get_host(), options.get_port())).await?)),
    }
}

/// Passes the client's messages on, and notes when the reply to one is to be lost.
async fn upward(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    switch: &Switch,
    losing: &AtomicBool,
) -> std::io::Result<()> {
    let mut from = BufReader::new(from);
    let mut statements = HashMap::new();
    let mut message = startup(&mut from).await?;
    loop {
        switch.pass().await;
        if let Some(statement) = executed(&message, &mut statements)
            && switch.strikes(&statement)
        {
            losing.store(true, Ordering::SeqCst);
        }
        to.write_all(&message).await?;
        message = frame(&mut from).await?;
    }
}

/// Passes the server's messages on; ends where a reply is to be lost, once the server has said all of it.
async fn downward(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    switch: &Switch,
    losing: &AtomicBool,
) -> std::io::Result<()> {
    let mut from = BufReader::new(from);
    loop {
        let message = frame(&mut from).await?;
        switch.pass().await;
        if !losing.load(Ordering::SeqCst) {
            to.write_all(&message).await?;
        } else if message.first() == Some(&b'Z') {
            switch.lost.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
    }
}

/// The text of the statement that a message has carried out, if it has one carried out.
fn executed(message: &[u8], statements: &mut HashMap<String, String>) -> Option<String> {
    let mut texts = message.get(5..)?.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    match message.first()? {
        b'Q' => texts.next().map(Into::into),
        b'P' => {
            statements.insert(texts.next()?.into(), texts.next()?.into());
            None
        }
        b'B' => statements.get(texts.nth(1)?.as_ref()).cloned(),
        _ => None,
    }
}

/// The first message of a client, which has no type.
async fn startup(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut message = vec![0; 4];
    from.read_exact(&mut message).await?;
    rest(from, message, 0).await
}

async fn frame(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut message = vec![0; 5];
    from.read_exact(&mut message).await?;
    rest(from, message, 1).await
}

/// Reads what the length, which stands at `at` and counts itself, promises.
async fn rest(
    from: &mut (impl AsyncRead + Unpin),
    mut message: Vec<u8>,
    at: usize,
) -> std::io::Result<Vec<u8>> {
    let length = message[at..].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    let had = message.len();
    message.resize((at + length).max(had), 0);
    from.read_exact(&mut message[had..]).await?;
    Ok(message)
}
