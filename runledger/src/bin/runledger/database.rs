//! Chooses the database of a command.

use std::env::VarError;
use std::error::Error;

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::args::Cli;

/// A database. An embedded server runs at least as long as this value.
pub(crate) struct Database {
    pub(crate) url: String,
    #[cfg(all(feature = "dev", unix))]
    _server: Option<runledger::dev::Server>,
}

impl Database {
    fn at(url: String) -> Self {
        Self {
            url,
            #[cfg(all(feature = "dev", unix))]
            _server: None,
        }
    }
}

/// Returns the database of the command line or `DATABASE_URL`, or else the embedded one of this
/// folder's project. Exits the program if there is none.
pub(crate) async fn find(named: Option<String>) -> Result<Database, Box<dyn Error>> {
    let named = match (named, std::env::var("DATABASE_URL")) {
        (Some(url), _) => Some(url),
        (None, Ok(url)) => Some(url).filter(|url| !url.is_empty()),
        (None, Err(VarError::NotPresent)) => None,
        (None, Err(VarError::NotUnicode(_))) => return Err("`DATABASE_URL` is not valid UTF-8".into()),
    };
    if let Some(url) = named {
        return Ok(Database::at(url));
    }
    #[cfg(all(feature = "dev", unix))]
    if let Some((url, server)) = Box::pin(super::embedded::of_this_folder()).await? {
        return Ok(Database { url, _server: Some(server) });
    }
    let missing = if cfg!(all(feature = "dev", unix)) {
        "no database is named, and this folder's project has no embedded one: set `DATABASE_URL`, give `--database-url`, or run the command in the project's folder with the program's `CARGO_TARGET_DIR` and `XDG_STATE_HOME`, which decide where the database is"
    } else {
        "no database is named: set `DATABASE_URL`, or give `--database-url`"
    };
    Cli::command().error(ErrorKind::MissingRequiredArgument, missing).exit()
}
