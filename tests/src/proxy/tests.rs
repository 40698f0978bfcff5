//! The tests control both ends of a connection and compare what enters with what leaves.
#![allow(clippy::unwrap_used, reason = "tests")]

use tokio::io::AsyncReadExt;

use super::*;
use crate::{PATIENCE, eventually};

/// Time in which a wrongly forwarded message would arrive.
const MOMENT: Duration = Duration::from_millis(50);

/// The startup message of a client: the version, no parameters.
const STARTUP: &[u8] = &[0, 0, 0, 8, 0, 3, 0, 0];

struct Line {
    proxy: Proxy,
    client: TcpStream,
    server: TcpStream,
    listener: TcpListener,
}

impl Line {
    /// Opens a connection and completes its startup.
    async fn new() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        let proxy = Proxy::start(&format!("postgres://u@{at}/d")).await.unwrap();
        let mut client = dial(&proxy).await;
        client.write_all(STARTUP).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        expect(&mut server, STARTUP).await;
        server.write_all(&ready()).await.unwrap();
        expect(&mut client, &ready()).await;
        Self { proxy, client, server, listener }
    }

    /// Sends a simple statement and receives it at the server.
    async fn ask(&mut self, statement: &str) {
        self.client.write_all(&simple(statement)).await.unwrap();
        expect(&mut self.server, &simple(statement)).await;
    }
}

async fn dial(proxy: &Proxy) -> TcpStream {
    let options: PgConnectOptions = proxy.url().parse().unwrap();
    TcpStream::connect((options.get_host(), options.get_port())).await.unwrap()
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap() + 4;
    [&[kind], length.to_be_bytes().as_slice(), body].concat()
}

fn simple(statement: &str) -> Vec<u8> {
    message(b'Q', &[statement.as_bytes(), &[0]].concat())
}

fn row() -> Vec<u8> {
    message(wire::ROW, &[7; 100])
}

fn ready() -> Vec<u8> {
    message(wire::READY, b"I")
}

/// Expects these bytes next.
async fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut read = vec![0; bytes.len()];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut read)).await.unwrap().unwrap();
    assert_eq!(read, bytes);
}

/// Returns everything that arrives until the connection ends.
async fn until_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    // A reset also ends the connection.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut read)).await.unwrap();
    read
}

async fn expect_silence(stream: &mut TcpStream) {
    assert!(tokio::time::timeout(MOMENT, stream.read_u8()).await.is_err(), "something arrived, or the end");
}

#[tokio::test]
async fn black_hole_holds_messages_and_connections_until_it_ends() {
    let Line { proxy, mut client, mut server, listener } = Line::new().await;
    proxy.set(Mode::BlackHole);
    client.write_all(&simple("select 1")).await.unwrap();
    eventually(async || proxy.count("select 1"), |n| *n == 1).await;
    server.write_all(&ready()).await.unwrap();
    expect_silence(&mut server).await;
    expect_silence(&mut client).await;
    let _late = dial(&proxy).await;
    assert!(tokio::time::timeout(MOMENT, listener.accept()).await.is_err(), "the server was called");

    proxy.set(Mode::Pass);
    expect(&mut server, &simple("select 1")).await;
    expect(&mut client, &ready()).await;
    tokio::time::timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
}

#[tokio::test]
async fn black_hole_withholds_connection_close_until_it_ends() {
    let Line { proxy, client, mut server, .. } = Line::new().await;
    proxy.set(Mode::BlackHole);
    drop(client);
    expect_silence(&mut server).await;
    proxy.set(Mode::Pass);
    assert_eq!(until_end(&mut server).await, b"");
}

#[tokio::test]
async fn cut_drops_black_hole_messages_and_closes_both_ends() {
    let Line { proxy, mut client, mut server, .. } = Line::new().await;
    proxy.set(Mode::BlackHole);
    client.write_all(&simple("select 1")).await.unwrap();
    eventually(async || proxy.count("select 1"), |n| *n == 1).await;
    proxy.cut();
    assert_eq!((until_end(&mut client).await, until_end(&mut server).await), (vec![], vec![]));
}

#[tokio::test]
async fn delay_holds_back_every_message_and_keeps_order() {
    let mut line = Line::new().await;
    line.proxy.set(Mode::Delay(MOMENT));
    let began = Instant::now();
    line.client.write_all(&[simple("select 1"), simple("select 2")].concat()).await.unwrap();
    expect(&mut line.server, &[simple("select 1"), simple("select 2")].concat()).await;
    line.server.write_all(&[row(), ready()].concat()).await.unwrap();
    expect(&mut line.client, &[row(), ready()].concat()).await;
    assert!(began.elapsed() >= MOMENT * 2, "there and back in {:?}", began.elapsed());
}

#[tokio::test]
async fn black_hole_holds_messages_delayed_before_it() {
    let delay = MOMENT * 4;
    let mut line = loop {
        let mut line = Line::new().await;
        line.proxy.set(Mode::Delay(delay));
        let began = Instant::now();
        line.client.write_all(&simple("select 1")).await.unwrap();
        eventually(async || line.proxy.count("select 1"), |n| *n == 1).await;
        line.proxy.set(Mode::BlackHole);
        // If this took longer than the delay, the message has arrived and the try shows nothing.
        if began.elapsed() < delay {
            break line;
        }
    };
    tokio::time::sleep(delay).await;
    expect_silence(&mut line.server).await;
    line.proxy.set(Mode::Pass);
    expect(&mut line.server, &simple("select 1")).await;
}

#[tokio::test]
async fn throttled_reply_is_no_faster_than_its_byte_rate() {
    let mut line = Line::new().await;
    line.ask("select 1").await;
    let reply = message(wire::ROW, &[7; 995]);
    line.proxy.set(Mode::Throttle(NonZeroU32::new(10_000).unwrap()));
    let began = Instant::now();
    line.server.write_all(&reply).await.unwrap();
    expect(&mut line.client, &reply).await;
    assert!(began.elapsed() >= Duration::from_millis(100), "1000 bytes in {:?}", began.elapsed());
}

#[tokio::test]
async fn truncated_reply_closes_connection_after_given_bytes() {
    let mut line = Line::new().await;
    line.proxy.arm("select 1", Fault::Truncate(150));
    line.ask("select 2").await;
    line.server.write_all(&[row(), ready()].concat()).await.unwrap();
    expect(&mut line.client, &[row(), ready()].concat()).await;
    line.ask("select 1").await;
    let reply = [row(), row(), ready()].concat();
    line.server.write_all(&reply).await.unwrap();
    assert_eq!(until_end(&mut line.client).await, reply[..150]);
    assert_eq!(line.proxy.n_faults(), 1);
}

#[tokio::test]
async fn lose_rows_fault_waits_for_reply_with_rows() {
    let mut line = Line::new().await;
    line.proxy.arm("select 1", Fault::LoseRows);
    line.ask("select 1").await;
    line.server.write_all(&ready()).await.unwrap();
    expect(&mut line.client, &ready()).await;
    assert_eq!(line.proxy.n_faults(), 0);
    line.ask("select 1").await;
    line.server.write_all(&[row(), ready()].concat()).await.unwrap();
    assert_eq!(until_end(&mut line.client).await, b"");
    assert_eq!(line.proxy.n_faults(), 1);
}

#[tokio::test]
async fn lose_reply_fault_hits_named_request_of_two_in_flight() {
    let mut line = Line::new().await;
    line.proxy.arm("select 2", Fault::LoseReply);
    line.ask("select 1").await;
    line.ask("select 2").await;
    let (first, second) = ([row(), ready()].concat(), ready());
    line.server.write_all(&[first.clone(), second].concat()).await.unwrap();
    assert_eq!(until_end(&mut line.client).await, first);
}

#[tokio::test]
async fn stranded_statement_is_undelivered_and_connection_stays_open_until_cut() {
    let mut line = Line::new().await;
    line.proxy.arm("select 2", Fault::Strand);
    line.ask("select 1").await;
    line.client.write_all(&simple("select 2")).await.unwrap();
    eventually(async || line.proxy.n_faults(), |n| *n == 1).await;
    line.server.write_all(&ready()).await.unwrap();
    expect_silence(&mut line.server).await;
    expect_silence(&mut line.client).await;
    assert_eq!(line.proxy.met(), ["select 2"]);
    line.proxy.cut();
    assert_eq!(until_end(&mut line.client).await, b"");
}

#[tokio::test]
async fn faults_for_different_statements_stay_armed_independently() {
    let mut line = Line::new().await;
    line.proxy.arm("select 2", Fault::LoseReply);
    line.proxy.arm("select 1", Fault::LoseRows);
    line.ask("select 1").await;
    line.server.write_all(&ready()).await.unwrap();
    expect(&mut line.client, &ready()).await;
    line.ask("select 2").await;
    line.server.write_all(&ready()).await.unwrap();
    assert_eq!(until_end(&mut line.client).await, b"");
    assert_eq!(line.proxy.met(), ["select 2"]);
}

#[tokio::test]
async fn statement_is_recognized_by_its_prepared_name() {
    let mut line = Line::new().await;
    let prepared = [message(b'P', b"s1\0-- one: first\nselect 1\0\0\0"), message(b'S', b"")].concat();
    let executed =
        [message(b'B', b"\0s1\0\0\0\0\0\0\0"), message(b'E', b"\0\0\0\0\0"), message(b'S', b"")].concat();
    line.client.write_all(&[prepared.clone(), executed.clone()].concat()).await.unwrap();
    expect(&mut line.server, &[prepared, executed.clone()].concat()).await;
    assert_eq!(line.proxy.statements(), ["-- one: first"]);

    line.proxy.arm("-- one:", Fault::Hold);
    line.client.write_all(&executed).await.unwrap();
    assert_eq!(until_end(&mut line.client).await, b"");
    expect(&mut line.server, &executed[..message(b'B', b"\0s1\0\0\0\0\0\0\0").len()]).await;
    expect_silence(&mut line.server).await;
    line.proxy.release();
    expect(&mut line.server, &executed[executed.len() - 15..]).await;
}

#[tokio::test]
async fn client_requesting_encryption_is_refused_and_continues_in_plaintext() {
    let Line { proxy, listener, .. } = Line::new().await;
    let mut client = dial(&proxy).await;
    client.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await.unwrap();
    expect(&mut client, b"N").await;
    client.write_all(STARTUP).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    expect(&mut server, STARTUP).await;
}

#[tokio::test]
async fn refuse_mode_rejects_new_connections_and_keeps_existing_ones() {
    let mut line = Line::new().await;
    line.proxy.set(Mode::Refuse);
    assert_eq!(until_end(&mut dial(&line.proxy).await).await, b"");
    line.ask("select 1").await;
}

#[test]
fn connection_string_keeps_all_but_server_and_sslmode() {
    for (url, expected) in [
        ("postgres://u:p@h:1/d?host=/tmp/x&port=2&a=b", "postgres://u:p@127.0.0.1:9/d?sslmode=disable&a=b"),
        ("postgres://h/d?sslmode=require", "postgres://127.0.0.1:9/d?sslmode=disable"),
        ("postgres:///d?host=/tmp/x&user=u", "postgres://127.0.0.1:9/d?sslmode=disable&user=u"),
    ] {
        assert_eq!(wire::through(url, ([127, 0, 0, 1], 9).into()), expected);
    }
}

#[tokio::test]
async fn redirect_moves_new_connections_and_keeps_existing_ones() {
    let mut line = Line::new().await;
    let other = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    line.proxy.lead_to(&format!("postgres://u@{}/d", other.local_addr().unwrap())).unwrap();
    line.ask("still here").await;
    let mut client = dial(&line.proxy).await;
    client.write_all(STARTUP).await.unwrap();
    let (mut server, _) = tokio::time::timeout(PATIENCE, other.accept()).await.unwrap().unwrap();
    expect(&mut server, STARTUP).await;
}
