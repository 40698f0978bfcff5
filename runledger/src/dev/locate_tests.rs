#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

/// A tree of pretended installations that is deleted at the end.
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
            let file = bin.join(program);
            fs::write(&file, format!("#!/bin/sh\necho '{program} (PostgreSQL) {version}'\n")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        bin
    }

    fn search(&self, explicit: Option<&Path>, path: Option<&Path>) -> Result<Vec<u32>, DevError> {
        let found = search(explicit.map(Path::as_os_str), path.map(Path::as_os_str), &self.0)?;
        Ok(found.iter().map(|programs| programs.major).collect())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_highest_major_of_the_well_known_folders_comes_first() {
    let tree = Tree::new("order");
    tree.install("usr/lib/postgresql/9.6/bin", "9.6.24");
    tree.install("usr/lib/postgresql/12/bin", "12.22");
    tree.install("usr/lib/postgresql/13/bin", "13.1");
    tree.install("usr/pgsql-18/bin", "18.4");
    tree.install("opt/homebrew/opt/postgresql@17/bin", "17.6 (Homebrew)");
    assert_eq!(tree.search(None, None).unwrap(), [18, 17, 13]);
}

#[test]
fn a_link_in_path_leads_to_the_folder_of_the_real_program_and_comes_before_the_rest() {
    let tree = Tree::new("link");
    tree.install("usr/pgsql-18/bin", "18.4");
    let real = tree.install("opt/pg/bin", "16.3");
    let linked = tree.0.join("local");
    fs::create_dir_all(&linked).unwrap();
    symlink(real.join("initdb"), linked.join("initdb")).unwrap();
    let found = search(None, Some(linked.as_os_str()), &tree.0).unwrap();
    assert_eq!(found[0], Programs { bin: real, major: 16 });
    assert_eq!(found[1].major, 18);
}

#[test]
fn without_programs_the_error_names_three_remedies() {
    let tree = Tree::new("none");
    let text = tree.search(None, Some(Path::new("/nonexistent"))).unwrap_err().to_string();
    for remedy in ["apt-get install -y postgresql", "brew install postgresql@17", "DATABASE_URL"] {
        assert!(text.contains(remedy), "`{remedy}` is missing: {text}");
    }
}

#[test]
fn programs_that_are_too_old_are_named_in_the_error() {
    let tree = Tree::new("old");
    tree.install("usr/lib/postgresql/11/bin", "11.22");
    let text = tree.search(None, None).unwrap_err().to_string();
    assert!(text.contains("(found only 11)"), "{text}");
}

#[test]
fn an_explicit_folder_is_the_only_one_that_is_tried() {
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
fn data_is_served_by_the_major_that_made_it_or_not_at_all() {
    let found = || [18, 15].map(|major| Programs { bin: PathBuf::from("/bin"), major }).to_vec();
    assert_eq!(choose(found(), "15", Path::new("/data")).unwrap().major, 15);
    let text = choose(found(), "16", Path::new("/data")).unwrap_err().to_string();
    assert!(text.contains("made by PostgreSQL 16") && text.contains("15, 18"), "{text}");
}

#[test]
fn majors_are_read_from_released_and_unreleased_versions() {
    assert_eq!(parse_major("initdb (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
    assert_eq!(parse_major("initdb (PostgreSQL) 19beta1"), Some(19));
    assert_eq!(parse_major("initdb: not found"), None);
}
