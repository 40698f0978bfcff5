//! The part of PostgreSQL's protocol, version 3, that the proxy reads: the bounds of messages, the
//! client's statements, and the ends of replies. See
//! <https://www.postgresql.org/docs/current/protocol-message-formats.html>.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// Requests for TLS and GSS encryption. They stand in the place of the version.
const ENCRYPTION: [[u8; 4]; 2] = [80_877_103_u32.to_be_bytes(), 80_877_104_u32.to_be_bytes()];

/// The kind of a message with a row.
pub(super) const ROW: u8 = b'D';

/// The kind of the last message of a reply: the server is ready for the next request.
pub(super) const READY: u8 = b'Z';

/// A connection to a server.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Connects to a server without encryption.
pub(super) async fn dial(server: &PgConnectOptions) -> io::Result<Box<dyn Stream>> {
    if let Some(folder) = server.get_socket() {
        let path = folder.join(format!(".s.PGSQL.{}", server.get_port()));
        return Ok(Box::new(UnixStream::connect(path).await?));
    }
    let stream = TcpStream::connect((server.get_host(), server.get_port())).await?;
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}

/// Reads the startup message of a client, which has no kind. Declines requests for encryption
/// before it.
pub(super) async fn startup(client: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<Vec<u8>> {
    loop {
        let message = read(client, 0).await?;
        if !ENCRYPTION.iter().any(|code| message.get(4..) == Some(code.as_slice())) {
            return Ok(message);
        }
        client.write_all(b"N").await?;
    }
}

/// Reads the next message, including its kind.
pub(super) async fn message(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    read(from, 1).await
}

/// Reads the kind, if any, and as many bytes as the length says. The length counts itself.
async fn read(from: &mut (impl AsyncRead + Unpin), n_kind: usize) -> io::Result<Vec<u8>> {
    let mut message = vec![0; n_kind + 4];
    from.read_exact(&mut message).await?;
    let length = message[n_kind..].iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
    message.resize(n_kind + length.max(4), 0);
    from.read_exact(&mut message[n_kind + 4..]).await?;
    Ok(message)
}

/// Whether a client's message ends its request. The server sends one reply to each request.
pub(super) fn ends_request(message: &[u8]) -> bool {
    matches!(message[0], b'Q' | b'S')
}

/// The statements that a client has prepared, and the one that it has bound.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    first_lines: HashMap<Vec<u8>, String>,
    bound: Vec<u8>,
}

impl Prepared {
    /// Returns the first line of the statement that this message executes, if it executes one.
    ///
    /// `P` prepares a named statement, `B` binds it, `E` executes the one bound last, and `Q` is a
    /// complete statement.
    pub(super) fn executed(&mut self, message: &[u8]) -> Option<String> {
        let mut words = message[5..].split(|byte| *byte == 0);
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        match message[0] {
            b'Q' => return Some(first_line(first)),
            b'P' => drop(self.first_lines.insert(first.to_vec(), first_line(second))),
            b'B' => second.clone_into(&mut self.bound),
            b'E' => return Some(self.first_lines.get(&self.bound).cloned().unwrap_or_default()),
            _ => {}
        }
        None
    }
}

fn first_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().next().unwrap_or_default().to_owned()
}

/// Returns `url` with another server. Keeps the role and the database, and drops the parameters
/// that describe the server.
pub(super) fn through(url: &str, server: SocketAddr) -> String {
    let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
    let from = address.rfind('@').map_or_else(|| address.find("://").map_or(0, |at| at + 3), |at| at + 1);
    let database = address[from..].split_once('/').map_or("", |(_, database)| database);
    let mut through = format!("{}{server}/{database}?sslmode=disable", &address[..from]);
    let of_server = |parameter: &str| ["host", "port", "ssl"].iter().any(|it| parameter.starts_with(it));
    for parameter in parameters.split('&').filter(|it| !it.is_empty() && !of_server(it)) {
        through.push('&');
        through.push_str(parameter);
    }
    through
}
