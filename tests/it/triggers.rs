//! Triggers of the operator on the engine's tables, which fail for one run with the error of another server.

use futures::future::join_all;
use runledger::prelude::*;
use runledger_tests::Fixture;
use runledger_tests::rows::{execute, scalar, soon, until, worker};

/// Codes that a foreign table can pass on, and that the server itself gives for its own locks, limits and end.
const CODES: [&str; 6] = ["55P03", "57014", "25P03", "08006", "57P01", "58030"];

#[job]
async fn triggers_says(word: String) -> Result<String> {
    Ok(word)
}

/// Refuses the row of a run in `table` with this code, for as long as the run is in `poison`.
async fn refuse(db: &Db, table: &str, code: &str, run: &runledger::Handle<impl runledger::Job>) {
    let trigger = format!(
        "create table public.poison (run_id uuid); insert into public.poison values ('{}');
         create function public.refuse() returns trigger language plpgsql as $$
         begin
             if exists (select from public.poison where run_id = new.run_id) then
                 raise exception 'elsewhere' using errcode = '{code}';
             end if;
             return new;
         end $$;
         create trigger refuses before insert on runledger.{table} for each row execute function public.refuse()",
        run.id()
    );
    execute(db, &trigger).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn end_that_a_trigger_refuses_waits_alone_whatever_the_code() {
    join_all(CODES.map(async |code| {
        let Fixture { db, database: _database } = Fixture::new().await;
        let poison = triggers_says("poison".into()).enqueue(&db).await.unwrap();
        refuse(&db, "outcome", code, &poison).await;
        let mut others = Vec::new();
        for _ in 0..10 {
            others.push(triggers_says("other".into()).enqueue(&db).await.unwrap());
        }
        let worker = worker(&db, jobs![triggers_says]).await;
        for other in others {
            assert_eq!(soon(other.result()).await.unwrap(), "other", "{code}");
        }
        let later = triggers_says("later".into()).enqueue(&db).await.unwrap();
        assert_eq!(soon(later.result()).await.unwrap(), "later", "{code}");
        execute(&db, "delete from public.poison").await;
        assert_eq!(soon(poison.result()).await.unwrap(), "poison", "{code}");
        worker.stop().await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orphan_that_a_trigger_refuses_to_queue_holds_no_other() {
    join_all(CODES.map(async |code| {
        let Fixture { db, database: _database } = Fixture::new().await;
        let mut runs = Vec::new();
        for _ in 0..4 {
            runs.push(triggers_says("back".into()).enqueue(&db).await.unwrap());
        }
        let orphans = "with taken as (delete from runledger.ready returning run_id)
            insert into runledger.lease (run_id, token, worker_id, attempt, crashes, claims, claimed_at)
            select run_id, gen_random_uuid(), 1, 1, 0, 1, now() from taken";
        execute(&db, orphans).await;
        refuse(&db, "ready", code, &runs[1]).await;
        let worker = worker(&db, jobs![triggers_says]).await;
        for run in [&runs[0], &runs[2], &runs[3]] {
            assert_eq!(soon(run.result()).await.unwrap(), "back", "{code}");
        }
        assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.lease").await, 1);
        execute(&db, "delete from public.poison").await;
        until(&db, runs[1].id(), |info| info.state == runledger::RunState::Completed).await;
        worker.stop().await;
    }))
    .await;
}
