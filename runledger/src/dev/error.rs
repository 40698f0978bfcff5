//! The errors of the embedded server. Each text contains a remedy.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// An error of the embedded server. Each variant has a different remedy.
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
        /// The major versions that were found and are too old.
        too_old: Vec<u32>,
        /// The installed programs that cannot be executed, each with the reason.
        refused: Vec<String>,
        /// Why the download failed or is forbidden.
        download: String,
    },
    /// `RUNLEDGER_PG_BIN` is set and its folder cannot be used. No other folder was searched,
    /// because the choice was explicit.
    #[error(
        "`RUNLEDGER_PG_BIN` is `{path}`, and {problem}: nothing else was tried; point it at the folder that holds \
         `initdb`, `pg_ctl` and `postgres`, or unset it", path = path.display()
    )]
    PgBin {
        /// The value of the variable.
        path: PathBuf,
        /// The problem with that folder.
        problem: String,
    },
    /// No programs of the major version that made the data folder are installed or available for
    /// download.
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
        /// The available major versions, in ascending order.
        installed: String,
        /// Why the download failed or is forbidden; `None` if it would not bring that version.
        download: Option<String>,
    },
    /// The process runs as root, and no account exists to run the server.
    #[error(
        "neither `postgres` nor `nobody` is an account of this machine: PostgreSQL refuses to run as root; add an \
         account named `postgres`, or run this program as another user than root"
    )]
    NoServerAccount,
    /// No folder for the data was found.
    #[error(
        "none of `CARGO_TARGET_DIR`, `XDG_STATE_HOME` and `HOME` is set: there is nowhere to keep the data of the \
         embedded server; set one of them, or `Options::base_dir`"
    )]
    NoBaseDir,
    /// A folder that must be private belongs to another user, lets other users in, or is not a
    /// folder.
    #[error(
        "`{path}` {problem}: the embedded server starts only where a private folder can be; remove what is there, \
         or choose another `Options::base_dir`", path = path.display()
    )]
    NotOurs {
        /// The path.
        path: PathBuf,
        /// Why it is not a private folder, such as `is a link`.
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
    /// The data is in use by a process of a killed server, or by a server that this process cannot
    /// reach, such as one in another container.
    #[error(
        "the data in `{base}` is in use by a process of an earlier server, or by a server in another container; no second server was started, because it \
         would destroy the data; end that process or stop that server, or choose another folder",
        base = base.display()
    )]
    Served {
        /// The base folder of the cluster.
        base: PathBuf,
    },
    /// `initdb`, `pg_ctl` or another program failed.
    #[error("`{program}` failed: the embedded server in `{base}` is not running; {said}", base = base.display())]
    Program {
        /// The program that failed.
        program: &'static str,
        /// The base folder of the cluster.
        base: PathBuf,
        /// The program's standard error, and the end of the server's log.
        said: String,
    },
    /// A wait exceeded its limit.
    #[error(
        "waited {} s for {what}: the embedded server in `{base}` is stuck; look into `server.log` there, or start \
         over by deleting the folder", after.as_secs(), base = base.display()
    )]
    Timeout {
        /// The awaited event.
        what: &'static str,
        /// The base folder of the cluster.
        base: PathBuf,
        /// The limit.
        after: Duration,
    },
    /// A file operation or a process failed.
    #[error("cannot {action} `{path}`: the embedded server is not usable; mend the cause below and try again", path = path.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The server runs, but a statement failed.
    #[error(
        "cannot prepare database `{database}`: the embedded server runs, and refused; see the cause below"
    )]
    Database {
        /// The database.
        database: String,
        /// The cause.
        #[source]
        source: sqlx::Error,
    },
}

impl DevError {
    /// A closure for `map_err` that names the attempted action and its path.
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
