//! The account that runs the server, and the folders it uses. PostgreSQL refuses to run as root,
//! and its account may not be able to enter root's home folder. A root program therefore runs the
//! server as another account, in a folder that this account can reach.

use std::env;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::error::DevError;

/// Accounts that may run the server for a root program, the preferred first.
const SERVER_ACCOUNTS: [&str; 2] = ["postgres", "nobody"];

/// How long another process may take between the creation of a folder and the setting of its
/// permissions.
const ALMOST_MADE: Duration = Duration::from_millis(500);

/// The account of this process, and the account that runs the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    uid: u32,
    /// The account to drop to. `None` if the process is not root and the server runs as itself.
    server: Option<Account>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Account {
    name: &'static str,
    uid: u32,
    gid: u32,
}

impl Identity {
    /// Reads the account of this process, and finds the account for a new server.
    pub(super) fn current() -> Result<Self, DevError> {
        Self::with_data_of(None)
    }

    /// Same as [`current`](Self::current), for the server of `data`. Existing data keeps its
    /// account, even if accounts were added since.
    pub(super) fn of_data(data: &Path) -> Result<Self, DevError> {
        Self::with_data_of(fs::metadata(data).ok().map(|data| data.uid()))
    }

    fn with_data_of(owner: Option<u32>) -> Result<Self, DevError> {
        let uid = rustix::process::geteuid().as_raw();
        if uid != 0 {
            return Ok(Self { uid, server: None });
        }
        let accounts = fs::read_to_string("/etc/passwd").map_err(DevError::io("read", "/etc/passwd"))?;
        let server = server_account(&accounts, owner).ok_or(DevError::NoServerAccount)?;
        Ok(Self { uid, server: Some(server) })
    }

    /// The account and group that run the server. `None` if they are this process's own.
    pub(super) fn account(&self) -> Option<(u32, u32)> {
        self.server.map(|account| (account.uid, account.gid))
    }

    /// The name of the account that runs the server. `None` if it is this process's own.
    pub(super) fn account_name(&self) -> Option<&'static str> {
        self.server.map(|account| account.name)
    }

    /// Returns the server's account if it cannot enter `dir`, such as a folder in root's home.
    pub(super) fn locked_out_of(&self, dir: &Path) -> Option<&'static str> {
        let account = self.account_name()?;
        let began = Instant::now();
        while self.is_locked_out_of(dir) {
            if began.elapsed() > ALMOST_MADE {
                return Some(account);
            }
            thread::sleep(Duration::from_millis(10));
        }
        None
    }

    fn is_locked_out_of(&self, dir: &Path) -> bool {
        let entered = self.command(Path::new("true")).current_dir(dir).status();
        // Root without the right to change its account gets a different error of the same kind.
        entered.is_err_and(|error| error.raw_os_error() == Some(Errno::ACCESS.raw_os_error()))
    }

    /// Whether this process runs as root, with the server as another account.
    pub(super) fn is_root(&self) -> bool {
        self.server.is_some()
    }

    /// Builds a command that runs a server program as the server's account, isolated from the
    /// terminal's Ctrl-C and from the caller's environment. Variables such as `PGDATA` and
    /// `PGOPTIONS` would change what the program does. libpq inside the server would look for
    /// certificates in a `HOME` that it cannot enter.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/").env("LC_ALL", "C");
        command.current_dir("/").process_group(0);
        if let Some(Account { uid, gid, .. }) = self.server {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Creates `dir` and its parents for this process to write in. The server's account may only
    /// pass through. Takes over an existing folder only if it has the file `mark`, or contains only
    /// hidden files.
    pub(super) fn make_base(&self, dir: &Path, mark: &str) -> Result<(), DevError> {
        let mode = self.mode_of_folders();
        make_folders(dir, mode).map_err(DevError::io("make folder", dir))?;
        check_owner(dir, &[self.uid])?;
        // In this order, because another program may create its mark at the same time.
        if has_files(dir)? && !dir.join(mark).is_file() {
            return Err(DevError::OtherFiles { path: dir.to_owned() });
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(mode))
            .map_err(DevError::io("set the permissions of", dir))
    }

    /// Refuses a base folder that the server's account cannot enter. `base` must be the path with
    /// all links resolved: a link can lead out of a folder that the account cannot enter.
    pub(super) fn check_reach(&self, base: &Path) -> Result<(), DevError> {
        match self.locked_out_of(base) {
            Some(account) => Err(DevError::OutOfReach { path: base.to_owned(), account }),
            None => Ok(()),
        }
    }

    /// Creates `dir` for downloaded programs. An existing folder keeps its permissions, because the
    /// user may have chosen it. It may be a link.
    pub(super) fn make_cache(&self, dir: &Path) -> io::Result<()> {
        make_folders(dir, self.mode_of_folders())?;
        if let Some(account) = self.locked_out_of(dir) {
            return Err(io::Error::other(format!(
                "the account `{account}`, which runs the server for root, cannot enter it"
            )));
        }
        // The server executes files from this folder. The owner of a link can point it elsewhere
        // later.
        let link_owner = fs::symlink_metadata(dir)?.uid();
        let is_ours = [self.uid, 0].contains(&link_owner);
        if is_ours && check_owner(&fs::canonicalize(dir)?, &[self.uid]).is_ok() {
            return Ok(());
        }
        Err(io::Error::other("it belongs to another user"))
    }

    /// The permissions of a new folder. The server's account may pass through.
    fn mode_of_folders(&self) -> u32 {
        if self.server.is_some() { 0o711 } else { 0o700 }
    }

    /// Whether this user or root owns `dir`, so that no other user can replace the programs.
    pub(super) fn trusts(&self, dir: &Path) -> bool {
        check_owner(dir, &[self.uid, 0]).is_ok()
    }

    /// Creates `dir` private to the server, or checks that it is. If this process's account still
    /// owns it, a program died before it could hand the folder over.
    pub(super) fn make_private(&self, dir: &Path) -> Result<(), DevError> {
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(DevError::io("make folder", dir)(error));
            }
            Ok(()) | Err(_) => {}
        }
        let owner = self.server.map_or(self.uid, |account| account.uid);
        check_owner(dir, &[self.uid, owner])?;
        self.give(dir)?;
        let mode = fs::symlink_metadata(dir).map_err(DevError::io("look at", dir))?.mode();
        if mode & 0o077 == 0 {
            return Ok(());
        }
        Err(DevError::NotOurs { path: dir.to_owned(), problem: "lets other users in" })
    }

    /// Gives `path` to the server's account. Does not follow a link, so that root does not hand
    /// over another file.
    pub(super) fn give(&self, path: &Path) -> Result<(), DevError> {
        let Some(Account { uid, gid, .. }) = self.server else { return Ok(()) };
        lchown(path, Some(uid), Some(gid)).map_err(DevError::io("give to the server's account", path))
    }

    /// The folder with all files of this program's project and one `kind` of server.
    pub(super) fn default_base(&self, kind: &str) -> Result<PathBuf, DevError> {
        let start = match env::var_os("CARGO_MANIFEST_DIR") {
            Some(dir) => PathBuf::from(dir),
            None => env::current_dir().map_err(DevError::io("find the current folder", "."))?,
        };
        self.base_of(&start, kind)
    }

    /// Same as [`default_base`](Self::default_base), for a program that cargo starts in `folder`.
    pub(super) fn base_of(&self, folder: &Path, kind: &str) -> Result<PathBuf, DevError> {
        let project = project_root(folder);
        let name = format!("{kind}-{:08x}", short_hash(project));
        if self.uid == 0 {
            return Ok(PathBuf::from(format!("/var/tmp/runledger-0-{name}")));
        }
        let from_env = |key: &str| env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        let parent = from_env("CARGO_TARGET_DIR")
            .or_else(|| from_env("XDG_STATE_HOME"))
            .or_else(|| from_env("HOME").map(|home| home.join(".local/state")))
            .ok_or(DevError::NoBaseDir)?;
        Ok(project.join(parent).join("runledger").join(name))
    }

    /// The folder of the socket. It is outside the base folder, because a socket's path has at most
    /// 107 bytes (103 on macOS) and a target folder can be longer.
    pub(super) fn socket_dir(&self, base: &Path) -> PathBuf {
        let seed = base.join(self.uid.to_string());
        PathBuf::from(format!("/tmp/rl-{:08x}", short_hash(&seed)))
    }
}

/// The outermost package around `start`: the folder with the lock file of a workspace. All
/// examples, tests and shells in that workspace thus use the same server.
fn project_root(start: &Path) -> &Path {
    let with = |file: &str| start.ancestors().find(|dir| dir.join(file).is_file());
    with("Cargo.lock").or_else(|| with("Cargo.toml")).unwrap_or(start)
}

/// FNV-1a folded to 32 bits. Folder names must not change between Rust releases, which
/// `DefaultHasher` does not promise.
fn short_hash(path: &Path) -> u32 {
    let hash = path.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    u32::try_from((hash >> 32) ^ (hash & 0xffff_ffff)).unwrap_or_default()
}

/// Returns the account with the uid `owner`, otherwise the preferred one.
fn server_account(passwd: &str, owner: Option<u32>) -> Option<Account> {
    let accounts = SERVER_ACCOUNTS.into_iter().filter_map(|name| {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2).map(id);
        Some(Account { name, uid: fields.next()??, gid: fields.next()?? })
    });
    let accounts: Vec<Account> = accounts.collect();
    accounts.iter().find(|account| owner == Some(account.uid)).or(accounts.first()).copied()
}

/// Creates `dir` and its missing parents. Each new folder gets `mode`, whatever the umask is.
fn make_folders(dir: &Path, mode: u32) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_folders(parent, mode)?;
    }
    match DirBuilder::new().mode(mode).create(dir) {
        // `a/..`, or another process created the folder at the same time.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(ErrorKind::NotADirectory.into()),
        Err(error) => Err(error),
        Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(mode)),
    }
}

/// macOS writes the ids of `nobody` as `-2`.
fn id(field: &str) -> Option<u32> {
    field.parse().ok().or_else(|| field.parse::<i32>().ok().map(i32::cast_unsigned))
}

/// Whether `dir` contains files, apart from hidden ones and the folder that `mkfs` creates.
fn has_files(dir: &Path) -> Result<bool, DevError> {
    let entries = fs::read_dir(dir).map_err(DevError::io("read folder", dir))?;
    let counts = |name: &[u8]| !name.starts_with(b".") && name != b"lost+found";
    Ok(entries.flatten().any(|entry| counts(entry.file_name().as_encoded_bytes())))
}

/// Also refuses a link, because it could lead anywhere.
fn check_owner(dir: &Path, owners: &[u32]) -> Result<(), DevError> {
    let metadata = fs::symlink_metadata(dir).map_err(DevError::io("look at", dir))?;
    let problem = if metadata.is_symlink() {
        "is a link"
    } else if !metadata.is_dir() {
        "is not a folder"
    } else if !owners.contains(&metadata.uid()) {
        "belongs to another user"
    } else {
        return Ok(());
    };
    Err(DevError::NotOurs { path: dir.to_owned(), problem })
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
