//! Caches the downloaded programs per user. Unpacks an archive once, checks its files at each use,
//! and downloads it again if files are missing.
//!
//! ```text
//! <cache>/lock                  held while a program downloads or repairs; `tar` holds it too
//! <cache>/archive.part          a download under way
//! <cache>/unpacked.tmp          an archive that is being unpacked
//! <cache>/postgresql-<digest>   complete files and their `manifest`, by a rename
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::archive::{Archive, NotDownloaded, unusable};
use super::download::{download, megabytes, tell};
use super::identity::Identity;

/// How often a process checks whether another process has finished its download.
const POLL: Duration = Duration::from_millis(100);

/// The largest archive takes seven minutes at 1 Mbit/s.
const PATIENCE: Duration = Duration::from_secs(900);

/// Lists the files of its folder with their sizes. Written last.
const MANIFEST: &str = "manifest";

/// Lists the symbolic links, because the npm format cannot contain links.
const LINKS: &str = "pg-symlinks.json";

/// How deep below an archive's root the programs may be: a package's folder, then
/// `lib/postgresql/17/bin`.
const DEPTH: usize = 6;

/// An entry of [`LINKS`]: create the link `target` to `source`, in the same folder.
#[derive(serde::Deserialize)]
struct Link {
    source: PathBuf,
    target: PathBuf,
}

/// Returns the folder with the programs of `archive`. Downloads the archive unless the cache has
/// its files, or the download is forbidden.
pub(super) fn programs(archive: &Archive, identity: &Identity) -> Result<PathBuf, NotDownloaded> {
    if let Some(bin) = complete(&archive.folder(), identity) {
        return Ok(bin);
    }
    archive.check_allowed()?;
    let cache = &archive.cache;
    identity.make_cache(cache).map_err(unusable(cache))?;
    let locked = lock(cache)?;
    // Another process may have downloaded it while this one waited for the lock.
    if let Some(bin) = complete(&archive.folder(), identity) {
        return Ok(bin);
    }
    let made = fetch(archive, identity, &locked);
    // Remove both after success and after failure.
    let _ = fs::remove_file(cache.join("archive.part"));
    let _ = fs::remove_dir_all(cache.join("unpacked.tmp"));
    made
}

fn fetch(archive: &Archive, identity: &Identity, locked: &File) -> Result<PathBuf, NotDownloaded> {
    let (folder, url) = (archive.folder(), &archive.url);
    let size = archive.bytes.map(|bytes| format!(" ({})", megabytes(bytes))).unwrap_or_default();
    tell(&format!(
        "no installed PostgreSQL can serve this database: downloading {}{size} from {url} to {} (`RUNLEDGER_PG_DOWNLOAD=off` forbids it)",
        archive.title,
        archive.cache.display()
    ));
    let file = archive.cache.join("archive.part");
    download(archive, &file)?;
    tell("  the SHA-512 is right; unpacking");
    let made = archive.cache.join("unpacked.tmp");
    let refused =
        |said: String| NotDownloaded::Unpack { url: url.clone(), folder: archive.cache.clone(), said };
    unpack(&file, &made, locked).map_err(|error| match error {
        Unpacking::Io(error) => unusable(&archive.cache)(error),
        Unpacking::Said(said) => refused(said),
    })?;
    let bin = find_bin(&made, DEPTH).ok_or_else(|| refused("there is no `bin/initdb` in it".to_owned()))?;
    link(&made).map_err(&refused)?;
    finish(&made, &bin, identity).map_err(unusable(&archive.cache))?;
    // Run it as the server's account, which may lack access to folders that root can enter.
    runs(&bin.join("initdb"), identity)
        .map_err(|said| NotDownloaded::DoesNotRun { url: url.clone(), said })?;
    remove(&folder).and_then(|()| fs::rename(&made, &folder)).map_err(unusable(&archive.cache))?;
    complete(&folder, identity)
        .ok_or_else(|| refused("its files changed while they were unpacked".to_owned()))
}

/// Returns the folder with the programs if every file of the manifest exists with its size.
fn complete(folder: &Path, identity: &Identity) -> Option<PathBuf> {
    if !identity.trusts(folder) {
        return None;
    }
    let manifest = fs::read_to_string(folder.join(MANIFEST)).ok()?;
    let mut lines = manifest.lines();
    let bin = lines.next()?.strip_prefix("bin ")?;
    let mut ends = false;
    for line in lines {
        if line == "end" {
            ends = true;
            continue;
        }
        let (size, path) = line.split_once(' ')?;
        let metadata = fs::symlink_metadata(folder.join(path)).ok()?;
        if metadata.len().to_string() != size {
            return None;
        }
    }
    ends.then(|| folder.join(bin))
}

fn lock(cache: &Path) -> Result<File, NotDownloaded> {
    let path = cache.join("lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    let file = file.map_err(unusable(cache))?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(unusable(cache)(error)),
            Err(TryLockError::WouldBlock) if start.elapsed() > PATIENCE => {
                let problem = format!("another program has held `lock` there for {} s", PATIENCE.as_secs());
                return Err(NotDownloaded::Cache { folder: cache.to_owned(), problem });
            }
            Err(TryLockError::WouldBlock) => thread::sleep(POLL),
        }
    }
}

enum Unpacking {
    Io(std::io::Error),
    Said(String),
}

/// `tar` inherits the lock: if this process is killed, no other process touches the folder until
/// `tar` has ended.
fn unpack(file: &Path, into: &Path, locked: &File) -> Result<(), Unpacking> {
    remove(into).and_then(|()| fs::create_dir(into)).map_err(Unpacking::Io)?;
    let lock = locked.try_clone().map_err(Unpacking::Io)?;
    let mut tar = Command::new("tar");
    // `o`: this user owns the files, also when root unpacks them.
    tar.arg("-xzof").arg(file).arg("-C").arg(into).stdin(lock).stdout(Stdio::null());
    let output = match tar.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Unpacking::Said("`tar` is not installed".to_owned()));
        }
        other => other.map_err(Unpacking::Io)?,
    };
    if output.status.success() {
        return Ok(());
    }
    Err(Unpacking::Said(first_line(&output.stderr).unwrap_or_else(|| "`tar` failed".to_owned())))
}

fn find_bin(folder: &Path, depth: usize) -> Option<PathBuf> {
    let bin = folder.join("bin");
    if bin.join("initdb").is_file() {
        return Some(bin);
    }
    let mut inside: Vec<PathBuf> = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    inside.retain(|path| path.is_dir() && !path.is_symlink());
    inside.sort();
    inside.iter().filter(|_| depth > 0).find_map(|path| find_bin(path, depth - 1))
}

/// Creates the links of an npm package. The listed paths start at the package's root, which
/// contains `native`.
fn link(made: &Path) -> Result<(), String> {
    let package = made.join("package");
    let Ok(listed) = fs::read(package.join("native").join(LINKS)) else { return Ok(()) };
    let links: Vec<Link> = serde_json::from_slice(&listed).map_err(|error| format!("`{LINKS}`: {error}"))?;
    for Link { source, target } in links {
        let is_inside =
            |path: &Path| path.components().all(|component| matches!(component, Component::Normal(_)));
        let name = source.file_name().filter(|_| source.parent() == target.parent() && is_inside(&target));
        let name = name.ok_or_else(|| format!("`{LINKS}` leads from `{}` elsewhere", target.display()))?;
        match symlink(name, package.join(&target)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(format!("`{}`: {error}", target.display()));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Makes every file readable for the server's account, and writes the manifest.
fn finish(made: &Path, bin: &Path, identity: &Identity) -> std::io::Result<()> {
    let mut manifest = format!("bin {}\n", bin.strip_prefix(made).unwrap_or(bin).display());
    list(made, made, identity.account().is_some(), &mut manifest)?;
    manifest.push_str("end\n");
    let mut file = File::create(made.join(MANIFEST))?;
    file.write_all(manifest.as_bytes())?;
    file.sync_all()
}

fn list(root: &Path, folder: &Path, for_all: bool, manifest: &mut String) -> std::io::Result<()> {
    if for_all {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        if metadata.is_dir() {
            list(root, &path, for_all, manifest)?;
            continue;
        }
        if for_all && metadata.is_file() {
            let is_program = metadata.permissions().mode() & 0o111 != 0;
            let mode = if is_program { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        let inside = path.strip_prefix(root).unwrap_or(&path);
        manifest.push_str(&format!("{} {}\n", metadata.len(), inside.display()));
    }
    Ok(())
}

fn runs(program: &Path, identity: &Identity) -> Result<(), String> {
    let output = identity.command(program).arg("--version").output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(first_line(&output.stderr).unwrap_or_else(|| "`initdb --version` failed".to_owned()))
}

/// The first line that is not empty. `gzip` begins with an empty line, and `tar` ends with a
/// general one.
pub(super) fn first_line(stderr: &[u8]) -> Option<String> {
    let said = String::from_utf8_lossy(stderr);
    said.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

fn remove(folder: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
