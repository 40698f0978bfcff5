#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::symlink;
use std::process::Command;

use super::*;

fn me() -> Identity {
    Identity::current().unwrap()
}

/// A folder with fake installations, deleted at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let root = env::temp_dir().join(format!("runledger-locate-{name}-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        Self(fs::canonicalize(root).unwrap())
    }

    fn install(&self, dir: &str, version: &str) -> PathBuf {
        let bin = self.0.join(dir);
        fs::create_dir_all(&bin).unwrap();
        for program in NEEDED {
            // A child process writes the file. If this process had it open for writing, a process
            // that another test starts would inherit it, and the kernel does not execute such a
            // file ("text file busy").
            let written = Command::new("sh")
                .arg("-c")
                .arg(r#"printf '#!/bin/sh\necho "%s (PostgreSQL) %s"\n' "$1" "$2" > "$0" && chmod 755 "$0""#)
                .arg(bin.join(program))
                .args([program, version])
                .status();
            assert!(written.unwrap().success());
        }
        bin
    }

    fn search(&self, explicit: Option<&Path>, path: Option<&Path>) -> Result<Vec<u32>, DevError> {
        let found = search(explicit.map(Path::as_os_str), path.map(Path::as_os_str), &self.0, &me())?;
        Ok(found.usable.iter().map(|programs| programs.major).collect())
    }

    fn found(&self) -> Installed {
        search(None, Some(OsStr::new("/nonexistent")), &self.0, &me()).unwrap()
    }

    /// Chooses the programs for data of the major version `made_by`, from the installed ones and
    /// `archive`.
    fn choose(&self, path: &str, made_by: Option<&str>, archive: Archive) -> Result<Programs, DevError> {
        let installed = search(None, Some(OsStr::new(path)), &self.0, &me())?;
        let made_by = made_by.map(|major| (major, Path::new("/data")));
        choose(installed, made_by, Ok(archive), |archive| {
            downloaded_in(&self.install("cache/bin", "17.10"), archive, &me())
        })
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn highest_major_in_well_known_folders_comes_first() {
    let tree = Tree::new("order");
    tree.install("usr/lib/postgresql/9.6/bin", "9.6.24");
    tree.install("usr/lib/postgresql/12/bin", "12.22");
    tree.install("usr/lib/postgresql/13/bin", "13.1");
    tree.install("usr/pgsql-18/bin", "18.4");
    tree.install("opt/homebrew/opt/postgresql@17/bin", "17.6 (Homebrew)");
    assert_eq!(tree.search(None, None).unwrap(), [18, 17, 13]);
}

#[test]
fn link_in_path_resolves_to_real_folder_and_comes_first() {
    let tree = Tree::new("link");
    tree.install("usr/pgsql-18/bin", "18.4");
    let real = tree.install("opt/pg/bin", "16.3");
    let linked = tree.0.join("local");
    fs::create_dir_all(&linked).unwrap();
    symlink(real.join("initdb"), linked.join("initdb")).unwrap();
    let found = search(None, Some(linked.as_os_str()), &tree.0, &me()).unwrap().usable;
    assert_eq!(found[0], Programs { bin: real, major: 16 });
    assert_eq!(found[1].major, 18);
}

#[test]
fn missing_programs_and_download_give_one_sentence_with_remedies() {
    let tree = Tree::new("none");
    let refused =
        || Err(NotDownloaded::Failed { url: "https://a/b".to_owned(), said: "no network".to_owned() });
    let error =
        choose(tree.found(), None, refused(), |_| refused().map(|_: Archive| unreachable!())).unwrap_err();
    let text = error.to_string();
    for named in [
        "https://a/b",
        "no network",
        "apt-get install",
        "dnf install",
        "brew install",
        "apk add",
        "`DATABASE_URL`",
    ] {
        assert!(text.contains(named), "`{named}` is missing: {text}");
    }
    assert!(!text.contains('\n') && !text.contains(". "), "{text}");
}

#[test]
fn too_old_programs_are_named_in_error() {
    let tree = Tree::new("old");
    tree.install("usr/lib/postgresql/11/bin", "11.22");
    let text = choose(tree.found(), None, Err(NotDownloaded::NoArchive), |_| unreachable!())
        .unwrap_err()
        .to_string();
    assert!(text.contains("(found only 11)"), "{text}");
}

#[test]
fn programs_are_downloaded_only_if_none_are_installed() {
    let tree = Tree::new("download");
    assert_eq!(tree.choose("/nonexistent", None, pinned()).unwrap().major, 17);
    tree.install("usr/lib/postgresql/15/bin", "15.18");
    assert_eq!(tree.choose("/nonexistent", None, pinned()).unwrap().major, 15);
}

#[test]
fn data_of_downloaded_version_is_served_despite_other_installed_version() {
    let tree = Tree::new("later");
    tree.install("usr/lib/postgresql/15/bin", "15.18");
    assert_eq!(tree.choose("/nonexistent", Some("17"), pinned()).unwrap().major, 17);
}

#[test]
fn version_unable_to_read_data_is_not_downloaded() {
    let tree = Tree::new("unreadable");
    let made_by = Some(("16", Path::new("/data")));
    let error = choose(tree.found(), made_by, Ok(pinned()), |_| unreachable!()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("made by PostgreSQL 16") && text.contains("only 17 is installed or can be downloaded"),
        "{text}"
    );
}

#[test]
fn error_for_data_of_other_version_explains_missing_download() {
    let tree = Tree::new("why");
    tree.install("usr/lib/postgresql/15/bin", "15.18");
    let made_by = Some(("17", Path::new("/data")));
    let forbidden =
        || NotDownloaded::Forbidden { variable: "RUNLEDGER_PG_DOWNLOAD", value: "off".to_owned() };
    let failed = || NotDownloaded::Failed { url: "https://a/b".to_owned(), said: "no network".to_owned() };
    let errors = [
        (choose(tree.found(), made_by, Err(forbidden()), |_| unreachable!()), "is `off`"),
        (choose(tree.found(), made_by, Ok(pinned()), |_| Err(failed())), "no network"),
    ];
    for (error, why) in errors {
        let text = error.unwrap_err().to_string();
        for named in ["made by PostgreSQL 17", "15", why, "`RUNLEDGER_PG_DOWNLOAD", "install PostgreSQL 17"] {
            assert!(text.contains(named), "`{named}` is missing: {text}");
        }
        assert!(!text.contains("delete the folder"), "{text}");
    }
    let of_16 = Some(("16", Path::new("/data")));
    let text = choose(tree.found(), of_16, Err(forbidden()), |_| unreachable!()).unwrap_err().to_string();
    assert!(!text.contains("DOWNLOAD"), "the download would not bring PostgreSQL 16: {text}");
}

#[test]
fn nothing_is_downloaded_with_explicit_folder() {
    let tree = Tree::new("explicit_other");
    let chosen = tree.install("chosen", "14.9");
    let installed = search(Some(chosen.as_os_str()), None, &tree.0, &me()).unwrap();
    let made_by = Some(("17", Path::new("/data")));
    let error = choose(installed, made_by, Ok(pinned()), |_| unreachable!()).unwrap_err();
    assert!(matches!(error, DevError::OtherVersion { .. }), "{error}");
}

fn pinned() -> Archive {
    archive::wanted(true, |_| None).unwrap()
}

#[test]
fn only_explicit_folder_is_searched() {
    let tree = Tree::new("explicit");
    tree.install("usr/pgsql-18/bin", "18.4");
    let old = tree.install("old", "12.1");
    let chosen = tree.install("chosen", "14.9");
    assert_eq!(tree.search(Some(&chosen), None).unwrap(), [14]);
    for (dir, problem) in
        [(tree.0.join("absent"), "not a folder"), (tree.0.join("usr"), "no `initdb`"), (old, "PostgreSQL 12")]
    {
        let error = tree.search(Some(&dir), None).unwrap_err();
        assert!(matches!(error, DevError::PgBin { .. }), "{error}");
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn data_is_served_only_by_its_own_major() {
    let found = || Installed {
        usable: [18, 15].map(|major| Programs { bin: PathBuf::from("/bin"), major }).to_vec(),
        ..Installed::default()
    };
    let chosen = |made_by| {
        choose(
            found(),
            Some((made_by, Path::new("/data"))),
            Err(NotDownloaded::NoArchive),
            |_| unreachable!(),
        )
    };
    assert_eq!(chosen("15").unwrap().major, 15);
    let text = chosen("16").unwrap_err().to_string();
    assert!(text.contains("made by PostgreSQL 16") && text.contains("15, 18"), "{text}");
}

#[test]
fn major_is_parsed_from_release_and_beta_versions() {
    assert_eq!(parse_major("initdb (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
    assert_eq!(parse_major("initdb (PostgreSQL) 19beta1"), Some(19));
    assert_eq!(parse_major("initdb: not found"), None);
}

#[test]
fn programs_failing_to_execute_are_named_with_reason() {
    let tree = Tree::new("refused");
    let bin = tree.install("opt/pg/bin", "17.10");
    fs::set_permissions(bin.join("initdb"), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let named = format!(
        "the programs in `{}`: `initdb --version` there does not run (Permission denied",
        bin.display()
    );
    for data in [None, Some(("15", Path::new("/data")))] {
        let found = search(None, Some(bin.as_os_str()), &tree.0, &me()).unwrap();
        let error = choose(found, data, Ok(pinned()), |_| Err(NotDownloaded::NoDownloader)).unwrap_err();
        assert!(error.to_string().contains(&named), "{error}");
    }
}

#[test]
fn programs_missing_library_are_named_with_loader_error() {
    let tree = Tree::new("library");
    let bin = tree.install("opt/pg/bin", "17.10");
    let lacks = r#"printf '#!/bin/sh\necho "initdb: libpq.so.5: cannot open" >&2; exit 127\n' > "$0""#;
    assert!(Command::new("sh").arg("-c").arg(lacks).arg(bin.join("initdb")).status().unwrap().success());
    let found = search(None, Some(bin.as_os_str()), &tree.0, &me()).unwrap();
    let error = choose(found, None, Ok(pinned()), |_| Err(NotDownloaded::NoDownloader)).unwrap_err();
    let named = "`initdb --version` there gives no version (initdb: libpq.so.5: cannot open)";
    assert!(error.to_string().contains(named), "{error}");
}
