//! A client of the embedded server in a process of its own, for tests that kill it.
//!
//! `dev_client hold <base> <grace ms>` starts or joins, says `ready <url>`, and stays until its input ends;
//! `dev_client url` says what `database_url` answers; `dev_client downloaded` says `ready <folder of the downloaded programs>`; each says `error <text>` when it fails.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use runledger::dev::{DevError, Options, Server, database_url, downloaded};

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let answer = match words.as_slice() {
        ["hold", base, grace] => hold(base, grace.parse().unwrap_or(10_000)).await,
        ["url"] => database_url().await,
        ["downloaded"] => {
            return match downloaded() {
                Ok(bin) => say(&format!("ready {}", bin.display())),
                Err(error) => say(&format!("error {error}")),
            };
        }
        _ => return say("error unknown arguments"),
    };
    let (url, _server) = match answer {
        Ok(answer) => answer,
        Err(error) => return say(&format!("error {error}")),
    };
    say(&format!("ready {url}"))?;
    std::io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

async fn hold(base: &str, grace_ms: u64) -> Result<(String, Option<Server>), DevError> {
    let mut options = Options::test();
    options.base_dir = Some(PathBuf::from(base));
    options.grace = Duration::from_millis(grace_ms);
    let server = Server::start(options).await?;
    // Connects as a user's program does, with this process's environment.
    server.create_database("held").await?;
    Ok((server.url("postgres"), Some(server)))
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    out.flush()
}
