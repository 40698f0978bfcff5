//! The grants of `docs/roles.md` suffice for each role, and give no more.

use runledger::prelude::*;
use runledger::{ClientError, Scope};
use runledger_tests::Fixture;
use runledger_tests::rows::{soon, worker};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

#[job]
async fn role_double(n: i64) -> Result<i64> {
    Ok(n * 2)
}

#[workflow]
async fn role_waits(wf: &Wf) -> Result<i64> {
    let n: i64 = wf.signal("number").await?;
    let child = wf.start(role_double(n)).await?;
    Ok(child.result().await?)
}

/// The SQL blocks of the page, for roles of this database alone.
fn blocks(database: &str) -> Vec<String> {
    include_str!("../../docs/roles.md")
        .split("```sql\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .map(|sql| {
            sql.replace("on database app ", &format!("on database {database} "))
                .replace("app_owner", &format!("{database}_owner"))
                .replace("app_viewer", &format!("{database}_viewer"))
                .replace(" app;", &format!(" {database}_app;"))
                .replace(" app,", &format!(" {database}_app,"))
                .replace(" app login", &format!(" {database}_app login"))
                .replace(" login;", " login password 'secret';")
        })
        .collect()
}

fn url_of(url: &str, role: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let address = rest.rsplit_once('@').map_or(rest, |(_, address)| address);
    format!("{scheme}://{role}:secret@{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_of_the_page_suffice_for_each_role() {
    let fixture = Fixture::new().await;
    let mut admin = fixture.database.connect().await.unwrap();
    admin.execute("drop schema runledger cascade").await.unwrap();
    let database: String =
        sqlx::query_scalar("select current_database()").fetch_one(&mut admin).await.unwrap();
    let [roles, grants] = blocks(&database).try_into().unwrap();
    admin.execute(AssertSqlSafe(roles)).await.unwrap();
    let url = |role: &str| url_of(fixture.database.url(), &format!("{database}_{role}"));

    let refused = Db::connect(&url("app")).await.unwrap_err();
    assert!(matches!(refused, ClientError::Migrate(_)), "{refused:?}");
    Db::connect(&url("owner")).await.unwrap();
    PgConnection::connect(&url("owner")).await.unwrap().execute(AssertSqlSafe(grants)).await.unwrap();

    let db = Db::connect(&url("app")).await.unwrap();
    let working = worker(&db, jobs![role_double, role_waits]).await;
    let handle = role_waits().idempotency_key("once").enqueue(&db).await.unwrap();
    db.signal(handle.id(), "number", &4_i64).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), 8);
    working.stop().await;
    let mut app = PgConnection::connect(&url("app")).await.unwrap();
    for beyond in
        ["truncate runledger.run cascade", "drop table runledger.log", "create table runledger.x ()"]
    {
        let error = app.execute(beyond).await.unwrap_err().into_database_error().unwrap();
        assert_eq!(error.code().as_deref(), Some("42501"), "{beyond}: {error}");
    }

    let viewer = Db::connect_to_look(&url("viewer")).await.unwrap();
    assert_eq!(viewer.runs(Scope::All).limit(5).await.unwrap().runs.len(), 2);
    let written = sqlx::query("delete from runledger.log").execute(viewer.pool()).await.unwrap_err();
    assert_eq!(written.into_database_error().unwrap().code().as_deref(), Some("42501"));

    for role in ["app", "viewer", "owner"] {
        let dropped = format!("drop owned by {database}_{role} cascade; drop role {database}_{role}");
        admin.execute(AssertSqlSafe(dropped)).await.unwrap();
    }
}
