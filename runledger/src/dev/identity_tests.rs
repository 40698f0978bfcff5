#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

const ACCOUNTS: &str = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65533::/:/usr/sbin/nologin\n";

const POSTGRES: Account = Account { name: "postgres", uid: 101, gid: 104 };

const NOBODY: Account = Account { name: "nobody", uid: 65534, gid: 65533 };

#[test]
fn server_prefers_postgres_account_over_nobody() {
    let both = format!("{ACCOUNTS}postgres:x:101:104:admin,,,:/var/lib/postgresql:/bin/bash\n");
    assert_eq!(server_account(&both, None), Some(POSTGRES));
    assert_eq!(server_account(ACCOUNTS, None), Some(NOBODY));
    assert_eq!(server_account("root:x:0:0::/root:/bin/sh\npostgresql:x:7:7::/:/bin/sh\n", None), None);
}

#[test]
fn server_runs_as_account_owning_data() {
    let both = format!("{ACCOUNTS}postgres:x:101:104:admin,,,:/var/lib/postgresql:/bin/bash\n");
    assert_eq!(server_account(&both, Some(NOBODY.uid)), Some(NOBODY));
    assert_eq!(server_account(&both, Some(POSTGRES.uid)), Some(POSTGRES));
    let other = [0, 1000];
    assert!(other.iter().all(|owner| server_account(&both, Some(*owner)) == Some(POSTGRES)));
}

#[test]
fn negative_account_ids_are_read_as_on_macos() {
    assert_eq!(
        server_account("nobody:*:-2:-2:Unprivileged User:/var/empty:/usr/bin/false", None),
        Some(Account { name: "nobody", uid: u32::MAX - 1, gid: u32::MAX - 1 })
    );
}

#[test]
fn project_data_of_root_lies_under_var_tmp() {
    let root = Identity { uid: 0, server: Some(POSTGRES) };
    let base = root.default_base("dev").unwrap();
    assert!(base.starts_with("/var/tmp"), "{}", base.display());
    assert!(base.to_str().unwrap().contains("-dev-"), "{}", base.display());
}

#[test]
fn every_folder_of_workspace_maps_to_same_project() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = project_root(here);
    assert_eq!(project_root(&here.join("src/dev")), root);
    assert!(root.join("Cargo.lock").is_file());
    assert_eq!(project_root(Path::new("/nowhere/at/all")), Path::new("/nowhere/at/all"));
}

#[test]
fn socket_path_fits_length_limit_for_long_base() {
    let me = Identity { uid: 1000, server: None };
    let socket =
        me.socket_dir(Path::new(&format!("/home/{}", "long/".repeat(80)))).join(".s.PGSQL.5432.lock");
    assert!(socket.as_os_str().len() <= 103, "{}", socket.display());
}

#[test]
fn folder_hash_is_stable_across_releases() {
    assert_eq!(short_hash(Path::new("/home/ada/shop")), 2_221_673_337);
}

#[test]
fn non_private_folder_is_refused_with_reason() {
    let uid = rustix::process::geteuid().as_raw();
    let (me, other) = (Identity { uid, server: None }, Identity { uid: uid + 1, server: None });
    let parent = env::temp_dir().join(format!("runledger-identity-{}", std::process::id()));
    let [own, open, file, link] = ["own", "open", "file", "link"].map(|name| parent.join(name));
    make_folders(&own, 0o700).unwrap();
    make_folders(&open, 0o750).unwrap();
    fs::write(&file, "").unwrap();
    std::os::unix::fs::symlink(&own, &link).unwrap();
    let said = |who: Identity, dir: &Path| who.make_private(dir).map_err(|error| error.to_string());
    let kept = said(me, &own);
    let refused = [
        (said(other, &own), &own, "belongs to another user"),
        (said(me, &open), &open, "lets other users in"),
        (said(me, &file), &file, "is not a folder"),
        (said(me, &link), &link, "is a link"),
    ];
    fs::remove_dir_all(&parent).unwrap();

    assert_eq!(kept, Ok(()));
    for (said, dir, problem) in refused {
        let said = said.unwrap_err();
        assert!(said.starts_with(&format!("`{}` {problem}: ", dir.display())), "{said}");
    }
}
