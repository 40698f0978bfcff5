//! A clock that scenarios can set, for processes with its environment variables.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use runledger_tests::tools;

/// A clock of libfaketime. Monotonic clocks stay correct.
#[derive(Clone, Debug)]
pub struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// Creates a clock with the correct time. The server's account must have access to the folder.
    ///
    /// # Errors
    /// [`tools::Missing`] without libfaketime, or the folder cannot be written.
    pub fn new(folder: &Path) -> Result<Self> {
        let library = tools::faketime()?;
        fs::create_dir_all(folder)?;
        let clock = Self { library, file: folder.join("clock") };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets the clock to `seconds` after the correct time. Negative numbers set it before.
    ///
    /// # Errors
    /// The clock's file cannot be written.
    pub fn set(&self, seconds: i64) -> Result<()> {
        // Written by a rename, because a reading process must never find half a file.
        let fresh = self.file.with_extension("fresh");
        fs::write(&fresh, format!("{seconds:+}\n"))?;
        Ok(fs::rename(fresh, &self.file)?)
    }

    /// Returns the environment variables of a process that follows this clock.
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
