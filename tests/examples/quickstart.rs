//! The quickstart: its report is correct, and after a crash no recorded step executes again.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use runledger_tests::{Fixture, eventually};

use crate::program::{Ended, example, run};

/// The number of files in the test's folder.
const N_FILES: usize = 40;

/// A folder that is deleted with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("runledger-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }

    /// Creates files of three lines each. One name and one content are not UTF-8.
    fn with_files(name: &str) -> Self {
        let folder = Self::new(name);
        for dir in ["files/a", "files/.git", "files/target"] {
            std::fs::create_dir_all(folder.0.join(dir)).unwrap();
        }
        for n in 2..N_FILES {
            folder.write(format!("files/a/{n:03}.txt"), b"1\n2\n3\n");
        }
        folder.write("files/binary", b"\xff\n\0\n\xfe\n");
        folder.write(OsStr::from_bytes(b"files/caf\xe9.txt"), b"1\n2\n3\n");
        folder.write("files/.git/HEAD", b"skipped");
        folder.write("files/target/out", b"skipped");
        folder
    }

    fn write(&self, path: impl AsRef<Path>, content: &[u8]) {
        std::fs::write(self.0.join(path), content).unwrap();
    }

    fn command(&self, fixture: &Fixture) -> Command {
        let mut command = example("quickstart", fixture);
        command.arg(self.0.join("files"));
        command
    }

    /// Runs the quickstart on the files. Returns the keys of the executed bodies, except for inline
    /// steps, in the order in which they started.
    fn survey(&self, fixture: &Fixture, log: &str, options: &[&str]) -> (Ended, Vec<String>) {
        let log = self.0.join(log);
        let ended = run(self.command(fixture).args(options).env("RUNLEDGER_EXAMPLE_LOG", &log));
        let bodies = std::fs::read_to_string(log).unwrap_or_default();
        (ended, bodies.lines().map(str::to_owned).collect())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that is left over does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the steps in the database: their keys and when they were recorded.
async fn recorded(fixture: &Fixture) -> BTreeSet<(String, String)> {
    let sql = "select key, recorded_at::text from runledger.step";
    sqlx::query_as(sql).fetch_all(fixture.db.pool()).await.unwrap().into_iter().collect()
}

async fn states(fixture: &Fixture) -> Vec<String> {
    let sql = "select state from runledger.run_state order by created_at";
    sqlx::query_scalar(sql).fetch_all(fixture.db.pool()).await.unwrap()
}

/// Ends a session that waits for a lock while it reads the steps. Waits until there is one, and
/// returns its process id. Skips the process `but`.
async fn cut_a_look(fixture: &Fixture, but: i32) -> i32 {
    let sql = "
        select pid, pg_terminate_backend(pid)
        from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and query like '%json_array_length%' and pid <> $1";
    let cut = async || {
        sqlx::query_as::<_, (i32, bool)>(sql).bind(but).fetch_optional(fixture.db.pool()).await.unwrap()
    };
    eventually(cut, Option::is_some).await.unwrap().0
}

#[tokio::test]
async fn survey_reports_folder_and_next_survey_starts_new_run() {
    let fixture = Fixture::new().await;
    let folder = Folder::with_files("survey");
    let (ended, bodies) = folder.survey(&fixture, "log", &[]);
    let output = ended.output();
    assert!(output.contains("a new run") && output.contains("42 steps ran now"), "{output}");
    let report: String = sqlx::query_scalar("select (output -> 'total')::text from runledger.outcome")
        .fetch_one(fixture.db.pool())
        .await
        .unwrap();
    assert_eq!(report, r#"{"files":40,"lines":120,"bytes":240}"#);
    assert!(bodies.contains(&"measure[caf%e9.txt]".to_owned()), "{bodies:?}");

    assert!(folder.survey(&fixture, "log", &[]).0.output().contains("a new run"));
    assert_eq!(states(&fixture).await, ["completed", "completed"]);
}

#[tokio::test]
async fn recorded_steps_do_not_execute_again_after_crash() {
    let fixture = Fixture::new().await;
    let folder = Folder::with_files("crash");
    let (ended, first) = folder.survey(&fixture, "log-1", &["--crash-after", "5"]);
    assert_eq!(ended.status.signal(), Some(9), "{ended:?}");
    let before = recorded(&fixture).await;
    let keys: HashSet<&str> = before.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, first.iter().map(String::as_str).collect(), "5 bodies ran and were recorded");
    assert_eq!((before.len(), states(&fixture).await.as_slice()), (5, &["running".to_owned()][..]));

    let (ended, second) = folder.survey(&fixture, "log-2", &[]);
    let output = ended.output();
    let expected =
        ["continues after 5 steps", "5 steps not repeated: list, measure[a/002.txt]", "37 steps ran now"];
    assert!(expected.iter().all(|text| output.contains(text)), "{output}");
    let repeated: Vec<_> = second.iter().filter(|key| keys.contains(key.as_str())).collect();
    assert!(repeated.is_empty(), "recorded before the crash and run again: {repeated:?}");
    let after = recorded(&fixture).await;
    assert!(before.is_subset(&after), "a record was changed");
    assert_eq!((after.len(), second.len()), (N_FILES + 2, N_FILES + 1 - 5));
    assert_eq!(states(&fixture).await, ["completed"]);
}

#[tokio::test]
async fn fresh_survey_cancels_run_left_by_crash() {
    let fixture = Fixture::new().await;
    let folder = Folder::with_files("fresh");
    let (ended, _) = folder.survey(&fixture, "log-1", &["--crash-after", "3"]);
    assert_eq!(ended.status.signal(), Some(9), "{ended:?}");
    let (ended, bodies) = folder.survey(&fixture, "log-2", &["--fresh"]);
    assert!(ended.output().contains("a new run"));
    assert_eq!(bodies.len(), N_FILES + 1);
    assert_eq!(states(&fixture).await, ["cancelled", "completed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_progress_poll_does_not_end_program() {
    let fixture = Fixture::new().await;
    let folder = Folder::with_files("looks");
    // No run can end, so the program keeps polling the steps.
    let mut no_end = fixture.db.begin().await.unwrap();
    sqlx::query("lock table runledger.outcome in share mode").execute(&mut *no_end).await.unwrap();
    let mut command = folder.command(&fixture);
    let program = tokio::task::spawn_blocking(move || run(&mut command));
    eventually(async || recorded(&fixture).await.len(), |n| *n == N_FILES + 2).await;
    let mut no_look = fixture.db.begin().await.unwrap();
    sqlx::query("lock table runledger.step in access exclusive mode").execute(&mut *no_look).await.unwrap();
    let first = cut_a_look(&fixture, 0).await;
    // A second session shows that the program survived the loss of the first.
    cut_a_look(&fixture, first).await;
    no_look.rollback().await.unwrap();
    no_end.rollback().await.unwrap();
    assert!(program.await.unwrap().output().contains("42 steps ran now"));
}

#[tokio::test]
async fn missing_folder_is_named_in_error() {
    let fixture = Fixture::new().await;
    let ended = run(example("quickstart", &fixture).arg("/no/such/folder"));
    assert!(!ended.status.success());
    assert!(ended.stderr.contains("the folder `/no/such/folder` cannot be surveyed"), "{ended:?}");
}
