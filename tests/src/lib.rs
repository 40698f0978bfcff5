//! Support of the tests: a database of its own for each, and waiting without sleeping.

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
    /// The database, which goes with the fixture.
    pub database: TestDb,
}

impl Fixture {
    /// A fresh database with our schema.
    ///
    /// # Panics
    /// Where there is no server.
    pub async fn new() -> Self {
        let migrations: String =
            runledger::__private::MIGRATIONS.iter().map(|migration| migration.sql).collect();
        let database = TestDb::new(&migrations, async |url: &str| Db::connect(url).await.map(drop)).await;
        let db = Db::connect(database.url()).await.unwrap_or_else(|error| unreachable!("{error}"));
        Self { db, database }
    }
}

/// How long [`eventually`] waits before it gives up: far beyond what the slowest machine needs.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The variable with another patience of [`eventually`], in seconds: with a mutant, some tests wait for what never comes.
pub const PATIENCE_VARIABLE: &str = "RUNLEDGER_TEST_PATIENCE";

/// [`PATIENCE`], or what the environment says.
///
/// # Panics
/// Where that is no number.
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

/// How long [`eventually`] rests before it asks again. Each question may cost the server ten statements.
const REST: Duration = Duration::from_millis(20);

/// Asks until the answer is as wanted, and gives it.
///
/// # Panics
/// After [`patience`], with the last answer.
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
