//! What a server is made with.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use runledger_tests::tools;

/// The folder with the programs of one version of PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    pub(super) bin: PathBuf,
    pub(super) account: Option<(u32, u32)>,
}

impl Programs {
    /// Those of this machine.
    ///
    /// # Errors
    /// [`tools::Missing`] where there are none.
    pub fn installed() -> Result<Self> {
        let (bin, account) = runledger::dev::on_this_machine()?;
        Ok(Self { bin, account })
    }

    /// Those of a folder.
    ///
    /// # Errors
    /// As [`installed`](Self::installed): the account comes from there.
    pub fn of(bin: &Path) -> Result<Self> {
        Ok(Self { bin: bin.to_owned(), ..Self::installed()? })
    }

    /// A program, which packages for embedding may leave out.
    pub(super) fn path(&self, program: &str) -> Result<PathBuf, tools::Missing> {
        let path = self.bin.join(program);
        let remedy = "install the whole of PostgreSQL, as `apt-get install -y postgresql` does";
        let what = || format!("`{program}` in {}", self.bin.display());
        path.is_file().then_some(path).ok_or_else(|| tools::Missing { what: what(), remedy })
    }
}

/// What lies on the small volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// The tables and all the rest, but the write-ahead log.
    Data,
    /// The write-ahead log.
    Wal,
}

/// How a server is made.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(super) programs: Programs,
    pub(super) lines: Vec<(String, String)>,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) small: Option<(Disk, u64)>,
}

impl Settings {
    /// With the programs of this machine.
    ///
    /// # Errors
    /// [`tools::Missing`] where there are none.
    pub fn new() -> Result<Self> {
        Ok(Self::with(Programs::installed()?))
    }

    /// With these programs.
    #[must_use]
    pub fn with(programs: Programs) -> Self {
        Self { programs, lines: Vec::new(), environment: Vec::new(), small: None }
    }

    /// With a setting of the server.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.lines.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With variables of its environment.
    #[must_use]
    pub fn environment(mut self, variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        self.environment.extend(variables);
        self
    }

    /// With a part of it on a volume of so many megabytes.
    #[must_use]
    pub fn small(mut self, disk: Disk, megabytes: u64) -> Self {
        self.small = Some((disk, megabytes));
        self
    }
}
