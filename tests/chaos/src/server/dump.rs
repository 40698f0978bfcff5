//! Dumps a database to a file, and restores it.

use std::path::Path;

use anyhow::Result;
use tokio::process::Command;

use super::cluster::{Cluster, ROLE, run};

impl Cluster {
    /// Dumps a database in use to a file.
    ///
    /// # Errors
    /// `pg_dump` failed.
    pub async fn dump(&self, database: &str, file: &Path) -> Result<()> {
        let mut dump = self.client("pg_dump", database)?;
        run(dump.arg("-f").arg(file), "pg_dump").await
    }

    /// Restores a dump into an empty database.
    ///
    /// # Errors
    /// A statement failed.
    pub async fn restore(&self, database: &str, file: &Path) -> Result<()> {
        let mut psql = self.client("psql", database)?;
        run(psql.args(["-q", "-v", "ON_ERROR_STOP=1", "-f"]).arg(file), "psql").await
    }

    /// A client program that runs under this process's own account, whose files it reads and
    /// writes.
    fn client(&self, program: &str, database: &str) -> Result<Command> {
        let mut command = Command::new(self.settings().programs.path(program)?);
        command.arg("-h").arg(self.socket()).args(["-p", "5432", "-U", ROLE, "-d", database]);
        Ok(command)
    }
}
