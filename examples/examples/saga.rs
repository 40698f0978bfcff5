//! A saga: each booking has a compensation. If the last booking fails, any worker compensates the
//! others in reverse order.
//!
//! `cargo example saga`
#![expect(clippy::print_stdout, reason = "the program's output is for the person who runs it")]

use runledger::prelude::*;

const TABLES: &str = "create schema if not exists trip; drop table if exists trip.log; create table trip.log (n serial, what text not null)";

/// Books something. The booking and the record of its step commit together.
#[job(max_attempts = 2, backoff = "10ms..50ms")]
async fn book(what: &str, #[inject] tx: &mut Tx) -> Result<String> {
    if what == "car" {
        return Err(Error::terminal("no cars left"));
    }
    sqlx::query("insert into trip.log (what) values ($1)").bind(what).execute(&mut **tx).await?;
    Ok(format!("{what}-booking"))
}

/// Cancels a booking.
#[job]
async fn cancel(booking: &str, #[inject] tx: &mut Tx) -> Result<()> {
    let insert = sqlx::query("insert into trip.log (what) values ('cancelled ' || $1)");
    insert.bind(booking).execute(&mut **tx).await?;
    Ok(())
}

#[workflow]
async fn trip(wf: &Wf, with_car: bool, confirmed_by_customer: bool) -> Result<Vec<String>> {
    let saga = wf.saga();
    let mut bookings = Vec::new();
    for what in ["flight", "hotel"] {
        bookings.push(saga.run(book(what), |booking| cancel(booking)).await?);
    }
    if with_car {
        // If this fails, the engine first compensates the steps above, and then the run fails.
        bookings.push(saga.run(book("car"), |booking| cancel(booking)).await?);
    }
    if !confirmed_by_customer {
        saga.compensate().await; // compensates too, because the code asks for it
        return Ok(Vec::new());
    }
    Ok(bookings)
}

#[tokio::main]
async fn main() -> Result<()> {
    if runledger_examples::helped(
        "usage: cargo example saga\n\nA saga: each booking says how to take it back; when the last one fails, the others are taken back in reverse order, by any worker.",
    ) {
        return Ok(());
    }
    let db = Db::from_env().await?;
    sqlx::raw_sql(TABLES).execute(db.pool()).await?;
    let worker = App::new(db.clone()).start().await?;
    for (name, with_car, confirmed) in
        [("kept", false, true), ("failed", true, true), ("not confirmed", false, false)]
    {
        sqlx::raw_sql("truncate trip.log").execute(db.pool()).await?;
        let run = trip(with_car, confirmed).enqueue(&db).await?;
        let end = match run.result().await {
            Ok(bookings) => format!("{} bookings", bookings.len()),
            Err(error) => format!("{:?}", Error::from(error)),
        };
        let log: Vec<String> =
            sqlx::query_scalar("select what from trip.log order by n").fetch_all(db.pool()).await?;
        println!("{name}: {end}\n  {}", log.join(", "));
    }
    worker.stop().await;
    Ok(())
}

/// Runs the example with a crash at every write:
/// `cargo test -p runledger-examples --bin saga -- --ignored`.
#[cfg(test)]
mod tests {
    use runledger::RunState;
    use runledger::testing::Testing;

    use super::*;

    /// Checks the log at the end, after any crash of a worker.
    async fn logs(with_car: bool, confirmed: bool, expected: &'static [&'static str]) -> Result<()> {
        let test = Testing::new().await?;
        sqlx::raw_sql(TABLES).execute(test.db().pool()).await?;
        let crashes = test
            .crash_everywhere(trip(with_car, confirmed))
            .expect_state(if with_car { RunState::Failed } else { RunState::Completed })
            .invariant(move |end| async move {
                assert_eq!(end.result().is_err(), with_car);
                let log = "select what from trip.log order by n";
                let log: Vec<String> = sqlx::query_scalar(log).fetch_all(end.db().pool()).await?;
                assert_eq!(log, expected);
                Ok(())
            })
            .await?;
        assert!(crashes.n_crashes() > 10, "{crashes}");
        Ok(())
    }

    #[tokio::test]
    #[ignore = "slow: `cargo exhaustive`"]
    async fn trip_is_booked_or_compensated_in_full_despite_crashes() -> Result<()> {
        let undone = &["flight", "hotel", "cancelled hotel-booking", "cancelled flight-booking"];
        logs(false, true, &undone[..2]).await?;
        logs(true, true, undone).await?;
        logs(false, false, undone).await
    }
}
