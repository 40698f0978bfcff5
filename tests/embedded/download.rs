//! The download of PostgreSQL's programs on a machine without them: refused archives, repaired
//! caches, and cleanup.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::site::{Answer, Site, run, sha512, wait};
use super::support::{Base, Client, eventually, listens};

/// The files of a complete cache.
fn complete(site: &Site) -> [String; 2] {
    ["lock".to_owned(), format!("postgresql-{}", &site.sha512[..16])]
}

#[test]
fn downloaded_programs_are_cached_and_not_downloaded_again() {
    let site = Site::with_small_archive();
    let output = site.client().output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    for word in [&site.url, &site.cache().display().to_string(), "RUNLEDGER_PG_DOWNLOAD=off", "SHA-512"] {
        assert!(told.contains(word), "`{word}` is missing: {told}");
    }
    let bin = super::site::said(output).unwrap();
    assert!(bin.join("initdb").is_file());
    assert_eq!(run(&mut site.client()), Ok(bin.clone()));
    assert_eq!(site.requests(), 1);
    assert_eq!(site.cached(), complete(&site));
    let link = fs::read_link(bin.join("../lib/libpq.so.5")).unwrap();
    assert_eq!(link.to_str(), Some("libpq.so.5.17"), "the links of the package are missing");
}

#[test]
fn archive_with_wrong_digest_is_refused_and_not_cached() {
    let site = Site::with_small_archive();
    let refused = run(site.client().env("RUNLEDGER_PG_ARCHIVE_SHA512", "ab".repeat(64))).unwrap_err();
    assert!(refused.contains("was refused (its SHA-512 begins"), "{refused}");
    assert_eq!(site.cached(), ["lock"]);
}

#[test]
fn interrupted_download_is_attempted_three_times_and_can_recover() {
    let site = Site::with_small_archive();
    site.answers(Answer::Half);
    let refused = run(&mut site.client()).unwrap_err();
    assert!(refused.contains("the download of `http://127.0.0.1"), "{refused}");
    assert_eq!(site.requests(), 3, "a transfer that breaks off is tried three times");
    assert_eq!(site.cached(), ["lock"]);

    let client = site.client().spawn().unwrap();
    eventually!("the next request", (site.requests() > 3).then_some(()));
    site.answers(Answer::Whole);
    assert!(wait(client).is_ok());
    assert_eq!(site.cached(), complete(&site));
}

#[test]
fn partial_download_of_killed_process_does_not_harm_next_download() {
    let site = Site::with_small_archive();
    site.answers(Answer::Held);
    let mut killed = site.client().spawn().unwrap();
    let part = site.cache().join("archive.part");
    eventually!("some bytes", fs::metadata(&part).ok().filter(|part| part.len() > 0));
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(part.exists(), "killed too late to prove anything");
    site.answers(Answer::Whole);
    assert!(run(&mut site.client()).is_ok());
    assert_eq!(site.cached(), complete(&site));
}

#[test]
fn two_concurrent_processes_download_archive_once() {
    let site = Site::with_small_archive();
    site.answers(Answer::Held);
    let clients = [site.client().spawn().unwrap(), site.client().spawn().unwrap()];
    eventually!("the download", (site.requests() == 1).then_some(()));
    // Both processes have opened the lock file before the server answers: one holds the lock, the
    // other waits for it.
    let lock = site.cache().join("lock");
    let has_lock = |client: &std::process::Child| {
        let Ok(files) = fs::read_dir(format!("/proc/{}/fd", client.id())) else { return true };
        files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|path| path == lock))
    };
    eventually!("both to open the lock", clients.iter().all(has_lock).then_some(()));
    site.answers(Answer::Whole);
    let [one, other] = clients.map(wait);
    assert!(one.is_ok() && one == other, "{one:?} {other:?}");
    assert_eq!(site.requests(), 1);
}

#[test]
fn broken_cache_is_repaired() {
    let site = Site::with_small_archive();
    let bin = run(&mut site.client()).unwrap();
    let library = bin.join("../lib/libpq.so.5.17");
    let whole = fs::metadata(&library).unwrap().len();

    fs::remove_file(bin.join("pg_ctl")).unwrap();
    assert_eq!(run(&mut site.client()), Ok(bin.clone()));
    assert!(bin.join("pg_ctl").is_file());

    fs::write(&library, "half").unwrap();
    assert_eq!(run(&mut site.client()), Ok(bin.clone()));
    assert_eq!(fs::metadata(&library).unwrap().len(), whole);

    fs::write(
        bin.ancestors().find_map(|dir| Some(dir.join("manifest")).filter(|file| file.is_file())).unwrap(),
        "",
    )
    .unwrap();
    assert_eq!(run(&mut site.client()), Ok(bin));
    assert_eq!(site.requests(), 4);
}

#[test]
fn cache_folder_creation_error_names_folder() {
    let site = Site::with_small_archive();
    let refused = run(site.client().env("RUNLEDGER_PG_CACHE", "/dev/null/cache")).unwrap_err();
    assert!(refused.contains("the folder `/dev/null/cache` for the download cannot be used"), "{refused}");
    assert!(refused.contains("`RUNLEDGER_PG_CACHE` names another"), "{refused}");
    assert_eq!(site.requests(), 0);
}

#[test]
fn existing_cache_keeps_its_permissions() {
    let site = Site::with_small_archive();
    fs::create_dir(site.cache()).unwrap();
    fs::set_permissions(site.cache(), fs::Permissions::from_mode(0o1777)).unwrap();
    assert!(run(&mut site.client()).is_ok());
    assert_eq!(fs::metadata(site.cache()).unwrap().permissions().mode() & 0o7777, 0o1777);
}

#[test]
fn symlinked_cache_of_same_user_is_followed() {
    let site = Site::with_small_archive();
    let target = site.folder.0.join("elsewhere");
    fs::create_dir(&target).unwrap();
    symlink(&target, site.cache()).unwrap();
    let bin = run(&mut site.client()).unwrap();
    assert!(bin.join("initdb").is_file());
    assert_eq!(site.cached(), complete(&site));
    assert!(fs::symlink_metadata(site.cache()).unwrap().is_symlink());
}

#[test]
fn non_tar_archive_is_refused_with_reason() {
    let site = Site::with_small_archive();
    let text = site.folder.0.join("text.tgz");
    fs::write(&text, "this is no archive\n").unwrap();
    let mut client = site.client();
    client.env("RUNLEDGER_PG_ARCHIVE", format!("file://{}", text.display()));
    let refused = run(client.env("RUNLEDGER_PG_ARCHIVE_SHA512", sha512(&text))).unwrap_err();
    assert!(refused.contains("cannot be unpacked in") && refused.contains("gzip"), "{refused}");
    assert_eq!(site.cached(), ["lock"]);
}

/// `PATH` of a machine without `curl`.
fn without_curl(site: &Site) -> PathBuf {
    let programs = site.folder.0.join("programs");
    fs::create_dir(&programs).unwrap();
    for name in ["wget", "tar", "gzip"] {
        symlink(Path::new("/usr/bin").join(name), programs.join(name)).unwrap();
    }
    programs
}

#[test]
fn truncated_wget_download_fails_with_reason() {
    let site = Site::with_small_archive();
    site.answers(Answer::Half);
    let mut client = site.client().env("PATH", without_curl(&site)).spawn().unwrap();
    eventually!("the client to give up", client.try_wait().unwrap());
    let refused = wait(client).unwrap_err();
    assert!(refused.contains("the download of `http://127.0.0.1"), "{refused}");
    assert!(refused.contains("closed") && !refused.contains("exit status"), "{refused}");
    assert_eq!(site.requests(), 3, "a transfer that breaks off is tried three times");
}

#[test]
fn wget_download_fills_cache() {
    let site = Site::with_small_archive();
    let bin = run(site.client().env("PATH", without_curl(&site))).unwrap();
    assert!(bin.join("initdb").is_file());
    assert_eq!((site.requests(), site.cached()), (1, complete(&site).to_vec()));
}

/// A limit on the file size simulates a full disk: in both cases a write fails.
#[test]
fn full_disk_error_names_cache_folder_and_caches_nothing() {
    let site = Site::with_small_archive();
    let client = site.client();
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 20; exec \"$0\" downloaded"]).arg(client.get_program());
    limited.env_clear().envs(client.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let refused = run(&mut limited).unwrap_err();
    let folder = site.cache();
    assert!(
        refused.contains(&format!("the folder `{}` for the download cannot be used", folder.display())),
        "{refused}"
    );
    assert_eq!(site.cached(), ["lock"]);
}

#[test]
fn refused_connection_error_is_one_line_with_alternatives() {
    let site = Site::with_small_archive();
    // No process listens on this port.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}/archive.tgz");
    let refused = run(site.client().env("RUNLEDGER_PG_ARCHIVE", &url)).unwrap_err();
    for named in [&url, "apt-get install", "dnf install", "brew install", "apk add", "`DATABASE_URL`"] {
        assert!(refused.contains(named), "`{named}` is missing: {refused}");
    }
    assert!(!refused.contains('\n'), "{refused}");
}

#[test]
fn cached_programs_are_used_when_download_is_disabled() {
    let site = Site::with_small_archive();
    let bin = run(&mut site.client()).unwrap();
    for variable in ["RUNLEDGER_PG_DOWNLOAD", "RUNLEDGER_OFFLINE", "CARGO_NET_OFFLINE"] {
        let value = if variable == "RUNLEDGER_PG_DOWNLOAD" { "off" } else { "true" };
        assert_eq!(run(site.client().env(variable, value)).unwrap(), bin, "{variable}");
    }
    assert_eq!(site.requests(), 1);
}

#[test]
fn disabled_download_is_refused_without_request_or_cache() {
    let site = Site::with_small_archive();
    for (variable, value) in
        [("RUNLEDGER_PG_DOWNLOAD", "off"), ("RUNLEDGER_OFFLINE", "1"), ("CARGO_NET_OFFLINE", "true")]
    {
        let refused = run(site.client().env(variable, value)).unwrap_err();
        assert!(refused.contains(&format!("`{variable}` is `{value}`")), "{refused}");
    }
    assert_eq!(site.requests(), 0);
    assert_eq!(site.cached(), [""; 0]);
}

#[test]
fn unrunnable_downloaded_programs_are_refused() {
    let site = Site::with_small_archive();
    // A mount with `noexec` needs root. A program that fails is equivalent here.
    let made = site.folder.0.join("made");
    fs::write(made.join("package/native/bin/initdb"), "#!/bin/sh\necho 'no such C library' >&2\nexit 1\n")
        .unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-czf").arg(site.folder.0.join("other.tgz")).arg("-C").arg(&made).arg("package");
    assert!(tar.status().unwrap().success());
    let sha512 = sha512(&site.folder.0.join("other.tgz"));
    let mut client = site.client();
    client.env("RUNLEDGER_PG_ARCHIVE", format!("file://{}", site.folder.0.join("other.tgz").display()));
    let refused = run(client.env("RUNLEDGER_PG_ARCHIVE_SHA512", sha512)).unwrap_err();
    assert!(refused.contains("do not run on this system (no such C library)"), "{refused}");
    assert_eq!(site.cached(), ["lock"]);
}

#[test]
fn server_runs_on_downloaded_programs() {
    let site = Site::with_installed_programs();
    let bin = run(&mut site.client()).unwrap();
    let base = Base::new(Duration::from_secs(60));
    let mut command = base.command();
    let mut client = Client { child: command.env("RUNLEDGER_PG_BIN", &bin).spawn().unwrap() };
    let url = client.url();
    assert!(listens(&url));
    let postmaster = base.postmaster().unwrap();
    let program = fs::read_to_string(format!("/proc/{postmaster}/cmdline")).unwrap();
    assert!(program.starts_with(bin.to_str().unwrap()), "another server runs: {program}");
}
