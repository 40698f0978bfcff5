//! A transactional outbox without an outbox table: one commit writes a row, enqueues the run that
//! publishes it, and sends a signal to another run.
//!
//! `cargo example outbox`
#![expect(clippy::print_stdout, reason = "the program's output is for the person who runs it")]

use runledger::prelude::*;
use uuid::Uuid;

const TABLES: &str = "
    create schema if not exists club;
    drop table if exists club.member;
    create table club.member (id bigint generated always as identity primary key, name text not null unique);";

/// Publishes the new member. Every attempt uses the same idempotency key.
#[job(max_attempts = 10)]
async fn send_welcome(name: String, #[inject] context: &Context) -> Result<String> {
    Ok(format!("welcome {name} (message {})", &context.idempotency_key().simple().to_string()[..6]))
}

/// Waits for two members to join.
#[workflow]
async fn counts_two(wf: &Wf) -> Result<Vec<String>> {
    Ok(vec![wf.signal("joined").await?, wf.signal("joined").await?])
}

/// Does everything in the caller's transaction.
async fn join(tx: &mut Tx, db: &Db, name: &str, counter: Uuid) -> Result<Uuid> {
    sqlx::query("insert into club.member (name) values ($1)").bind(name).execute(&mut **tx).await?;
    let welcome = send_welcome(name.to_owned()).idempotency_key(name).enqueue(&mut *tx).await?;
    db.run(counter).signal("joined", name).send(&mut *tx).await?;
    Ok(welcome.id())
}

/// Does the same in a workflow. The step's record is part of the commit.
#[workflow]
async fn enrol(wf: &Wf, name: String, counter: Uuid, #[inject] db: &Db) -> Result<Uuid> {
    let joined = wf.tx("join", |mut tx| {
        let name = &name;
        async move {
            sqlx::query("insert into club.member (name) values ($1)").bind(name).execute(&mut *tx).await?;
            let welcome = send_welcome(name.clone()).idempotency_key(name).enqueue(&mut tx).await?;
            db.run(counter).signal("joined", name).send(&mut tx).await?;
            Ok::<_, Error>(welcome.id())
        }
    });
    Ok(joined.await?)
}

#[tokio::main]
async fn main() -> Result<()> {
    if runledger_examples::helped(
        "usage: cargo example outbox\n\nA transactional outbox without an outbox table: a row, the run that tells the world of it, and the signal to another run are one commit.",
    ) {
        return Ok(());
    }
    let db = Db::from_env().await?;
    sqlx::raw_sql(TABLES).execute(db.pool()).await?;
    let worker = App::new(db.clone()).provide(db.clone()).start().await?;
    let counter = counts_two().enqueue(&db).await?;

    let mut tx = db.begin().await?;
    join(&mut tx, &db, "nobody", counter.id()).await?;
    tx.rollback().await?; // no row, no run, no signal

    let mut tx = db.begin().await?;
    let ada = join(&mut tx, &db, "ada", counter.id()).await?;
    tx.commit().await?;
    println!("{}", RunHandle::attach(send_welcome, &db, ada).result().await?);

    let bob = enrol("bob".to_owned(), counter.id()).enqueue(&db).await?.result().await?;
    println!("{}", RunHandle::attach(send_welcome, &db, bob).result().await?);
    println!("counted: {}", counter.result().await?.join(", "));
    worker.stop().await;
    Ok(())
}

/// Runs the example with a crash at every write:
/// `cargo test -p runledger-examples --bin outbox -- --ignored`.
#[cfg(test)]
mod tests {
    use runledger::testing::Testing;

    use super::*;

    #[tokio::test]
    #[ignore = "slow: `cargo exhaustive`"]
    async fn enrolment_adds_one_member_welcome_and_signal_despite_crashes() -> Result<()> {
        let test = Testing::new().await?.provide_with(Db::clone);
        sqlx::raw_sql(TABLES).execute(test.db().pool()).await?;
        let counter = counts_two().enqueue(test.db()).await?.id();
        let crashes = test
            .crash_everywhere(enrol("bob".to_owned(), counter))
            .invariant(move |end| async move {
                let (welcome, pool) = (*end.result()?, end.db().pool());
                let members = sqlx::query_scalar::<_, String>("select name from club.member").fetch_all(pool);
                assert_eq!(members.await?, ["bob".to_owned()]);
                let welcomes = "select run_id from runledger.run where job = 'send_welcome'";
                let welcomes = sqlx::query_scalar::<_, Uuid>(welcomes);
                assert_eq!(welcomes.fetch_all(pool).await?, [welcome]);
                let joined = "select count(*) from runledger.signal where run_id = $1";
                let joined = sqlx::query_scalar::<_, i64>(joined).bind(counter);
                assert_eq!(joined.fetch_one(pool).await?, 1);
                Ok(())
            })
            .await?;
        assert!(crashes.n_crashes() > 5, "{crashes}");
        Ok(())
    }
}
