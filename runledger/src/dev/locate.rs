//! Finds PostgreSQL's server programs: the installed ones, which distributions leave out of `PATH`,
//! or the downloaded ones.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::archive::{self, Archive, NotDownloaded};
use super::cache::{self, first_line};
use super::error::DevError;
use super::identity::Identity;

/// The folder with the server programs. If set, no other folder is searched.
const PG_BIN: &str = "RUNLEDGER_PG_BIN";

/// PostgreSQL 13 is the first with `DROP DATABASE … WITH (FORCE)`, and the oldest that the schema
/// is tested on.
const OLDEST_MAJOR: u32 = 13;

const NEEDED: [&str; 3] = ["initdb", "pg_ctl", "postgres"];

/// The folders of distributions and installers. A `*` matches within one path segment.
const WELL_KNOWN: [&str; 9] = [
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
    "/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
    "/Library/PostgreSQL/*/bin",
    "/usr/libexec/postgresql*",
    "/usr/local/pgsql/bin",
];

/// A folder that holds `initdb`, `pg_ctl` and `postgres` of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Programs {
    bin: PathBuf,
    major: u32,
}

impl Programs {
    /// The full path of one of the programs.
    pub(super) fn path(&self, program: &str) -> PathBuf {
        self.bin.join(program)
    }
}

/// The installed programs, the preferred version first.
#[derive(Debug, Default)]
struct Installed {
    usable: Vec<Programs>,
    too_old: Vec<u32>,
    /// The folders whose programs the server's account cannot run, with the reason.
    refused: Vec<String>,
    /// Whether `RUNLEDGER_PG_BIN` names them. If so, no other programs may be used.
    is_explicit: bool,
}

/// Returns the programs for `data`: those of the major version that made it, or the preferred
/// version if `data` does not exist yet. If none are installed, returns the programs of the
/// archive, and downloads them if necessary.
pub(super) fn for_data(data: &Path, identity: &Identity) -> Result<Programs, DevError> {
    let made_by = fs::read_to_string(data.join("PG_VERSION")).ok();
    let made_by = made_by.as_deref().map(|major| (major.trim(), data));
    choose(here(identity)?, made_by, archive_here(identity), |archive| fetch(archive, identity))
}

/// Returns the programs for a new data folder.
pub(super) fn preferred(identity: &Identity) -> Result<Programs, DevError> {
    choose(here(identity)?, None, archive_here(identity), |archive| fetch(archive, identity))
}

/// Returns the programs of the archive, even if PostgreSQL is installed.
pub(super) fn downloaded(identity: &Identity) -> Result<Programs, DevError> {
    choose(Installed::default(), None, archive_here(identity), |archive| fetch(archive, identity))
}

fn here(identity: &Identity) -> Result<Installed, DevError> {
    search(env::var_os(PG_BIN).as_deref(), env::var_os("PATH").as_deref(), Path::new("/"), identity)
}

fn archive_here(identity: &Identity) -> Result<Archive, NotDownloaded> {
    archive::wanted(identity.is_root(), |name| env::var_os(name))
}

/// Returns all usable programs, the preferred first. Searches only the explicit folder if it is
/// set. Otherwise `PATH` comes first, then the well-known folders with the highest major version
/// first. `root` is `/` outside tests.
fn search(
    explicit: Option<&OsStr>,
    path: Option<&OsStr>,
    root: &Path,
    identity: &Identity,
) -> Result<Installed, DevError> {
    let mut refused = Vec::new();
    let mut inspect = |dir: &PathBuf| match inspect(dir, identity)? {
        Ok(programs) => Some(programs),
        Err(why) => {
            refused.push(format!("the programs in `{}`: {why}", dir.display()));
            None
        }
    };
    if let Some(dir) = explicit.filter(|dir| !dir.is_empty()) {
        let usable = vec![inspect_explicit(Path::new(dir), identity)?];
        return Ok(Installed { usable, is_explicit: true, ..Installed::default() });
    }
    let from_path = path.map(|path| env::split_paths(path).collect::<Vec<_>>()).unwrap_or_default();
    let mut found: Vec<Programs> = from_path.iter().filter_map(&mut inspect).collect();
    let mut installed: Vec<Programs> =
        WELL_KNOWN.iter().flat_map(|pattern| expand(root, pattern)).filter_map(|dir| inspect(&dir)).collect();
    installed.sort_by_key(|programs| std::cmp::Reverse(programs.major));
    found.append(&mut installed);

    let too_old: Vec<u32> = found.iter().map(|p| p.major).filter(|major| *major < OLDEST_MAJOR).collect();
    found.retain(|programs| programs.major >= OLDEST_MAJOR);
    Ok(Installed { usable: found, too_old, refused, is_explicit: false })
}

/// Returns the first of `installed` that can open the data, or else the programs of `archive`.
/// `data` is the major version that made the data, and its folder.
fn choose(
    installed: Installed,
    data: Option<(&str, &Path)>,
    archive: Result<Archive, NotDownloaded>,
    fetch: impl FnOnce(&Archive) -> Result<Programs, NotDownloaded>,
) -> Result<Programs, DevError> {
    let serves = |major: u32| data.is_none_or(|(made_by, _)| major.to_string() == made_by);
    let Installed { usable, too_old, refused, is_explicit } = installed;
    if let Some(found) = usable.iter().find(|programs| serves(programs.major)) {
        return Ok(found.clone());
    }
    let mut majors: Vec<u32> = usable.iter().map(|programs| programs.major).collect();
    let mut why = None;
    if !is_explicit {
        match archive {
            // Do not download programs that cannot open the data.
            Ok(archive) if archive.major.is_none_or(serves) => match fetch(&archive) {
                Ok(programs) if serves(programs.major) => return Ok(programs),
                Ok(programs) => majors.push(programs.major),
                Err(error) => why = Some(error),
            },
            Ok(archive) => majors.extend(archive.major),
            Err(error) if usable.is_empty() || serves(archive::MAJOR) => why = Some(error),
            Err(_) => {}
        }
    }
    if let Some(why) = why.as_ref().filter(|_| usable.is_empty()) {
        return Err(DevError::NoPrograms { too_old, refused, download: why.to_string() });
    }
    majors.sort_unstable();
    majors.dedup();
    let majors: Vec<String> = majors.iter().map(u32::to_string).collect();
    let mut installed = majors.join(", ");
    if is_explicit {
        installed.push_str(" (in `RUNLEDGER_PG_BIN`; no other folder is searched while it is set)");
    }
    if !refused.is_empty() {
        installed.push_str(&format!(" (without {})", refused.join(", ")));
    }
    let (made_by, data) = data.unwrap_or(("", Path::new("")));
    Err(DevError::OtherVersion {
        data: data.to_owned(),
        made_by: made_by.to_owned(),
        installed,
        download: why.map(|why| why.to_string()),
    })
}

fn fetch(archive: &Archive, identity: &Identity) -> Result<Programs, NotDownloaded> {
    downloaded_in(&cache::programs(archive, identity)?, archive, identity)
}

fn downloaded_in(bin: &Path, archive: &Archive, identity: &Identity) -> Result<Programs, NotDownloaded> {
    let fails = |said| NotDownloaded::DoesNotRun { url: archive.url.clone(), said };
    let programs =
        inspect(bin, identity).unwrap_or_else(|| Err("they are not complete".to_owned())).map_err(fails)?;
    if programs.major < OLDEST_MAJOR {
        return Err(NotDownloaded::TooOld { url: archive.url.clone(), major: programs.major });
    }
    Ok(programs)
}

fn inspect_explicit(dir: &Path, identity: &Identity) -> Result<Programs, DevError> {
    let refuse = |problem: String| DevError::PgBin { path: dir.to_owned(), problem };
    if !dir.is_dir() {
        return Err(refuse("that is not a folder".to_owned()));
    }
    if let Some(missing) = NEEDED.iter().find(|program| !dir.join(program).is_file()) {
        return Err(refuse(format!("there is no `{missing}` in it")));
    }
    let programs = inspect(dir, identity)
        .unwrap_or_else(|| Err("there is no `postgres` beside its `initdb`".to_owned()))
        .map_err(refuse)?;
    if programs.major < OLDEST_MAJOR {
        return Err(refuse(format!(
            "it holds PostgreSQL {}, older than {OLDEST_MAJOR}, the first that is supported",
            programs.major
        )));
    }
    Ok(programs)
}

/// Inspects the programs in a folder. `None` if some are missing, and an error if the server's
/// account cannot run them.
///
/// Follows the link of `initdb` first: `PATH` often has a link to a single program, and `initdb`
/// needs `postgres` beside its real path.
fn inspect(dir: &Path, identity: &Identity) -> Option<Result<Programs, String>> {
    let initdb = fs::canonicalize(dir.join("initdb")).ok()?;
    let bin = initdb.parent()?.to_owned();
    if !NEEDED.iter().all(|program| bin.join(program).is_file()) {
        return None;
    }
    let why = match identity.command(&initdb).arg("--version").output() {
        Ok(output) => {
            match (parse_major(&String::from_utf8_lossy(&output.stdout)), first_line(&output.stderr)) {
                (Some(major), _) => return Some(Ok(Programs { bin, major })),
                (None, Some(line)) => format!("gives no version ({line})"),
                (None, None) => "gives no version".to_owned(),
            }
        }
        Err(error) => format!("does not run ({error})"),
    };
    let account = identity.account_name();
    let account = account.map(|name| format!(" as the account `{name}`, which runs the server for root"));
    Some(Err(format!("`initdb --version` there {why}{}", account.unwrap_or_default())))
}

/// `initdb (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)` is 15, and `initdb (PostgreSQL) 19beta1` is
/// 19.
fn parse_major(version: &str) -> Option<u32> {
    let number = version.split_once("(PostgreSQL) ")?.1;
    let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..end].parse().ok()
}

/// Returns the existing folders that match `pattern`.
fn expand(root: &Path, pattern: &str) -> Vec<PathBuf> {
    let mut dirs = vec![root.to_owned()];
    for segment in pattern.split('/').filter(|segment| !segment.is_empty()) {
        dirs = match segment.split_once('*') {
            None => dirs.into_iter().map(|dir| dir.join(segment)).collect(),
            Some((prefix, suffix)) => dirs.iter().flat_map(|dir| matching(dir, prefix, suffix)).collect(),
        };
    }
    dirs.retain(|dir| dir.is_dir());
    dirs
}

fn matching(dir: &Path, prefix: &str, suffix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| {
            entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix) && name.ends_with(suffix))
        })
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
#[path = "locate_tests.rs"]
mod tests;
