//! Folders that only this user may enter. Root runs the server as another account, which may not.
//! Any other user runs the server under their own account.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use runledger::dev::{Options, stop_now};

use super::site::{Folder, Site, run, write_program};
use super::support::{Base, Client, listens, socket_dir};

const LONG: Duration = Duration::from_secs(60);

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A folder like root's home.
fn home() -> Folder {
    let folder = Folder::new();
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o700)).unwrap();
    folder
}

/// Programs in a folder like root's home. They only print their version.
fn private_programs() -> (Folder, PathBuf) {
    let (site, home) = (Site::with_small_archive(), home());
    let bin = home.0.join("bin");
    fs::rename(site.folder.0.join("made/package/native/bin"), &bin).unwrap();
    for program in ["initdb", "pg_ctl", "postgres"] {
        let script = format!("#!/bin/sh\n[ \"$1\" = --version ] && echo '{program} (PostgreSQL) 17.10'");
        write_program(&bin.join(program), &script);
    }
    (home, bin)
}

#[test]
fn threads_of_one_process_create_same_new_base_folder_concurrently() {
    let folder = Folder::new();
    for round in 0..20 {
        let base = folder.0.join(format!("round-{round}/new/../deep/base"));
        let barrier = Barrier::new(8);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut options = Options::test();
                    options.base_dir = Some(base.clone());
                    barrier.wait();
                    // Opens the folder and finds no server to stop.
                    stop_now(&options).unwrap();
                });
            }
        });
    }
}

#[test]
fn server_starts_in_base_folder_behind_link_in_private_folder() {
    let (home, folder) = (home(), Folder::new());
    symlink(&folder.0, home.0.join("link")).unwrap();
    let base = Base::below(home.0.join("link").to_str().unwrap(), LONG);
    assert!(listens(&base.client().url()));
}

#[test]
fn base_folder_inaccessible_to_server_account_is_refused_naming_account() {
    let home = home();
    let base = Base::below(home.0.to_str().unwrap(), LONG);
    let line = base.client().line();
    if is_root() {
        let account = ["`postgres`", "`nobody`"].iter().any(|account| line.contains(account));
        assert!(account && line.contains("cannot enter"), "{line}");
        assert!(!base.dir.join("data.tmp").exists());
    } else {
        assert!(line.starts_with("ready"), "{line}");
    }
}

#[test]
fn new_base_folder_parents_admit_server_account_despite_strict_umask() {
    let folder = Folder::new();
    let base = Base::below(folder.0.join("new/deep").to_str().unwrap(), LONG);
    let mut command = Command::new("sh");
    command.args(["-c", r#"umask 077; exec "$0" hold "$1" 60000"#, env!("CARGO_BIN_EXE_dev_client")]);
    command.arg(&base.dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = Client { child: command.spawn().unwrap() };
    assert!(listens(&client.url()));
}

/// Without an account `postgres`, root's server runs as `nobody`.
#[test]
fn data_owned_by_nobody_stays_usable_after_postgres_account_appears() {
    let base = Base::new(LONG);
    let url = base.client().url();
    stop_now(&base.options()).unwrap();
    let data = base.dir.join("data");
    let given = Command::new("chown").args(["-R", "nobody", socket_dir(&url)]).arg(&data).status();
    // Only root may give files away. For other users the files stay their own, and the server
    // continues.
    assert!(given.unwrap().success() || !is_root());
    let owner = fs::metadata(&data).unwrap().uid();
    assert_eq!(owner == rustix::process::geteuid().as_raw(), !is_root());

    assert_eq!(base.client().url(), url);
    assert_eq!(fs::metadata(data.join("postmaster.pid")).unwrap().uid(), owner);
    stop_now(&base.options()).unwrap();
    assert!(!listens(&url));
}

#[test]
fn cache_inaccessible_to_server_account_is_refused_before_download() {
    let (site, home) = (Site::with_small_archive(), home());
    let downloaded = run(site.client().env("RUNLEDGER_PG_CACHE", home.0.join("cache")));
    if is_root() {
        let refused = downloaded.unwrap_err();
        assert!(refused.contains("cannot enter it") && refused.contains("RUNLEDGER_PG_CACHE"), "{refused}");
        assert_eq!(site.requests(), 0);
    } else {
        assert!(downloaded.is_ok(), "{downloaded:?}");
    }
}

#[test]
fn programs_server_account_cannot_run_are_refused_naming_account() {
    let (_home, bin) = private_programs();
    let base = Base::new(LONG);
    let mut client = Client { child: base.command().env("RUNLEDGER_PG_BIN", &bin).spawn().unwrap() };
    let line = client.line();
    let expected = if is_root() { "as the account `" } else { "`initdb` failed" };
    assert!(line.contains(expected), "{line}");
}

#[test]
fn path_programs_server_account_cannot_run_are_skipped() {
    let (_home, bin) = private_programs();
    let base = Base::new(LONG);
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let mut client = Client { child: base.command().env("PATH", path).spawn().unwrap() };
    let line = client.line();
    assert_eq!(line.starts_with("ready"), is_root(), "{line}");
}
