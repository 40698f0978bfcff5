//! Maps, branches, races, markers, signals, transactions, sagas and published states.

use runledger::Job;
use runledger::prelude::*;

use super::stage::{
    Case, DAY, Expected, add, asleep, by_name, changes, definition, held, lost, one, quick, signals, stuck,
};

async fn tx(wf: &Wf, name: &str, n: u64) -> Result<u64> {
    Ok(wf
        .tx(name, |tx| async move {
            drop(tx);
            Ok::<u64, Error>(n)
        })
        .await?)
}

/// A race between two steps of a saga, and the compensation of both.
async fn undone_after_a_race<J: Job>(wf: &Wf, undo: impl Fn(u64) -> Call<J> + Send + Sync) -> Result<()> {
    let saga = wf.saga();
    wf.race([1, 2].map(|n| saga.run(add(n, 1), |n| undo(*n)))).await?;
    saga.compensate().await;
    Ok(())
}

changes! {
    another_limit_of_a_map({}) Fine
    old (wf: &Wf) { wf.map(0..5, |n| add(n, 1).key(n)).limit(2).await?; asleep(wf).await }
    new (wf: &Wf) { wf.map(0..5, |n| add(n, 1).key(n)).limit(4).await?; asleep(wf).await }

    a_lower_limit_of_a_map({}) Fine
    old (wf: &Wf) { wf.map(0..5, |n| add(n, 1).key(n)).limit(4).await?; asleep(wf).await }
    new (wf: &Wf) { wf.map(0..5, |n| add(n, 1).key(n)).limit(1).await?; asleep(wf).await }

    another_limit_of_a_map_under_way({}) Fine
    old (wf: &Wf) { wf.map([1, 2, 99], stuck).limit(1).await?; Ok(0) }
    new (wf: &Wf) { wf.map([1, 2, 99], stuck).limit(3).await?; Ok(0) }

    a_lower_limit_of_a_map_under_way({}) Fine
    old (wf: &Wf) { wf.map([99, 1, 2], stuck).limit(3).await?; Ok(0) }
    new (wf: &Wf) { wf.map([99, 1, 2], stuck).limit(1).await?; Ok(0) }

    an_item_added_to_a_map_under_way({}) Fine
    old (wf: &Wf) { wf.map([1, 2, 99], stuck).limit(1).await?; Ok(0) }
    new (wf: &Wf) { wf.map([1, 2, 99, 4], stuck).limit(1).await?; Ok(0) }

    an_item_added_to_a_map_that_has_ended({}) Breaks("sleep", "step `add[3]` stands where `sleep` was recorded (step 4)")
    old (wf: &Wf) { wf.map(0..3, |n| add(n, 1).key(n)).await?; asleep(wf).await }
    new (wf: &Wf) { wf.map(0..4, |n| add(n, 1).key(n)).await?; asleep(wf).await }

    an_item_of_a_map_removed({}) Breaks("add[2]", "no longer reaches it")
    old (wf: &Wf) { wf.map(0..3, |n| add(n, 1).key(n)).await?; asleep(wf).await }
    new (wf: &Wf) { wf.map(0..2, |n| add(n, 1).key(n)).await?; asleep(wf).await }

    another_key_of_the_items_of_a_map({}) Breaks("add[0]", "step `add[sku-0]` stands where `add[0]` was recorded (step 1)")
    old (wf: &Wf) { wf.map(0..3, |n| add(n, 1).key(n)).await?; asleep(wf).await }
    new (wf: &Wf) { wf.map(0..3, |n| add(n, 1).key(format!("sku-{n}"))).await?; asleep(wf).await }

    another_order_of_the_items_of_a_map({}) Breaks("add[0]", "step `add[1]` stands where `add[0]` was recorded (step 1)")
    old (wf: &Wf) { wf.map([0, 1], |n| add(n, 1).key(n)).await?; asleep(wf).await }
    new (wf: &Wf) { wf.map([1, 0], |n| add(n, 1).key(n)).await?; asleep(wf).await }

    outcomes_of_a_map_instead_of_its_outputs({}) Fine
    old (wf: &Wf) { wf.map(0..3, |n| add(n, 1).key(n)).await?; asleep(wf).await }
    new (wf: &Wf) { wf.map(0..3, |n| add(n, 1).key(n)).settle_all().await; asleep(wf).await }

    a_map_as_a_loop({}) Fine
    old (wf: &Wf) { wf.map(0..3, |n| add(n, 1).key(n)).limit(1).await?; asleep(wf).await }
    new (wf: &Wf) { for n in 0..3 { wf.run(add(n, 1).key(n)).await?; } asleep(wf).await }

    a_map_that_is_spread_now({}) Breaks("add[0]", "or by another call")
    old (wf: &Wf) { wf.map(0..3, |n| add(n, 1).key(n)).await?; asleep(wf).await }
    new (wf: &Wf) { wf.map(0..3, |n| add(n, 1).key(n)).as_child_runs().await?; asleep(wf).await }

    a_map_that_is_not_spread_any_more({}) Breaks("quick[0]", "or by another call")
    old (wf: &Wf) { wf.map(0..3, |n| quick(n).key(n)).limit(1).as_child_runs().await?; asleep(wf).await }
    new (wf: &Wf) { wf.map(0..3, |n| quick(n).key(n)).limit(1).await?; asleep(wf).await }

    an_item_added_to_a_spread_map_under_way({}) Fine
    old (wf: &Wf) { wf.map(0..2, |n| lost(n).key(n)).as_child_runs().await?; Ok(0) }
    new (wf: &Wf) { wf.map(0..3, |n| lost(n).key(n)).as_child_runs().await?; Ok(0) }

    the_limit_of_a_spread_map_removed({}) Breaks("quick.result", "step `quick[1]` stands where `quick.result` was recorded (step 2)")
    old (wf: &Wf) { wf.map(0..2, |n| quick(n).key(n)).as_child_runs().limit(1).await?; asleep(wf).await }
    new (wf: &Wf) { wf.map(0..2, |n| quick(n).key(n)).as_child_runs().await?; asleep(wf).await }

    branches_polled_in_another_order({}) Fine
    old (wf: &Wf) {
        let (left, right) = (wf.branch("left"), wf.branch("right"));
        tokio::try_join!(biased; one(&left, "a"), one(&right, "b"))?;
        asleep(wf).await
    }
    new (wf: &Wf) {
        let (left, right) = (wf.branch("left"), wf.branch("right"));
        tokio::try_join!(biased; one(&right, "b"), one(&left, "a"))?;
        asleep(wf).await
    }

    a_branch_appended({}) Fine
    old (wf: &Wf) { one(&wf.branch("left"), "a").await?; asleep(wf).await }
    new (wf: &Wf) { one(&wf.branch("left"), "a").await?; asleep(wf).await?; one(&wf.branch("right"), "b").await }

    a_branch_renamed({}) Breaks("left/a", "no longer reaches it")
    old (wf: &Wf) { one(&wf.branch("left"), "a").await?; asleep(wf).await }
    new (wf: &Wf) { one(&wf.branch("port"), "a").await?; asleep(wf).await }

    a_step_of_a_branch_renamed({}) Breaks("left/a", "step `left/x` stands where `left/a` was recorded (step 1)")
    old (wf: &Wf) { one(&wf.branch("left"), "a").await?; asleep(wf).await }
    new (wf: &Wf) { one(&wf.branch("left"), "x").await?; asleep(wf).await }

    a_step_moved_into_another_branch({}) Breaks("left/b", "no longer reaches it")
    old (wf: &Wf) {
        let (left, right) = (wf.branch("left"), wf.branch("right"));
        one(&left, "a").await?;
        one(&left, "b").await?;
        one(&right, "c").await?;
        asleep(wf).await
    }
    new (wf: &Wf) {
        let (left, right) = (wf.branch("left"), wf.branch("right"));
        one(&left, "a").await?;
        one(&right, "c").await?;
        one(&right, "b").await?;
        asleep(wf).await
    }

    a_step_moved_into_a_branch({}) Breaks("a", "step `sleep` stands where `a` was recorded (step 1)")
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) {
        let branch = wf.branch("left");
        tokio::try_join!(biased; one(&branch, "a"), asleep(wf))?;
        Ok(0)
    }

    a_race_with_one_more({}) Fine
    old (wf: &Wf) { wf.race([wf.run(add(1, 1)), wf.run(stuck(99))]).await?; held(wf, "end").await }
    new (wf: &Wf) { wf.race([wf.run(add(1, 1)), wf.run(stuck(99))]).await?; held(wf, "end").await?; one(wf, "more").await }

    a_race_under_way_with_one_more({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; wf.race([wf.run(stuck(98)), wf.run(stuck(99))]).await?; Ok(0) }
    new (wf: &Wf) {
        one(wf, "a").await?;
        wf.race([wf.run(stuck(98)), wf.run(stuck(99)), wf.run(stuck(97))]).await?;
        Ok(0)
    }

    a_race_in_another_order({}) Breaks("add", "was recorded (step 1)")
    old (wf: &Wf) { wf.race([wf.run(add(1, 1)), wf.step("b", std::future::pending::<Result<u64>>)]).await?; asleep(wf).await }
    new (wf: &Wf) { wf.race([wf.step("b", std::future::pending::<Result<u64>>), wf.run(add(1, 1))]).await?; asleep(wf).await }

    marks_appended({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "a").await?; asleep(wf).await?; let _ = (wf.now(), wf.uuid(), wf.random()); one(wf, "b").await }

    the_time_before_a_recorded_step({}) Breaks("a", "step `now` stands where `a` was recorded (step 1)")
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { let _ = wf.now(); one(wf, "a").await?; asleep(wf).await }

    an_id_before_a_recorded_step({}) Breaks("a", "step `uuid` stands where `a` was recorded (step 1)")
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { let _ = wf.uuid(); one(wf, "a").await?; asleep(wf).await }

    a_random_number_before_a_recorded_step({}) Breaks("a", "step `random` stands where `a` was recorded (step 1)")
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { let _ = wf.random(); one(wf, "a").await?; asleep(wf).await }

    the_time_not_asked_for_any_more({}) Breaks("now", "step `a` stands where `now` was recorded (step 1)")
    old (wf: &Wf) { let _ = wf.now(); one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }

    the_last_mark_removed({}) Breaks("uuid", "step `sleep` stands where `uuid` was recorded (step 2)")
    old (wf: &Wf) { one(wf, "a").await?; let _ = wf.uuid(); asleep(wf).await }
    new (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }

    a_mark_of_another_kind({}) Breaks("uuid", "step `random` stands where `uuid` was recorded (step 1)")
    old (wf: &Wf) { let _ = wf.uuid(); one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { let _ = wf.random(); one(wf, "a").await?; asleep(wf).await }

    a_patch_around_a_new_step_in_the_middle({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf) {
        one(wf, "a").await?;
        if wf.patched("mail") { one(wf, "new").await?; }
        one(wf, "b").await?;
        asleep(wf).await
    }

    a_patch_around_another_order({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf) {
        if wf.patched("order") { one(wf, "b").await?; one(wf, "a").await?; } else { one(wf, "a").await?; one(wf, "b").await?; }
        asleep(wf).await
    }

    a_patch_removed_while_a_run_has_it({}) Breaks("patched[mail]", "no longer reaches it")
    old (wf: &Wf) {
        one(wf, "a").await?;
        if wf.patched("mail") { one(wf, "new").await?; }
        asleep(wf).await
    }
    new (wf: &Wf) { one(wf, "a").await?; one(wf, "new").await?; asleep(wf).await }

    a_patch_removed_that_no_run_has({}) Fine
    old (wf: &Wf) {
        one(wf, "a").await?;
        asleep(wf).await?;
        if wf.patched("mail") { one(wf, "new").await?; }
        Ok(0)
    }
    new (wf: &Wf) { one(wf, "a").await?; asleep(wf).await?; one(wf, "new").await }

    a_patch_renamed({}) Breaks("patched[mail]", "no longer reaches it")
    old (wf: &Wf) { one(wf, "a").await?; let _ = wf.patched("mail"); one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "a").await?; let _ = wf.patched("post"); one(wf, "b").await?; asleep(wf).await }

    a_signal_awaited_and_renamed({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; Ok(wf.signal::<u64>("go").await?) }
    new (wf: &Wf) { one(wf, "a").await?; Ok(wf.signal::<u64>("went").await?) }

    a_signal_taken_and_renamed({}) Breaks("signal[go]", "step `signal[went]` stands where `signal[go]` was recorded (step 2)")
    old (wf: &Wf) { wf.run(signals(1)).await?; wf.signal::<u64>("go").await?; asleep(wf).await }
    new (wf: &Wf) { wf.run(signals(1)).await?; wf.signal::<u64>("went").await?; asleep(wf).await }

    a_signal_taken_and_of_another_type({}) Breaks("signal[go]", "the signal does not fit the type that this wait takes")
    old (wf: &Wf) { wf.run(signals(1)).await?; wf.signal::<u64>("go").await?; asleep(wf).await }
    new (wf: &Wf) { wf.run(signals(1)).await?; wf.signal::<String>("go").await?; asleep(wf).await }

    a_limit_for_a_signal_that_is_taken({}) Breaks("sleep", "step `signal.timeout[go]` stands where `sleep` was recorded (step 3)")
    old (wf: &Wf) { wf.run(signals(1)).await?; wf.signal::<u64>("go").await?; asleep(wf).await }
    new (wf: &Wf) { wf.run(signals(1)).await?; wf.signal::<u64>("go").timeout(DAY).await?; asleep(wf).await }

    the_limit_of_a_signal_removed({}) Breaks("signal.timeout[go]", "no longer reaches it")
    old (wf: &Wf) { Ok(wf.signal::<u64>("go").timeout(DAY).await?.unwrap_or(0)) }
    new (wf: &Wf) { Ok(wf.signal::<u64>("go").await?) }

    another_limit_of_a_signal({}) Fine
    old (wf: &Wf) { Ok(wf.signal::<u64>("go").timeout(DAY).await?.unwrap_or(0)) }
    new (wf: &Wf) { Ok(wf.signal::<u64>("go").timeout(DAY * 2).await?.unwrap_or(0)) }

    the_body_of_a_transaction({}) Fine
    old (wf: &Wf) { tx(wf, "stock", 1).await?; asleep(wf).await }
    new (wf: &Wf) { tx(wf, "stock", 2).await?; asleep(wf).await }

    a_transaction_as_a_step_of_its_name({}) Fine
    old (wf: &Wf) { tx(wf, "stock", 1).await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "stock").await?; asleep(wf).await }

    a_transaction_renamed({}) Breaks("stock", "step `store` stands where `stock` was recorded (step 1)")
    old (wf: &Wf) { tx(wf, "stock", 1).await?; asleep(wf).await }
    new (wf: &Wf) { tx(wf, "store", 1).await?; asleep(wf).await }

    a_transaction_before_a_recorded_step({}) Breaks("a", "step `stock` stands where `a` was recorded (step 1)")
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { tx(wf, "stock", 1).await?; one(wf, "a").await?; asleep(wf).await }

    another_undo_of_a_saga({}) Fine
    old (wf: &Wf) { let saga = wf.saga(); saga.run(add(1, 1), |n| quick(*n)).await?; asleep(wf).await }
    new (wf: &Wf) { let saga = wf.saga(); saga.run(add(1, 1), |n| add(*n, 9)).await?; asleep(wf).await }

    a_step_that_can_be_taken_back_now({}) Fine
    old (wf: &Wf) { wf.run(add(1, 1)).await?; asleep(wf).await }
    new (wf: &Wf) { let saga = wf.saga(); saga.run(add(1, 1), |n| quick(*n)).await?; asleep(wf).await }

    a_step_of_a_saga_as_a_plain_one({}) Fine
    old (wf: &Wf) { let saga = wf.saga(); saga.run(add(1, 1), |n| quick(*n)).await?; asleep(wf).await }
    new (wf: &Wf) { wf.run(add(1, 1)).await?; asleep(wf).await }

    another_step_of_a_saga({}) Breaks("add", "step `quick` stands where `add` was recorded (step 1)")
    old (wf: &Wf) { let saga = wf.saga(); saga.run(add(1, 1), |n| quick(*n)).await?; asleep(wf).await }
    new (wf: &Wf) { let saga = wf.saga(); saga.run(quick(1), |n| quick(*n)).await?; asleep(wf).await }

    a_saga_undone_by_the_code_no_more({}) Breaks("compensate[add]", "no longer reaches it")
    old (wf: &Wf) { let saga = wf.saga(); saga.run(add(1, 1), |n| quick(*n)).await?; saga.compensate().await; asleep(wf).await }
    new (wf: &Wf) { let saga = wf.saga(); saga.run(add(1, 1), |n| quick(*n)).await?; asleep(wf).await }

    a_loser_taken_back_by_the_code({}) Fine
    old (wf: &Wf) { undone_after_a_race(wf, quick).await?; asleep(wf).await }
    new (wf: &Wf) { undone_after_a_race(wf, |n| add(n, 9)).await?; asleep(wf).await }

    a_loser_taken_back_by_the_code_no_more({}) Breaks("saga.compensate[add]", "no longer reaches it")
    old (wf: &Wf) { undone_after_a_race(wf, quick).await?; asleep(wf).await }
    new (wf: &Wf) {
        let saga = wf.saga();
        wf.race([1, 2].map(|n| saga.run(add(n, 1), |n| quick(*n)))).await?;
        asleep(wf).await
    }

    another_published_value({}) Fine
    old (wf: &Wf) { wf.publish("status", "open").await?; asleep(wf).await }
    new (wf: &Wf) { wf.publish("status", &1).await?; asleep(wf).await }

    something_published_behind_the_record({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "a").await?; asleep(wf).await?; wf.publish("status", "late").await?; Ok(0) }

    something_published_before_a_recorded_step({}) Breaks("a", "step `publish:status` stands where `a` was recorded (step 1)")
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { wf.publish("status", "open").await?; one(wf, "a").await?; asleep(wf).await }

    a_published_name_changed({}) Breaks("publish:status", "step `publish:state` stands where `publish:status` was recorded (step 1)")
    old (wf: &Wf) { wf.publish("status", "open").await?; asleep(wf).await }
    new (wf: &Wf) { wf.publish("state", "open").await?; asleep(wf).await }

    nothing_published_any_more({}) Breaks("publish:status", "step `sleep` stands where `publish:status` was recorded (step 1)")
    old (wf: &Wf) { wf.publish("status", "open").await?; asleep(wf).await }
    new (wf: &Wf) { asleep(wf).await }
}
