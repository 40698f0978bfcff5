//! A clock that can be set, for the processes whose environment names it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use runledger_tests::tools;

/// A clock of libfaketime. What counts monotonically goes on as it did.
#[derive(Clone, Debug)]
pub struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// One that is right for now. The server's account must be able to enter the folder.
    ///
    /// # Errors
    /// [`tools::Missing`] without libfaketime; where the folder cannot be written to.
    pub fn new(folder: &Path) -> Result<Self> {
        let library = tools::faketime()?;
        fs::create_dir_all(folder)?;
        let clock = Self { library, file: folder.join("clock") };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets it to so many seconds after the right time, or before.
    ///
    /// # Errors
    /// When its file cannot be written.
    pub fn set(&self, seconds: i64) -> Result<()> {
        // By a rename: a process that reads meanwhile must not find half of it.
        let fresh = self.file.with_extension("fresh");
        fs::write(&fresh, format!("{seconds:+}\n"))?;
        Ok(fs::rename(fresh, &self.file)?)
    }

    /// What a process has in its environment that follows this clock.
    #[must_use]
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let pairs = [
            ("LD_PRELOAD", self.library.as_os_str()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.as_os_str()),
            ("FAKETIME_NO_CACHE", "1".as_ref()),
            // The name before and since 0.9.9.
            ("DONT_FAKE_MONOTONIC", "1".as_ref()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".as_ref()),
        ];
        pairs.map(|(name, value)| (name.into(), value.into())).to_vec()
    }
}
