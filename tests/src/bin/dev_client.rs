//! A client of the embedded server in its own process, so that tests can kill it.
//!
//! - `dev_client hold <base> <grace ms>` starts or joins the server, prints `ready <url>`, and runs
//!   until its input ends.
//! - `dev_client embedded <folder>` uses `Db::embedded_in`, and `dev_client from_env` uses
//!   `Db::from_env`. Each prints `ready <database>`, and runs until its input ends.
//! - `dev_client downloaded` prints `ready <folder of the downloaded programs>`.
//!
//! On failure, each prints `error <text>`.

use std::error::Error;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use runledger::dev::{DevError, Options, Server, downloaded};
use runledger::{ClientError, Db};

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let answer = match words.as_slice() {
        ["hold", base, grace] => hold(base, grace.parse().unwrap_or(10_000)).await,
        ["embedded", folder] => return stay(Db::embedded_in(folder).await),
        ["downloaded"] => {
            return match downloaded() {
                Ok(bin) => say(&format!("ready {}", bin.display())),
                Err(error) => say(&format!("error {error}")),
            };
        }
        ["from_env"] => return stay(Db::from_env().await),
        _ => return say("error unknown arguments"),
    };
    match answer {
        Ok((url, _server)) => wait(&format!("ready {url}")),
        Err(error) => say(&format!("error {}", with_causes(&error))),
    }
}

fn with_causes(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", with_causes(cause)),
        None => error.to_string(),
    }
}

fn stay(opened: Result<Db, ClientError>) -> std::io::Result<()> {
    match opened {
        Ok(db) => {
            let options = db.pool().connect_options();
            let socket = options.get_socket().map(|folder| folder.display().to_string());
            let database = options.get_database().unwrap_or_default();
            wait(&format!("ready {} {database}", socket.as_deref().unwrap_or_else(|| options.get_host())))
        }
        Err(error) => say(&format!("error {error}")),
    }
}

/// Prints `line`, then waits until the input ends.
fn wait(line: &str) -> std::io::Result<()> {
    say(line)?;
    std::io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

async fn hold(base: &str, grace_ms: u64) -> Result<(String, Server), DevError> {
    let mut options = Options::test();
    options.base_dir = Some(PathBuf::from(base));
    options.grace = Duration::from_millis(grace_ms);
    let server = Server::start(options).await?;
    // Connects as a user's program does, with this process's environment.
    server.create_database("held").await?;
    Ok((server.url("postgres"), server))
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    out.flush()
}
