//! The order: a retried payment, a refused payment, and a transaction that is rolled back.

use runledger_tests::Fixture;

use crate::program::{example, run};

#[tokio::test]
async fn retried_charge_is_booked_once_and_rollback_leaves_nothing() {
    let fixture = Fixture::new().await;
    let output = run(&mut example("order", &fixture)).output();
    for expected in [
        "order 1: paid, receipt ",
        "try 1 of step `charge` failed: connection reset",
        "try 2 of step `charge` failed: connection reset",
        "order 2: refused, run `",
        "failed: step `charge` failed: 0 cents cannot be charged",
        "order 3: rolled back, there is no run `",
    ] {
        assert!(output.contains(expected), "no `{expected}` in:\n{output}");
    }
    assert_eq!(output.matches("under its key: nothing new").count(), 2, "{output}");

    let pool = fixture.db.pool();
    let orders: Vec<(i64, i64)> = sqlx::query_as("select id, cents from shop.customer_order order by id")
        .fetch_all(pool)
        .await
        .unwrap();
    assert_eq!(orders, [(1, 4200), (2, 0)]);
    let sales: Vec<(i64, i64)> =
        sqlx::query_as("select order_id, cents from shop.sale").fetch_all(pool).await.unwrap();
    assert_eq!(sales, [(1, 4200)]);
    let runs: Vec<(String, String)> =
        sqlx::query_as("select idempotency_key, state from runledger.run_state order by created_at")
            .fetch_all(pool)
            .await
            .unwrap();
    let expected = [("order-1", "completed"), ("order-2", "failed")];
    assert_eq!(runs, expected.map(|(key, state)| (key.to_owned(), state.to_owned())));
    let tries: i64 = sqlx::query_scalar("select count(*) from runledger.attempt where step_key = 'charge'")
        .fetch_one(pool)
        .await
        .unwrap();
    assert_eq!(tries, 2, "the terminal error of order 2 was not retried");
}
