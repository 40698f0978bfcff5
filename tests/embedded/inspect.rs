//! The command line finds the embedded database of a program that has ended.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use runledger::dev::{Options, reset, stop_now};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{Connection, PgConnection};

use super::site::Folder;
use super::support::{Base, Client, listens, with_few_variables};

/// A project whose program has used its embedded database.
struct Project {
    folder: Folder,
    options: Options,
}

impl Project {
    fn new() -> Self {
        let folder = Folder::new();
        fs::write(folder.0.join("Cargo.lock"), "").unwrap();
        fs::create_dir(folder.0.join("inside")).unwrap();
        let mut project = Self { folder, options: Options::dev() };
        let mut program = project.command(env!("CARGO_BIN_EXE_dev_client"), &["from_env"]);
        let mut program = Client { child: program.spawn().unwrap() };
        let said = program.line();
        assert!(said.starts_with("ready "), "{said}");
        let mut notice = String::new();
        let stderr = program.child.stderr.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stderr), &mut notice).unwrap();
        let base = notice.strip_prefix("embedded PostgreSQL in ").unwrap().split(" (").next().unwrap();
        project.options.base_dir = Some(PathBuf::from(base));
        program.kill();
        stop_now(&project.options).unwrap();
        project
    }

    /// A program that a user starts inside the project without cargo.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.folder.0.join("inside"));
        with_few_variables(&mut command).env("XDG_STATE_HOME", self.folder.0.join("state"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn cli(&self, arguments: &[&str]) -> Command {
        self.command(env!("CARGO_BIN_EXE_runledger_cli"), arguments)
    }

    fn base(&self) -> String {
        self.options.base_dir.as_ref().unwrap().display().to_string()
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        if let Some(base) = &self.options.base_dir {
            let _ = reset(&self.options);
            let _ = fs::remove_dir_all(base);
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn command_without_url_uses_and_names_project_embedded_database() {
    let project = Project::new();
    let Output { status, stdout, stderr } = project.cli(&["runs", "--all", "--json"]).output().unwrap();
    let (stdout, stderr) = (text(&stdout), text(&stderr));
    assert!(status.success(), "{stderr}");
    assert!(stdout.contains("\"runs\":[]"), "{stdout}");
    assert!(stderr.starts_with(&format!("embedded PostgreSQL in {} ", project.base())), "{stderr}");
}

#[test]
fn database_url_overrides_embedded_database() {
    let project = Project::new();
    let mut command = project.cli(&["runs", "--all"]);
    let output = command.env("DATABASE_URL", "postgres://nobody@localhost:1/nowhere").output().unwrap();
    let stderr = text(&output.stderr);
    assert!(output.status.code() == Some(1) && stderr.contains("nowhere"), "{stderr}");
}

#[test]
fn command_in_folder_without_embedded_database_creates_none() {
    let folder = Folder::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_runledger_cli"));
    command
        .args(["runs", "--all"])
        .current_dir(&folder.0)
        .env_clear()
        .env("XDG_STATE_HOME", folder.0.join("state"));
    let output = command.output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("this folder's project has no embedded one: set `DATABASE_URL`"), "{stderr}");
    for variable in ["`CARGO_TARGET_DIR`", "`XDG_STATE_HOME`"] {
        assert!(stderr.contains(variable), "`{variable}` is missing: {stderr}");
    }
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}

#[tokio::test]
async fn dev_serves_embedded_database_of_project_until_ctrl_c() {
    let project = Project::new();
    let folder = project.folder.0.display().to_string();
    let mut dev = Client { child: project.cli(&["dev", &folder]).spawn().unwrap() };
    let url = dev.line();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let n_runs: i64 =
        sqlx::query_scalar("select count(*) from runledger.run").fetch_one(&mut connection).await.unwrap();
    assert_eq!(n_runs, 0);
    connection.close().await.unwrap();
    kill_process(Pid::from_child(&dev.child), Signal::INT).unwrap();
    assert!(dev.child.wait().unwrap().success(), "Ctrl-C must be the usual end");
}

#[test]
fn dev_finds_base_folder_given_to_embedded_in() {
    let base = Base::new(Duration::from_secs(60));
    let folder = base.dir.display().to_string();
    base.client().url();
    stop_now(&base.options()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_runledger_cli"));
    with_few_variables(command.args(["dev", &folder, "--json"])).stdout(Stdio::piped());
    let mut dev = Client { child: command.spawn().unwrap() };
    let said: serde_json::Value = serde_json::from_str(&dev.line()).unwrap();
    assert!(listens(said["url"].as_str().unwrap()));
    assert!(base.postmaster().is_some(), "another server was started");
}

#[test]
fn dev_leaves_foreign_server_data_in_project_folder_untouched() {
    let project = Project::new();
    let folder = &project.folder.0;
    fs::create_dir(folder.join("data")).unwrap();
    fs::write(folder.join("data/PG_VERSION"), "15").unwrap();
    let n_files = fs::read_dir(folder).unwrap().count();
    let mut dev = Client { child: project.cli(&["dev", &folder.display().to_string()]).spawn().unwrap() };
    assert!(listens(&dev.line()));
    assert_eq!(fs::read_dir(folder).unwrap().count(), n_files);
    assert_eq!(fs::read_dir(folder.join("data")).unwrap().count(), 1);
}
