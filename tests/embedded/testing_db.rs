//! The databases of tests, as tests use them: several in this process, and several processes under
//! nextest.

use std::sync::atomic::{AtomicU32, Ordering};

use runledger_tests::testing_db::TestDb;
use sqlx::{Connection, PgConnection};

const SQL: &str = "create table item (id int primary key); insert into item values (1)";

async fn migrate(url: &str) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::raw_sql(SQL).execute(&mut connection).await?;
    connection.close().await
}

async fn count(db: &TestDb) -> i64 {
    let mut connection = db.connect().await.unwrap();
    sqlx::query_scalar("select count(*) from item").fetch_one(&mut connection).await.unwrap()
}

async fn writes_are_seen_by_this_test_only(id: i32) {
    let db = TestDb::new(SQL, migrate).await;
    let pool = db.pool(2).await.unwrap();
    sqlx::query("insert into item values ($1)").bind(id).execute(&pool).await.unwrap();
    pool.close().await;
    assert_eq!(count(&db).await, 2);
    assert_eq!(count(&TestDb::new(SQL, migrate).await).await, 1);
}

macro_rules! isolated {
    ($($name:ident $id:literal)*) => { $(
        #[tokio::test]
        async fn $name() {
            writes_are_seen_by_this_test_only($id).await;
        }
    )* };
}
isolated! {
    writes_of_test_two_are_its_own 2
    writes_of_test_three_are_its_own 3
    writes_of_test_four_are_its_own 4
    writes_of_test_five_are_its_own 5
    writes_of_test_six_are_its_own 6
    writes_of_test_seven_are_its_own 7
    writes_of_test_eight_are_its_own 8
    writes_of_test_nine_are_its_own 9
}

#[tokio::test]
async fn template_is_migrated_once_until_its_migrations_change() {
    let n_migrated = AtomicU32::new(0);
    let counted = async |url: &str| {
        n_migrated.fetch_add(1, Ordering::Relaxed);
        migrate(url).await
    };
    let unique = |n: u32| {
        format!("{SQL} -- {} {n} {:?}", std::process::id(), std::time::SystemTime::UNIX_EPOCH.elapsed())
    };
    let (one, two) = (unique(1), unique(2));
    let _ = tokio::join!(TestDb::new(&one, counted), TestDb::new(&one, counted), TestDb::new(&one, counted));
    assert_eq!(n_migrated.load(Ordering::Relaxed), 1);
    TestDb::new(&two, counted).await;
    assert_eq!(n_migrated.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn template_is_rebuilt_after_failed_migration() {
    let text =
        format!("fails at first {} {:?}", std::process::id(), std::time::SystemTime::UNIX_EPOCH.elapsed());
    let failing = async |url: &str| {
        migrate(url).await?;
        Err(sqlx::Error::RowNotFound)
    };
    let failed = tokio::spawn({
        let text = text.clone();
        async move { TestDb::new(&text, failing).await }
    });
    assert!(failed.await.unwrap_err().is_panic());
    assert_eq!(count(&TestDb::new(&text, migrate).await).await, 1);
}
