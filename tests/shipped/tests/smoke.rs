//! The shipped feature set: the first process of a program, a `kill -9`, and the second process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::process::Stdio;

use runledger::dev::{Options, Server};
use sqlx::{Connection, PgConnection};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

fn program(url: &str, arguments: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shipped"));
    command.args(arguments).env("DATABASE_URL", url).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

#[tokio::test]
async fn killed_program_resumes_after_last_recorded_step() {
    let server = Server::start(Options::test()).await.unwrap();
    let database = format!("shipped_{}", std::process::id());
    server.create_database(&database).await.unwrap();
    let url = server.url(&database);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("create table public.booking (n int8 not null)").execute(&mut connection).await.unwrap();

    let (mut killed, mut said) = program(&url, &["hold"]);
    for expected in ["first", "second"] {
        assert_eq!(said.next_line().await.unwrap().as_deref(), Some(expected));
    }
    killed.kill().await.unwrap();

    let (mut successor, mut said) = program(&url, &[]);
    for expected in ["second", "book", "result 3"] {
        assert_eq!(said.next_line().await.unwrap().as_deref(), Some(expected));
    }
    assert!(successor.wait().await.unwrap().success());
    let booked: Vec<i64> =
        sqlx::query_scalar("select n from public.booking").fetch_all(&mut connection).await.unwrap();
    assert_eq!(booked, [2]);
    let steps = "select array_agg(key order by ordinal) from runledger.step";
    let steps: Vec<String> = sqlx::query_scalar(steps).fetch_one(&mut connection).await.unwrap();
    assert_eq!(steps, ["first", "second", "book"]);

    // The third process finds the run completed and executes no body.
    let (mut third, mut said) = program(&url, &[]);
    assert_eq!(said.next_line().await.unwrap().as_deref(), Some("result 3"));
    assert!(third.wait().await.unwrap().success());
}
