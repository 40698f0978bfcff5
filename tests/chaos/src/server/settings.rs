//! The settings of a server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use runledger_tests::tools;

/// The folder with the programs of one PostgreSQL version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    pub(super) bin: PathBuf,
    pub(super) account: Option<(u32, u32)>,
}

impl Programs {
    /// Finds the programs of this machine.
    ///
    /// # Errors
    /// [`tools::Missing`] if there are none.
    pub fn installed() -> Result<Self> {
        let (bin, account) = runledger::dev::on_this_machine()?;
        Ok(Self { bin, account })
    }

    /// Takes the programs of a folder.
    ///
    /// # Errors
    /// Those of [`installed`](Self::installed), which also finds the account.
    pub fn of(bin: &Path) -> Result<Self> {
        Ok(Self { bin: bin.to_owned(), ..Self::installed()? })
    }

    /// Returns the path of a program. Packages for embedding may lack it.
    pub(super) fn path(&self, program: &str) -> Result<PathBuf, tools::Missing> {
        let path = self.bin.join(program);
        let remedy = "install the whole of PostgreSQL, as `apt-get install -y postgresql` does";
        let what = || format!("`{program}` in {}", self.bin.display());
        path.is_file().then_some(path).ok_or_else(|| tools::Missing { what: what(), remedy })
    }
}

/// Which part of the server is on the small volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// Everything except the write-ahead log.
    Data,
    /// The write-ahead log.
    Wal,
}

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(super) programs: Programs,
    pub(super) lines: Vec<(String, String)>,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) small: Option<(Disk, u64)>,
}

impl Settings {
    /// Uses the programs of this machine.
    ///
    /// # Errors
    /// [`tools::Missing`] if there are none.
    pub fn new() -> Result<Self> {
        Ok(Self::with(Programs::installed()?))
    }

    /// Uses these programs.
    #[must_use]
    pub fn with(programs: Programs) -> Self {
        Self { programs, lines: Vec::new(), environment: Vec::new(), small: None }
    }

    /// Adds a server setting.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.lines.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds environment variables.
    #[must_use]
    pub fn environment(mut self, variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        self.environment.extend(variables);
        self
    }

    /// Places a part of the server on a volume of this many megabytes.
    #[must_use]
    pub fn small(mut self, disk: Disk, megabytes: u64) -> Self {
        self.small = Some((disk, megabytes));
        self
    }
}
