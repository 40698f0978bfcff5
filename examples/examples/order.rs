//! An order. One transaction enqueues its checkout and writes its row, the payment is retried, and
//! a transactional step books the sale.
//!
//! `cargo order`
#![expect(clippy::print_stdout, reason = "the program's output is for the person who runs it")]

use std::sync::atomic::{AtomicU32, Ordering};

use runledger::prelude::*;
use uuid::Uuid;

/// The tables of the shop, outside the schema of Runledger.
const TABLES: &str = "
    create schema if not exists shop;
    create table if not exists shop.customer_order (id bigint generated always as identity primary key, cents bigint not null);
    create table if not exists shop.sale (order_id bigint not null, cents bigint not null, receipt text not null);";

/// A payment service that is down for its first two calls.
struct Gateway {
    n_calls: AtomicU32,
}

impl Gateway {
    /// Charges once per `key`, however often the caller repeats the call. This is the purpose of an
    /// idempotency key.
    async fn charge(&self, key: Uuid, cents: i64) -> Result<String, std::io::Error> {
        match self.n_calls.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err(std::io::ErrorKind::ConnectionReset.into()),
            _ => Ok(format!("receipt {} over {cents} cents", &key.simple().to_string()[..8])),
        }
    }
}

/// Charges the money. An error is retried unless it is terminal.
#[job(max_attempts = 5, backoff = "100ms..1s")]
async fn charge(cents: i64, #[inject] gateway: &Gateway, #[inject] context: &Context) -> Result<String> {
    if cents <= 0 {
        return Err(Error::terminal(format!("{cents} cents cannot be charged")));
    }
    Ok(gateway.charge(context.idempotency_key(), cents).await?)
}

/// Books the sale. The row and the record of this step are one commit, so there is one row after
/// any number of attempts.
#[job]
async fn book(order_id: i64, cents: i64, receipt: &str, #[inject] tx: &mut Tx) -> Result<i64> {
    let insert = sqlx::query("insert into shop.sale (order_id, cents, receipt) values ($1, $2, $3)");
    insert.bind(order_id).bind(cents).bind(receipt).execute(&mut **tx).await?;
    Ok(sqlx::query_scalar("select count(*) from shop.sale").fetch_one(&mut **tx).await?)
}

#[workflow]
async fn checkout(wf: &Wf, order_id: i64, cents: i64) -> Result<String> {
    let receipt = wf.run(charge(cents)).await?;
    let n_sales = wf.run(book(order_id, cents, &receipt)).await?;
    Ok(format!("{receipt}; sales booked so far: {n_sales}"))
}

/// Writes the order's row and enqueues its checkout in the caller's transaction, so that both
/// happen or neither.
async fn place(tx: &mut Tx, cents: i64) -> Result<(i64, Uuid)> {
    let insert = sqlx::query_scalar("insert into shop.customer_order (cents) values ($1) returning id");
    let order_id = insert.bind(cents).fetch_one(&mut **tx).await?;
    let run = checkout(order_id, cents).idempotency_key(format!("order-{order_id}")).enqueue(tx).await?;
    Ok((order_id, run.id()))
}

#[tokio::main]
async fn main() -> Result<()> {
    if runledger_examples::helped(
        "usage: cargo order\n\nAn order: its row and its checkout are enqueued in one transaction; the payment is retried; the sale is booked in a transactional step.",
    ) {
        return Ok(());
    }
    let db = Db::from_env().await?;
    sqlx::raw_sql(TABLES).execute(db.pool()).await?;
    let gateway = Gateway { n_calls: AtomicU32::new(0) };
    let worker = App::new(db.clone()).provide(gateway).start().await?;

    for cents in [4200, 0] {
        let mut tx = db.begin().await?;
        let (order_id, run_id) = place(&mut tx, cents).await?;
        tx.commit().await?;
        let run = RunHandle::attach(checkout, &db, run_id);
        match run.result().await {
            Ok(receipt) => println!("order {order_id}: paid, {receipt}"),
            Err(error) => println!("order {order_id}: refused, {:?}", Error::from(error)),
        }
        for tried in run.attempts().await?.iter().filter(|tried| !tried.step_key.is_empty()) {
            let failure = tried.error.as_ref().map(ToString::to_string).unwrap_or_default();
            println!("  try {} of step `{}` failed: {failure}", tried.attempt, tried.step_key);
        }
        let again =
            checkout(order_id, cents).idempotency_key(format!("order-{order_id}")).enqueue(&db).await?;
        println!(
            "  enqueued again under its key: {}",
            if again.created() { "a second run" } else { "nothing new" }
        );
    }

    let mut tx = db.begin().await?;
    let (order_id, run_id) = place(&mut tx, 9900).await?;
    tx.rollback().await?;
    let run = db.run(run_id).info().await.map_err(Error::from);
    println!(
        "order {order_id}: rolled back, {}",
        run.map_or_else(|error| error.to_string(), |run| run.state.to_string())
    );
    worker.stop().await;
    Ok(())
}

/// Runs the example with a crash at every write:
/// `cargo test -p runledger-examples --bin order -- --ignored`.
#[cfg(test)]
mod tests {
    use runledger::testing::Testing;

    use super::*;

    #[tokio::test]
    #[ignore = "slow: `cargo exhaustive`"]
    async fn order_completes_with_one_booked_sale_despite_crashes() -> Result<()> {
        let test = Testing::new().await?.provide_shared_fake(|| Gateway { n_calls: AtomicU32::new(0) });
        sqlx::raw_sql(TABLES).execute(test.db().pool()).await?;
        let crashes = test
            .crash_everywhere(checkout(7, 4200))
            .invariant(|end| async move {
                assert!(end.result()?.ends_with("over 4200 cents; sales booked so far: 1"));
                let sales = sqlx::query_scalar::<_, i64>("select count(*) from shop.sale where order_id = 7");
                assert_eq!(sales.fetch_one(end.db().pool()).await?, 1);
                Ok(())
            })
            .await?;
        assert!(crashes.n_crashes() > 10, "{crashes}");
        Ok(())
    }
}
