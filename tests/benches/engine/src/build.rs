//! Identifies the sources of this program, so that a report names them and never mixes two builds.

use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::Res;

/// Paths that a report itself writes. Changes in them do not affect a measurement.
const WRITTEN: [&str; 2] = ["docs/benchmarks", "README.md"];

const DIGITS: usize = 12;

/// A build of the measuring programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    pub commit: String,
    /// Whether the sources have uncommitted changes.
    pub dirty: bool,
    /// A hash of the executables: two builds of uncommitted sources share one commit.
    pub programs: String,
}

impl Build {
    /// Identifies the build of this program and of `others`. Fails if a source is newer than its
    /// program, because the commit would then describe a different program.
    pub fn of(others: Option<&Path>) -> Res<Self> {
        let own = std::env::current_exe()?;
        let mut hasher = DefaultHasher::new();
        for program in [Some(own.as_path()), others].into_iter().flatten() {
            if let Some(newer) = newer_source(program)? {
                let [file, program] =
                    [&*newer, program].map(|path| path.file_name().unwrap_or_default().display().to_string());
                return Err(format!("`{file}` is newer than `{program}`: build it again").into());
            }
            hasher.write(&std::fs::read(program)?);
        }
        let (commit, dirty) = commit();
        Ok(Self { commit, dirty, programs: format!("{:016x}", hasher.finish()) })
    }

    /// The commit, with `-dirty` after uncommitted changes.
    pub fn name(&self) -> String {
        name(&self.commit, self.dirty)
    }
}

/// The commit of the sources, in the form of [`Build::name`].
pub fn commit_name() -> String {
    let (commit, dirty) = commit();
    name(&commit, dirty)
}

fn name(commit: &str, dirty: bool) -> String {
    if dirty { format!("{commit}-dirty") } else { commit.to_owned() }
}

/// Returns the checked-out commit, and whether files other than [`WRITTEN`] have changes.
fn commit() -> (String, bool) {
    let Some(mut commit) = git(&["rev-parse", "HEAD"]) else { return ("unknown".to_owned(), true) };
    commit.truncate(DIGITS);
    let excluded = WRITTEN.map(|path| format!(":(top,exclude){path}"));
    let mut status = vec!["status", "--porcelain", "--untracked-files=no", "--", ":/"];
    status.extend(excluded.iter().map(String::as_str));
    (commit, git(&status).is_none_or(|changes| !changes.is_empty()))
}

/// Returns the output of `git`, or `None` without git or outside a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    let said = git.arg("-C").arg(env!("CARGO_MANIFEST_DIR")).args(arguments).output().ok()?;
    said.status.success().then(|| String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

/// Returns a source that is newer than the program, by cargo's `.d` file. `None` without that file.
fn newer_source(program: &Path) -> Res<Option<PathBuf>> {
    let Ok(list) = std::fs::read_to_string(program.with_extension("d")) else { return Ok(None) };
    let built = std::fs::metadata(program)?.modified()?;
    let is_newer = |source: &PathBuf| {
        std::fs::metadata(source).and_then(|source| source.modified()).is_ok_and(|changed| changed > built)
    };
    Ok(sources(&list).into_iter().find(is_newer))
}

/// The files after the colon of a Makefile rule. A backslash escapes a space in a name.
fn sources(list: &str) -> Vec<PathBuf> {
    let Some((_, files)) = list.split_once(": ") else { return Vec::new() };
    let escaped = files.trim_end().replace("\\ ", "\0");
    escaped.split(' ').filter(|file| !file.is_empty()).map(|file| file.replace('\0', " ").into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_path_with_escaped_space_is_one_source() {
        let list = "/t/bench: /a/one.rs /a\\ b/two.rs\n";
        assert_eq!(sources(list), [PathBuf::from("/a/one.rs"), PathBuf::from("/a b/two.rs")]);
        assert_eq!(sources(""), Vec::<PathBuf>::new());
    }

    #[test]
    fn program_older_than_its_source_is_detected() {
        let folder = std::env::temp_dir().join(format!("runledger-bench-build-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (program, source) = (folder.join("bench"), folder.join("a.rs"));
        for file in [&program, &source] {
            std::fs::write(file, "").unwrap();
        }
        assert_eq!(newer_source(&program).unwrap(), None);
        std::fs::write(program.with_extension("d"), format!("{}: {}\n", program.display(), source.display()))
            .unwrap();
        let built = std::fs::metadata(&program).unwrap().modified().unwrap();
        for (changed, newer) in [(built, None), (built + std::time::Duration::from_secs(1), Some(&source))] {
            std::fs::File::options().write(true).open(&source).unwrap().set_modified(changed).unwrap();
            assert_eq!(newer_source(&program).unwrap().as_ref(), newer);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn build_name_marks_uncommitted_changes() {
        assert_eq!((name("abc", false), name("abc", true)), ("abc".to_owned(), "abc-dirty".to_owned()));
    }
}
