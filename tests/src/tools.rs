//! Programs and libraries that some tests need and a machine may lack. They are installed, or
//! `.ci/fault-tools` has fetched them.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The folder into which `.ci/fault-tools` fetches, if not below `/var/tmp`. The server's account
/// must be able to enter it.
const FOLDER: &str = "RUNLEDGER_FAULT_TOOLS";

/// How to get all of them.
const REMEDY: &str = "install its package, or let `.ci/fault-tools` fetch it";

/// A program or library that this machine lacks, and how to get it.
#[derive(Debug, thiserror::Error)]
#[error("there is no {what} here; {remedy}")]
pub struct Missing {
    /// What is missing.
    pub what: String,
    /// What to do.
    pub remedy: &'static str,
}

/// Returns the folder of the fetched tools.
#[must_use]
pub fn folder() -> PathBuf {
    let own =
        || PathBuf::from(format!("/var/tmp/runledger-fault-tools-{}", rustix::process::geteuid().as_raw()));
    env::var_os(FOLDER).map_or_else(own, PathBuf::from)
}

/// Returns the path of PgBouncer, and of its libraries if they are not the system's.
///
/// # Errors
/// If PgBouncer is neither installed nor fetched.
pub fn pgbouncer() -> Result<(PathBuf, Option<PathBuf>), Missing> {
    let path = env::var_os("PATH").unwrap_or_default();
    let installed = env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    if let Some(program) = installed.map(|dir| dir.join("pgbouncer")).find(|program| program.is_file()) {
        return Ok((program, None));
    }
    let debian = folder().join("debian");
    let libraries = subfolders(&debian.join("usr/lib")).find(|dir| has_library(dir));
    fetched(debian.join("usr/sbin/pgbouncer"), "PgBouncer").map(|program| (program, libraries))
}

/// Returns the libfaketime library for multi-threaded programs.
///
/// # Errors
/// If the library is neither installed nor fetched.
pub fn faketime() -> Result<PathBuf, Missing> {
    let roots = [PathBuf::from("/usr/lib"), folder().join("debian/usr/lib")];
    let found =
        roots.iter().flat_map(|root| subfolders(root)).map(|dir| dir.join("faketime/libfaketimeMT.so.1"));
    found.into_iter().find(|library| library.is_file()).ok_or_else(|| missing("libfaketime"))
}

/// Returns the library that makes a disk slow.
///
/// # Errors
/// If the library was not built.
pub fn slow_fsync() -> Result<PathBuf, Missing> {
    fetched(folder().join("slow_fsync.so"), "library that delays fsync")
}

/// Returns the fetched PostgreSQL programs of other major versions, oldest first.
#[must_use]
pub fn other_postgres() -> Vec<(u32, PathBuf)> {
    let named = |dir: PathBuf| {
        let major = dir.file_name()?.to_str()?.strip_prefix("postgres-")?.parse().ok()?;
        Some((major, dir.join("bin")))
    };
    let mut found: Vec<_> = subfolders(&folder()).filter_map(named).collect();
    found.sort();
    found
}

/// The error for a tool that the script would have fetched.
#[must_use]
pub fn missing(what: &str) -> Missing {
    Missing { what: what.to_owned(), remedy: REMEDY }
}

fn fetched(path: PathBuf, what: &str) -> Result<PathBuf, Missing> {
    if path.is_file() { Ok(path) } else { Err(missing(what)) }
}

fn has_library(dir: &Path) -> bool {
    dir.join("libcares.so.2").exists()
}

fn subfolders(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| path.is_dir())
}
