//! Support for the tests: a database for each test, and waiting without sleeps.

pub mod chain;
pub mod check;
pub mod crashing;
pub mod golden;
pub mod logs;
pub mod pooler;
pub mod proxy;
pub mod rows;
pub mod seed;
pub mod suspects;
pub mod testing_db;
pub mod tools;

use std::fmt::Debug;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use runledger::Db;
use testing_db::TestDb;

/// A database with our schema, for one test.
#[derive(Debug)]
pub struct Fixture {
    /// The client.
    pub db: Db,
    /// The database. It is dropped with the fixture.
    pub database: TestDb,
}

impl Fixture {
    /// Creates a database with our schema.
    ///
    /// # Panics
    /// If there is no server.
    pub async fn new() -> Self {
        let migrations: String =
            runledger::__private::MIGRATIONS.iter().map(|migration| migration.sql).collect();
        let database = TestDb::new(&migrations, async |url: &str| Db::connect(url).await.map(drop)).await;
        let db = Db::connect(database.url()).await.unwrap_or_else(|error| unreachable!("{error}"));
        Self { db, database }
    }
}

/// The limit of [`eventually`]: far more than the slowest machine needs.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The environment variable that replaces [`PATIENCE`], in seconds. With a mutant, some tests wait
/// for an event that never comes.
pub const PATIENCE_VARIABLE: &str = "RUNLEDGER_TEST_PATIENCE";

/// Returns [`PATIENCE`], or the value of [`PATIENCE_VARIABLE`].
///
/// # Panics
/// If the value is not a number.
#[must_use]
pub fn patience() -> Duration {
    static SECONDS: LazyLock<Option<u64>> = LazyLock::new(|| {
        let text = std::env::var(PATIENCE_VARIABLE).ok()?;
        Some(
            text.parse()
                .unwrap_or_else(|_| unreachable!("`{PATIENCE_VARIABLE}` is `{text}`, no number of seconds")),
        )
    });
    SECONDS.map_or(PATIENCE, Duration::from_secs)
}

/// The interval between two polls of [`eventually`]. Each poll may cost the server ten statements.
const REST: Duration = Duration::from_millis(20);

/// Polls until the answer is as wanted, and returns it.
///
/// # Panics
/// After [`patience`]. The message has the last answer.
pub async fn eventually<T: Debug>(ask: impl AsyncFn() -> T, wanted: impl Fn(&T) -> bool) -> T {
    let (began, patience) = (Instant::now(), patience());
    loop {
        let answer = ask().await;
        if wanted(&answer) {
            return answer;
        }
        assert!(began.elapsed() < patience, "still {answer:?} after {patience:?}");
        tokio::time::sleep(REST).await;
    }
}
