//! Folders that only this user may enter. Root runs the server as another account, which cannot; any other user runs it
//! as itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::site::{Folder, Site, run};
use super::support::{Base, Client, listens};

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

#[test]
fn base_folder_that_the_servers_account_cannot_enter_is_refused_with_the_account() {
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
fn new_parents_of_a_base_folder_let_the_servers_account_pass_whatever_the_umask_is() {
    let folder = Folder::new();
    let base = Base::below(folder.0.join("new/deep").to_str().unwrap(), LONG);
    let mut command = Command::new("sh");
    command.args(["-c", r#"umask 077; exec "$0" hold "$1" 60000"#, env!("CARGO_BIN_EXE_dev_client")]);
    command.arg(&base.dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = Client { child: command.spawn().unwrap() };
    assert!(listens(&client.url()));
}

#[test]
fn cache_that_the_servers_account_cannot_enter_is_refused_before_the_download() {
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
fn programs_that_the_servers_account_cannot_run_are_refused_with_the_account() {
    let (site, home) = (Site::with_small_archive(), home());
    let bin = home.0.join("bin");
    fs::rename(site.folder.0.join("made/package/native/bin"), &bin).unwrap();
    let base = Base::new(LONG);
    let mut client = Client { child: base.command().env("RUNLEDGER_PG_BIN", &bin).spawn().unwrap() };
    let line = client.line();
    if is_root() {
        assert!(line.contains("as the account `"), "{line}");
    } else {
        assert!(line.contains("`initdb` failed"), "these programs only print their version: {line}");
    }
}

#[test]
fn programs_in_path_that_the_servers_account_cannot_run_are_passed_over() {
    let (site, home) = (Site::with_small_archive(), home());
    let bin = home.0.join("bin");
    fs::rename(site.folder.0.join("made/package/native/bin"), &bin).unwrap();
    let base = Base::new(LONG);
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let mut client = Client { child: base.command().env("PATH", path).spawn().unwrap() };
    let line = client.line();
    assert_eq!(line.starts_with("ready"), is_root(), "{line}");
}
