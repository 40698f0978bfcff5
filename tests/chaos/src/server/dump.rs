//! A database as a file, and a file as a database.

use std::path::Path;

use anyhow::Result;
use tokio::process::Command;

use super::cluster::{Cluster, ROLE, run};

impl Cluster {
    /// Writes a database to a file, while it is used.
    ///
    /// # Errors
    /// When `pg_dump` fails.
    pub async fn dump(&self, database: &str, file: &Path) -> Result<()> {
        let mut dump = self.client("pg_dump", database)?;
        run(dump.arg("-f").arg(file), "pg_dump").await
    }

    /// Reads such a file into an empty database.
    ///
    /// # Errors
    /// When a statement fails.
    pub async fn restore(&self, database: &str, file: &Path) -> Result<()> {
        let mut psql = self.client("psql", database)?;
        run(psql.args(["-q", "-v", "ON_ERROR_STOP=1", "-f"]).arg(file), "psql").await
    }

    /// A program that works on a database, as the one who runs the scenario: it may read and write that one's files.
    fn client(&self, program: &str, database: &str) -> Result<Command> {
        let mut command = Command::new(self.settings().programs.path(program)?);
        command.arg("-h").arg(self.socket()).args(["-p", "5432", "-U", ROLE, "-d", database]);
        Ok(command)
    }
}
