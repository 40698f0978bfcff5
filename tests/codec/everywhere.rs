//! Encrypted payloads appear nowhere in plain text.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use runledger::Db;
use runledger_tests::rows::{execute, scalar, worker};
use runledger_tests::{Fixture, eventually};
use tracing_subscriber::fmt::MakeWriter;
use uuid::Uuid;

use crate::words::{codec, jobs, run_everything};

/// Returns a unique word of 32 bytes.
fn marker() -> String {
    Uuid::now_v7().simple().to_string()
}

/// Returns the content of all tables of a database.
async fn tables(db: &Db) -> String {
    let names: Vec<String> = sqlx::query_scalar(
        "select relname::text from pg_class where relnamespace = 'runledger'::regnamespace and relkind = 'r'",
    )
    .fetch_all(db.pool())
    .await
    .unwrap();
    assert!(names.iter().any(|name| name == "step"), "{names:?}");
    let mut all = String::new();
    for name in names {
        all += &scalar::<String>(
            db,
            &format!("select coalesce(string_agg(row::text, ' '), '') from runledger.{name} as row"),
        )
        .await;
    }
    all
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Collects everything that the process logs.
fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let log = Log::default();
        let subscriber =
            tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(log.clone());
        tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
        log
    })
}

/// Returns the server's log, if the server is the embedded one.
async fn server_log(db: &Db) -> Option<String> {
    if std::env::var("RUNLEDGER_TEST_DATABASE_URL").is_ok_and(|url| !url.is_empty()) {
        return None;
    }
    let data: String = scalar(db, "select current_setting('data_directory')").await;
    let log = Path::new(&data).parent().unwrap().join("server.log");
    Some(String::from_utf8_lossy(&std::fs::read(log).unwrap()).into_owned())
}

/// Executes runs with the word in payloads of each kind, a fork and a rerun. Counts the word in the
/// tables, in our log and in the server's log.
async fn said(db: &Db, word: &str) -> [usize; 3] {
    db.set_job_config("tells", 1, &BTreeMap::from([("word", word)])).await.unwrap();
    let worker = worker(db, jobs()).await;
    let well = run_everything(db, word, true).await;
    let badly = run_everything(db, word, false).await;
    let failed = crate::words::fails_with(word.to_owned()).enqueue(db).await.unwrap();
    assert!(runledger_tests::rows::soon(failed.result()).await.is_err());
    let fork = well.fork("publish:state").await.unwrap();
    assert_eq!(runledger_tests::rows::soon(fork.result()).await.unwrap(), word);
    let revived = badly.rerun().await.unwrap();
    revived.cancel("not needed").await.unwrap();
    eventually(async || revived.state().await.unwrap(), |state| state.is_terminal()).await;
    worker.stop().await;
    let id = well.id().to_string();
    let ours = String::from_utf8_lossy(&log().0.lock().unwrap()).into_owned();
    let theirs = server_log(db).await;
    assert!(ours.contains("a try of a step failed"), "nothing is logged");
    assert!(theirs.as_ref().is_none_or(|log| log.contains(&id)), "the server logs no parameters");
    [tables(db).await, ours, theirs.unwrap_or_default()].map(|text| text.matches(word).count())
}

/// Makes the server log every statement of a database, with its parameters.
async fn logged(fixture: Fixture) -> Fixture {
    let name: String = scalar(&fixture.db, "select current_database()::text").await;
    for setting in ["log_min_duration_statement = 0", "log_parameter_max_length = -1"] {
        execute(&fixture.db, &format!("alter database {name} set {setting}")).await;
    }
    let db = Db::connect(fixture.database.url()).await.unwrap();
    Fixture { db, ..fixture }
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_payload_appears_in_no_table_or_log() {
    log();
    let Fixture { db, database: _database } = logged(Fixture::new().await).await;
    let word = marker();
    assert_eq!(said(&db.with_codec(codec()), &word).await, [0; 3]);
}

/// Shows that the test above can fail.
#[tokio::test(flavor = "multi_thread")]
async fn plain_payload_appears_in_tables_and_logs() {
    log();
    let Fixture { db, database: _database } = logged(Fixture::new().await).await;
    let word = marker();
    let [tables, ours, theirs] = said(&db, &word).await;
    assert!(tables > 30 && ours > 3, "{tables} {ours}");
    assert!(theirs > 30 || server_log(&db).await.is_none(), "{theirs}");
}
