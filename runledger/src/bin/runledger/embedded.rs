//! Starts the embedded databases of projects, so that people can inspect them after the programs
//! have ended.

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

use runledger::dev::{self, Options, Server};
use serde_json::json;

use super::Said;

/// Starts the embedded database of this folder's project, if a program has used it before.
pub(crate) async fn of_this_folder() -> Result<Option<(String, Server)>, Box<dyn Error>> {
    let options = Options::dev();
    if !dev::has_data(&options)? {
        return Ok(None);
    }
    let (url, server) = Box::pin(dev::start_with_database(options)).await?;
    note(&server);
    Ok(Some((url, server)))
}

/// Starts the embedded database of `folder`, prints its URL, and keeps it running until Ctrl-C.
pub(crate) async fn keep_running(folder: &Path, json: bool) -> Said {
    let (url, server) = Box::pin(dev::start_with_database(Options::dev_of(folder)?)).await?;
    note(&server);
    let said = if json { json!({ "url": url }).to_string() } else { url };
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{said}").and_then(|()| stdout.flush())?;
    drop(stdout);
    tokio::signal::ctrl_c().await?;
    Ok(String::new())
}

/// Prints the location of the database to standard error, because standard output carries only
/// results.
fn note(server: &Server) {
    let _ = writeln!(io::stderr(), "{}", server.notice());
}
