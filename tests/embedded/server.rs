//! The embedded server under several processes.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use runledger::dev::{DevError, Server, reset, stop_now};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{Connection, PgConnection};

use super::site::{Folder, write_program};
use super::support::{Base, Client, eventually, listens, socket_dir, with_few_variables};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);

fn kill_9(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[tokio::test]
async fn concurrent_cold_starts_share_one_postmaster_and_one_watcher() {
    let base = Base::new(LONG);
    let mut clients: Vec<_> = (0..6).map(|_| base.client()).collect();
    let urls: Vec<String> = clients.iter_mut().map(Client::url).collect();
    assert!(urls.iter().all(|url| *url == urls[0]), "{urls:?}");
    assert_eq!(base.postmasters().len(), 1);
    assert_eq!(base.watchers().len(), 1);
    let mut connection = PgConnection::connect(&urls[0]).await.unwrap();
    let listen: String =
        sqlx::query_scalar("show listen_addresses").fetch_one(&mut connection).await.unwrap();
    assert_eq!(listen, "", "the server listens on a network");
}

#[test]
fn killed_client_leaves_server_running_for_next_client() {
    let base = Base::new(LONG);
    let mut first = base.client();
    let url = first.url();
    let postmaster = base.postmaster();
    first.kill();
    assert!(listens(&url));
    let mut second = base.client();
    assert_eq!(second.url(), url);
    assert_eq!(base.postmaster(), postmaster);
    assert_eq!(base.watchers().len(), 1, "the second client must join the watcher of the first");
}

#[test]
fn server_stops_only_after_grace_time_of_last_client() {
    let base = Base::new(Duration::from_secs(2));
    let mut first = base.client();
    let mut second = base.client();
    let url = first.url();
    second.url();
    first.kill();
    let last_gone = Instant::now();
    second.kill();
    eventually!("the server to go away", (!listens(&url)).then_some(()));
    assert!(last_gone.elapsed() >= Duration::from_secs(2), "gone after {:?}", last_gone.elapsed());
    eventually!("the watcher to end", base.watchers().is_empty().then_some(()));
    eventually!("a clean end", base.postmaster().is_none().then_some(()));
    assert!(base.dir.join("data/PG_VERSION").exists(), "the data must be kept");
}

/// Each client connects before it prints `ready`, so a client that joined a stopping server would
/// fail. The pauses move the arrivals across the moment at which the watcher stops the server.
/// Without the watcher's second check, 2 of 120 clients failed.
#[test]
fn clients_arriving_around_end_of_grace_time_always_find_server() {
    let base = Base::new(Duration::from_millis(1));
    std::thread::scope(|scope| {
        for phase in 0..3 {
            let base = &base;
            scope.spawn(move || {
                for round in 0..40 {
                    let mut client = base.client();
                    client.url();
                    client.kill();
                    let pause = Instant::now();
                    let length = Duration::from_millis((round * 7 + phase * 3) % 30);
                    eventually!(
                        "the pause before the next client",
                        (pause.elapsed() >= length).then_some(())
                    );
                }
            });
        }
    });
    assert!(base.postmasters().len() <= 1);
}

#[test]
fn killed_watcher_is_replaced_by_next_client() {
    let base = Base::new(SHORT);
    let mut first = base.client();
    let url = first.url();
    kill_9(base.watchers()[0]);
    eventually!("the watcher to die", base.watchers().is_empty().then_some(()));
    let mut second = base.client();
    second.url();
    assert_eq!(base.watchers().len(), 1);
    first.kill();
    second.kill();
    eventually!("the server to go away", (!listens(&url)).then_some(()));
}

#[test]
fn killed_postmaster_is_replaced_by_next_client() {
    let base = Base::new(LONG);
    let mut first = base.client();
    first.url();
    let postmaster = base.postmaster().unwrap();
    kill_9(postmaster);
    let mut second = base.client();
    let url = second.url();
    assert!(listens(&url));
    assert_ne!(base.postmaster(), Some(postmaster));
}

/// A process of the account that runs the server. PostgreSQL ignores the processes of other
/// accounts.
struct Bystander(Child);

impl Bystander {
    fn new() -> Self {
        let mut command = Command::new("sleep");
        command.arg("600").current_dir("/");
        if let Some((uid, gid)) = runledger::dev::on_this_machine().unwrap().1 {
            command.uid(uid).gid(gid);
        }
        Self(command.spawn().unwrap())
    }

    /// Writes the files that a killed server leaves if this process gets its pid.
    fn take_the_pid_in_lock_files(&self, base: &Base, socket_dir: &str) {
        let pid = self.0.id().to_string();
        for file in [base.dir.join("data/postmaster.pid"), format!("{socket_dir}/.s.PGSQL.5432.lock").into()]
        {
            let bytes = fs::read(&file).unwrap();
            let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
            fs::write(&file, [pid.as_bytes(), &bytes[end..]].concat()).unwrap();
        }
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn stale_lock_files_naming_another_process_do_not_prevent_start() {
    let base = Base::new(LONG);
    let mut first = base.client();
    let url = first.url();
    let socket_dir = socket_dir(&url);
    kill_9(base.postmaster().unwrap());
    eventually!("the server to go away", (!listens(&url)).then_some(()));
    let bystander = Bystander::new();
    bystander.take_the_pid_in_lock_files(&base, socket_dir);
    assert!(listens(&base.client().url()));
    assert_ne!(base.postmaster().unwrap().unsigned_abs(), bystander.0.id());
}

#[tokio::test]
#[cfg_attr(target_os = "macos", ignore = "file systems of macOS refuse such a name")]
async fn server_in_non_utf8_folder_starts_and_restarts_after_crash() {
    let mut base = Base::new(LONG);
    base.dir.as_mut_os_string().push(OsStr::from_bytes(b"-\xff"));
    let server = Server::start(base.options()).await.unwrap();
    let url = server.url("postgres");
    kill_9(base.postmaster().unwrap());
    eventually!("the server to go away", (!listens(&url)).then_some(()));
    let bystander = Bystander::new();
    bystander.take_the_pid_in_lock_files(&base, socket_dir(&url));
    let _again = Server::start(base.options()).await.unwrap();
    assert!(listens(&url));
}

/// Scripts in front of a running server's programs that count the starts of servers.
struct CountedPrograms(Folder);

impl CountedPrograms {
    fn of(base: &Base) -> Self {
        let folder = Folder::new();
        let options = fs::read_to_string(base.dir.join("data/postmaster.opts")).unwrap();
        let bin = options.split("/postgres ").next().unwrap();
        let starts = folder.0.join("starts");
        fs::write(&starts, "").unwrap();
        // Root's server runs as another account, which must write the count.
        fs::set_permissions(&starts, fs::Permissions::from_mode(0o666)).unwrap();
        let count = format!("echo start >> '{}'\n", starts.display());
        for (program, first) in [("initdb", ""), ("pg_ctl", &*count), ("postgres", "")] {
            let script = format!("#!/bin/sh\n{first}exec '{bin}/{program}' \"$@\"");
            write_program(&folder.0.join(program), &script);
        }
        Self(folder)
    }

    fn n_starts(&self) -> usize {
        fs::read_to_string(self.0.0.join("starts")).unwrap().lines().count()
    }
}

#[test]
fn copy_of_running_server_is_refused_naming_its_pid() {
    let original = Base::new(LONG);
    let mut client = original.client();
    client.url();
    let copy = Base::new(LONG);
    fs::create_dir(&copy.dir).unwrap();
    // Temporary files of the running server may vanish while `cp` copies them.
    let [data, lock] = ["data", "runledger.lock"].map(|name| original.dir.join(name));
    let _ = Command::new("cp").arg("-a").args([&data, &lock, &copy.dir]).output().unwrap();
    let programs = CountedPrograms::of(&original);
    let mut refused =
        Client { child: copy.command().env("RUNLEDGER_PG_BIN", &programs.0.0).spawn().unwrap() };
    let said = refused.line();
    let pid = original.postmaster().unwrap().to_string();
    for named in ["error ", &copy.dir.join("data/postmaster.pid").display().to_string(), &pid, "stop"] {
        assert!(said.contains(named), "`{named}` is missing: {said}");
    }
    assert_eq!(programs.n_starts(), 1, "a copy stays a copy: no second start");
    assert_eq!(original.postmasters().len(), 1);
}

/// Hides a running server: from another container, neither the socket nor the lock file's process
/// is visible. The file is back before the server looks for it, which it does once a minute.
struct Hidden([(PathBuf, PathBuf); 2]);

impl Hidden {
    fn new(base: &Base, url: &str) -> Self {
        let visible = [PathBuf::from(socket_dir(url)), base.dir.join("data/postmaster.pid")];
        let hidden = visible.map(|path| (path.clone(), path.with_extension("hidden")));
        for (path, hidden) in &hidden {
            fs::rename(path, hidden).unwrap();
        }
        Self(hidden)
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        for (path, hidden) in &self.0 {
            // A second program has created a folder for its socket.
            let _ = fs::remove_dir(path);
            fs::rename(hidden, path).unwrap();
        }
    }
}

#[test]
fn second_server_is_refused_while_first_is_unreachable() {
    let base = Base::new(LONG);
    let mut first = base.client();
    let url = first.url();
    let hidden = Hidden::new(&base, &url);
    let said = base.client().line();
    drop(hidden);
    assert!(
        said.contains("error ") && said.contains("is in use by a process of an earlier server"),
        "{said}"
    );
    assert!(listens(&url));
    assert_eq!(base.postmasters().len(), 1);
}

#[test]
fn reset_does_not_delete_data_of_unreachable_server() {
    let base = Base::new(LONG);
    let mut client = base.client();
    let url = client.url();
    let hidden = Hidden::new(&base, &url);
    let error = reset(&base.options()).unwrap_err();
    drop(hidden);
    assert!(matches!(error, DevError::Served { .. }), "{error:?}");
    assert!(listens(&url));
}

#[test]
fn folder_name_with_shell_characters_is_refused_before_creation() {
    let parent = Base::new(LONG);
    for name in ["x$(echo)y", "x`echo`y", "x\"y", "x\\y", "x\ny"] {
        let base = Base { dir: parent.dir.join(name), grace: LONG };
        let said = base.client().line();
        assert!(said.contains("passes it to a shell"), "`{name}`: {said}");
        assert!(!base.dir.exists(), "`{name}` was created");
    }
}

#[test]
fn interrupted_initdb_is_cleaned_up_by_next_client() {
    let base = Base::new(LONG);
    let first = base.client();
    eventually!("initdb to begin", base.dir.join("data.tmp/PG_VERSION").exists().then_some(()));
    first.kill();
    assert!(!base.dir.join("data").exists(), "killed too late to prove anything");
    let mut second = base.client();
    assert!(listens(&second.url()));
    assert!(!base.dir.join("data.tmp").exists());
}

#[test]
fn initdb_leftovers_of_dead_client_do_not_prevent_start() {
    let base = Base::new(LONG);
    fs::create_dir_all(base.dir.join("data.tmp/base")).unwrap();
    fs::write(base.dir.join("data.tmp/PG_VERSION"), "15\n").unwrap();
    fs::write(base.dir.join("runledger.lock"), "").unwrap();
    assert!(listens(&base.client().url()));
}

#[test]
fn base_folder_path_over_107_bytes_works() {
    let long =
        format!("/var/tmp/runledger-test-{}-{}/{}", std::process::id(), "l".repeat(90), "o".repeat(90));
    let base = Base::below(&long, LONG);
    assert!(listens(&base.client().url()));
    drop(base);
    fs::remove_dir_all(std::path::Path::new(&long).parent().unwrap()).unwrap();
}

#[tokio::test]
async fn data_survives_server_stop_but_not_reset() {
    let base = Base::new(LONG);
    let server = Server::start(base.options()).await.unwrap();
    server.create_database("kept").await.unwrap();
    server.create_database("kept").await.unwrap();
    stop_now(&base.options()).unwrap();
    assert!(!listens(&server.url("kept")));

    let server = Server::start(base.options()).await.unwrap();
    PgConnection::connect(&server.url("kept")).await.unwrap().close().await.unwrap();

    reset(&base.options()).unwrap();
    assert!(!server.data_dir().exists());
    assert!(!listens(&server.url("kept")));
    let server = Server::start(base.options()).await.unwrap();
    let refused = PgConnection::connect(&server.url("kept")).await.unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().code().as_deref(), Some("3D000"));
    assert_eq!(base.watchers().len(), 1);
}

#[tokio::test]
async fn server_with_deleted_data_is_replaced() {
    let base = Base::new(LONG);
    let _server = Server::start(base.options()).await.unwrap();
    let orphan = base.postmaster().unwrap();
    fs::remove_dir_all(&base.dir).unwrap();
    let server = Server::start(base.options()).await.unwrap();
    PgConnection::connect(&server.url("postgres")).await.unwrap();
    assert_ne!(base.postmaster(), Some(orphan));
}

#[tokio::test]
async fn concurrent_creations_of_one_database_all_succeed() {
    let base = Base::new(LONG);
    let server = std::sync::Arc::new(Server::start(base.options()).await.unwrap());
    let mut creations = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let server = server.clone();
        creations.spawn(async move { server.create_database("one").await });
    }
    while let Some(created) = creations.join_next().await {
        created.unwrap().unwrap();
    }
}

#[test]
fn symlinked_base_folder_is_refused() {
    let link = Base::new(LONG);
    std::os::unix::fs::symlink("/", &link.dir).unwrap();
    let said = link.client().line();
    fs::remove_file(&link.dir).unwrap();
    assert!(said.contains("is a link: "), "{said}");
}

#[test]
fn folder_with_foreign_files_is_refused_and_left_unchanged() {
    for name in ["notes.txt", "lock", "server.log", "data/PG_VERSION", "data.tmp/base"] {
        let base = Base::new(LONG);
        let file = base.dir.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::set_permissions(&base.dir, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(&file, "mine").unwrap();
        let said = base.client().line();
        assert!(said.contains("contains files that no embedded server of Runledger made"), "{said}");
        assert_eq!(fs::metadata(&base.dir).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
        assert_eq!(fs::read_dir(&base.dir).unwrap().count(), 1, "{name}");
    }
}

#[test]
fn wrong_runledger_pg_bin_is_named_in_error() {
    let base = Base::new(LONG);
    let mut command = base.command();
    let mut client = Client { child: command.env("RUNLEDGER_PG_BIN", "/nonexistent").spawn().unwrap() };
    let said = client.line();
    assert!(said.starts_with("error `RUNLEDGER_PG_BIN` is `/nonexistent`"), "{said}");
}

#[test]
fn database_url_overrides_embedded_server() {
    let mut client = dev_client(&["from_env"]);
    client.env("DATABASE_URL", "postgres://elsewhere.invalid/db");
    let said = Client { child: client.spawn().unwrap() }.line();
    assert!(said.starts_with("error cannot connect to ") && said.contains("elsewhere.invalid"), "{said}");
}

#[test]
fn program_requesting_embedded_server_ignores_database_url() {
    let base = Base::new(LONG);
    let mut client = dev_client(&["embedded", base.dir.to_str().unwrap()]);
    client.env("DATABASE_URL", "postgres://elsewhere.invalid/db").stderr(Stdio::piped());
    let mut client = Client { child: client.spawn().unwrap() };
    let said = client.line();
    let socket =
        said.strip_prefix("ready ").unwrap_or_else(|| panic!("{said}")).strip_suffix(" runledger").unwrap();
    assert!(base.dir.join("data/PG_VERSION").exists(), "the data is not in the folder that was asked for");
    let mut notice = String::new();
    BufReader::new(client.child.stderr.take().unwrap()).read_line(&mut notice).unwrap();
    let url = format!("postgres://runledger@localhost:5432/runledger?host={socket}&sslmode=disable");
    assert!(notice.contains(&url), "{notice}");
    // The program has no `PATH`, so no `psql` either.
    assert!(!notice.contains("psql"), "{notice}");
}

fn dev_client(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dev_client"));
    with_few_variables(command.args(arguments)).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

#[test]
fn server_start_ignores_postgres_variables_of_caller() {
    let base = Base::new(LONG);
    let mut command = base.command();
    command.envs([
        ("PGPORT", "1"),
        ("PGDATA", "/nonexistent"),
        ("PGSSLMODE", "verify-full"),
        ("LC_ALL", "xx_XX"),
    ]);
    let mut client = Client { child: command.spawn().unwrap() };
    assert!(listens(&client.url()));
}

#[test]
fn socket_is_private_and_server_runs_in_own_process_group() {
    let base = Base::new(LONG);
    let mut client = base.client();
    let url = client.url();
    assert_eq!(fs::metadata(socket_dir(&url)).unwrap().mode() & 0o777, 0o700);
    let group = |pid: i32| rustix::process::getpgid(Pid::from_raw(pid)).unwrap();
    let ours = rustix::process::getpgrp();
    assert_ne!(group(base.postmaster().unwrap()), ours);
    assert_ne!(group(base.watchers()[0]), ours);
}
