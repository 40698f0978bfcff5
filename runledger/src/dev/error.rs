//! What can go wrong with the embedded server, told with its remedy.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A failure of the embedded server; each kind needs something else from the person who reads it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevError {
    /// No PostgreSQL server programs are on this machine, and the download failed or is forbidden.
    #[error(
        "no usable server programs of PostgreSQL 13 or later are installed{}{}, and {download}: the embedded server cannot start; install them \
         (`apt-get install -y postgresql`, `dnf install -y postgresql-server`, `brew install postgresql@17` or `apk add postgresql`), or set `DATABASE_URL` \
         (`RUNLEDGER_TEST_DATABASE_URL` for tests) to a server of your own",
        refused_versions(.too_old), refused_programs(.refused)
    )]
    NoPrograms {
        /// The majors that were found and passed over.
        too_old: Vec<u32>,
        /// The programs that were found and cannot be run, each with the reason.
        refused: Vec<String>,
        /// Why the download failed or is forbidden.
        download: String,
    },
    /// `RUNLEDGER_PG_BIN` is set and cannot be used; nothing else was tried, because the choice was explicit.
    #[error(
        "`RUNLEDGER_PG_BIN` is `{path}`, and {problem}: nothing else was tried; point it at the folder that holds \
         `initdb`, `pg_ctl` and `postgres`, or unset it", path = path.display()
    )]
    PgBin {
        /// The value of the variable.
        path: PathBuf,
        /// What is wrong with that folder.
        problem: String,
    },
    /// No programs of the major version that made the data folder are installed or available for download.
    #[error(
        "`{data}` was made by PostgreSQL {made_by}, and only {installed} is installed or can be downloaded{}: a server reads the data of its own major version only; \
         install PostgreSQL {made_by}{}, or choose another folder for an empty database",
        download.as_ref().map(|why| format!(" ({why})")).unwrap_or_default(),
        if download.is_some() { ", make its download possible (`RUNLEDGER_PG_DOWNLOAD=on` allows it)" } else { "" },
        data = data.display()
    )]
    OtherVersion {
        /// The data folder.
        data: PathBuf,
        /// The major version that made it.
        made_by: String,
        /// The majors at hand, highest last.
        installed: String,
        /// Why the download failed or is forbidden; `None` if it would not bring that version.
        download: Option<String>,
    },
    /// Running as root, and there is no account to run the server as.
    #[error(
        "neither `postgres` nor `nobody` is an account of this machine: PostgreSQL refuses to run as root; add an \
         account named `postgres`, or run this program as another user than root"
    )]
    NoServerAccount,
    /// There is no folder to keep the data in.
    #[error(
        "none of `CARGO_TARGET_DIR`, `XDG_STATE_HOME` and `HOME` is set: there is nowhere to keep the data of the \
         embedded server; set one of them, or `Options::base_dir`"
    )]
    NoBaseDir,
    /// A folder that must be private belongs to another user or lets other users in, or is no folder at all.
    #[error(
        "`{path}` {problem}: the embedded server starts only where a private folder can be; remove what is there, \
         or choose another `Options::base_dir`", path = path.display()
    )]
    NotOurs {
        /// The folder, or whatever stands in its place.
        path: PathBuf,
        /// Why it is no private folder, such as `is a link`.
        problem: &'static str,
    },
    /// A folder for an embedded server contains files, and no embedded server made them.
    #[error(
        "`{path}` contains files that no embedded server of Runledger made: the server was not started and the folder was not changed; give the server a \
         folder of its own", path = path.display()
    )]
    OtherFiles {
        /// The folder.
        path: PathBuf,
    },
    /// The account that runs the server for root cannot enter a folder.
    #[error(
        "the account `{account}`, which runs the server for root, cannot enter `{path}`: the embedded server does not \
         start; choose a folder that every account can reach, such as one in `/var/tmp`, or let \
         every account pass through each folder of the path (`chmod o+x`)", path = path.display()
    )]
    OutOfReach {
        /// The folder.
        path: PathBuf,
        /// The account.
        account: &'static str,
    },
    /// A path contains a character that has a meaning in a shell.
    #[error(
        "`{}` contains a double quote, `$`, a backtick, a backslash or a line break, and `pg_ctl` passes it to a shell: the embedded server does not \
         start; choose another folder", path.to_string_lossy().escape_debug()
    )]
    ShellCharacter {
        /// The folder of the server, or the path of its programs.
        path: PathBuf,
    },
    /// A lock file of PostgreSQL names another running server.
    #[error(
        "`{file}` names process {pid}, a running server of `{data}`: the embedded server cannot start beside it; \
         stop that process, or delete the file if this folder is a copy",
        file = file.display(), data = data.display()
    )]
    LockFile {
        /// The lock file.
        file: PathBuf,
        /// The process in the lock file.
        pid: i32,
        /// The data folder in the lock file.
        data: PathBuf,
    },
    /// The data is in use: by a process of a killed server, or by a server that this process cannot reach, such as one
    /// in another container.
    #[error(
        "the data in `{base}` is in use by a process of an earlier server, or by a server in another container; no second server was started, because it \
         would destroy the data; end that process or stop that server, or choose another folder",
        base = base.display()
    )]
    Served {
        /// The base folder of the cluster.
        base: PathBuf,
    },
    /// `initdb`, `pg_ctl` or another program ended with a failure.
    #[error("`{program}` failed: the embedded server in `{base}` is not running; {said}", base = base.display())]
    Program {
        /// The program that failed.
        program: &'static str,
        /// The base folder of the cluster.
        base: PathBuf,
        /// Its own words and the end of the server's log.
        said: String,
    },
    /// Something did not happen in time.
    #[error(
        "waited {} s for {what}: the embedded server in `{base}` is stuck; look into `server.log` there, or start \
         over by deleting the folder", after.as_secs(), base = base.display()
    )]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// The base folder of the cluster.
        base: PathBuf,
        /// How long.
        after: Duration,
    },
    /// The file system or a process could not be used.
    #[error("cannot {action} `{path}`: the embedded server is not usable; mend the cause below and try again", path = path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The server runs, and a statement of ours failed.
    #[error(
        "cannot prepare database `{database}`: the embedded server runs, and refused; see the cause below"
    )]
    Database {
        /// The database that was to be made.
        database: String,
        /// Why not.
        #[source]
        source: sqlx::Error,
    },
}

impl DevError {
    /// A closure for `map_err` that says what was attempted on which path.
    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

fn refused_programs(refused: &[String]) -> String {
    if refused.is_empty() {
        return String::new();
    }
    format!(" ({})", refused.join("; "))
}

fn refused_versions(too_old: &[u32]) -> String {
    if too_old.is_empty() {
        return String::new();
    }
    let majors: Vec<String> = too_old.iter().map(u32::to_string).collect();
    format!(" (found only {})", majors.join(", "))
}
