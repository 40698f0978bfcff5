//! Sleeps, children, and steps between attempts.

use std::time::Duration;

use runledger::prelude::*;

use super::stage::{
    Case, DAY, Expected, asleep, by_name, changes, definition, held, lost, missing, one, quick,
};

changes! {
    another_duration_of_a_recorded_sleep({}) Fine
    old (wf: &Wf) { wf.sleep(DAY).await?; Ok(0) }
    new (wf: &Wf) { wf.sleep(DAY * 2).await?; Ok(0) }

    another_instant_of_a_recorded_sleep({}) Fine
    old (wf: &Wf) { let day = wf.now() + DAY; wf.sleep_until(day).await?; Ok(0) }
    new (wf: &Wf) { let week = wf.now() + DAY * 7; wf.sleep_until(week).await?; one(wf, "a").await }

    a_sleep_until_an_instant_that_is_over({}) Fine
    old (wf: &Wf) { wf.sleep_until(std::time::UNIX_EPOCH).await?; one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { wf.sleep_until(std::time::UNIX_EPOCH + DAY * 40_000).await?; one(wf, "a").await?; asleep(wf).await }

    a_step_behind_a_wait_for_a_child({}) Fine
    old (wf: &Wf) { wf.start(lost(1)).await?.result().await.map_err(Into::into) }
    new (wf: &Wf) { let n = wf.start(lost(1)).await?.result().await?; one(wf, "a").await?; Ok(n) }

    options_of_a_started_child({}) Fine
    old (wf: &Wf) { wf.start(lost(1)).await?.result().await.map_err(Into::into) }
    new (wf: &Wf) { wf.start(lost(1).priority(5).queue("verify.else")).await?.result().await.map_err(Into::into) }

    a_sleep_beside_the_wait_for_a_child({}) Fine
    old (wf: &Wf) { wf.start(lost(1)).await?.result().await.map_err(Into::into) }
    new (wf: &Wf) {
        let child = wf.start(lost(1)).await?;
        tokio::select! {
            biased;
            result = child.result() => result.map_err(Into::into),
            slept = wf.sleep(DAY) => { slept?; Ok(0) }
        }
    }

    a_wait_for_a_child_given_up({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; wf.start(lost(1)).await?.result().await.map_err(Into::into) }
    new (wf: &Wf) { one(wf, "a").await?; wf.start(lost(1)).await?; Ok(0) }

    a_retry_under_way_with_other_delays({}) Fine
    old (wf: &Wf) {
        let failing = wf.step("a", || async { Err::<u64, _>(Error::from("not yet")) });
        Ok(failing.backoff(DAY, DAY).await?)
    }
    new (wf: &Wf) {
        let failing = wf.step("a", || async { Err::<u64, _>(Error::from("not yet")) });
        Ok(failing.backoff(DAY * 2, DAY * 2).max_attempts(9).await?)
    }

    a_child_that_has_ended({}) Fine
    old (wf: &Wf) { let n = wf.start(quick(1)).await?.result().await?; asleep(wf).await?; Ok(n) }
    new (wf: &Wf) {
        let child = wf.start(quick(1)).await?;
        let n = child.result().await?;
        assert_eq!(n, 1);
        asleep(wf).await?;
        one(wf, "b").await
    }

    a_sleep_that_is_over({}) Fine
    old (wf: &Wf) { wf.sleep(Duration::from_millis(1)).await?; one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { wf.sleep(DAY).await?; one(wf, "a").await?; asleep(wf).await?; one(wf, "b").await }

    a_branch_that_lost_a_race({}) Fine
    old (wf: &Wf) {
        tokio::select! {
            biased;
            slept = wf.sleep(DAY) => slept?,
            a = one(wf, "a") => { a?; }
        }
        asleep(wf).await
    }
    new (wf: &Wf) {
        tokio::select! {
            biased;
            slept = wf.sleep(DAY) => { slept?; one(wf, "late").await?; }
            a = one(wf, "a") => { a?; }
        }
        asleep(wf).await
    }

    a_step_behind_a_wait_for_a_signal({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; Ok(wf.signal::<u64>("go").await?) }
    new (wf: &Wf) { one(wf, "a").await?; wf.signal::<u64>("go").await?; one(wf, "b").await }

    a_limit_for_a_wait_under_way({}) Fine
    old (wf: &Wf) { Ok(wf.signal::<u64>("go").await?) }
    new (wf: &Wf) { Ok(wf.signal::<u64>("go").timeout(DAY).await?.unwrap_or(0)) }

    a_wait_for_a_signal_before_a_step({}) Breaks("a", "step `signal[go]` stands where `a` was recorded (step 1)")
    old (wf: &Wf) { one(wf, "a").await?; Ok(wf.signal::<u64>("go").await?) }
    new (wf: &Wf) { wf.signal::<u64>("go").await?; one(wf, "a").await }

    a_sleep_before_the_recorded_one({}) Breaks("a", "step `sleep` stands where `a` was recorded (step 1)")
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { wf.sleep(Duration::from_millis(1)).await?; one(wf, "a").await?; asleep(wf).await }

    a_sleep_removed({}) Breaks("sleep", "step `a` stands where `sleep` was recorded (step 1)")
    old (wf: &Wf) { wf.sleep(Duration::from_millis(1)).await?; one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }

    an_instant_instead_of_the_length_of_a_sleep({}) Breaks("sleep", "step `sleep_until` stands where `sleep` was recorded (step 1)")
    old (wf: &Wf) { asleep(wf).await }
    new (wf: &Wf) { wf.sleep_until(std::time::UNIX_EPOCH).await?; Ok(0) }

    a_sleep_until_an_instant_removed({}) Breaks("sleep_until", "step `sleep` stands where `sleep_until` was recorded (step 1)")
    old (wf: &Wf) { wf.sleep_until(std::time::UNIX_EPOCH).await?; asleep(wf).await }
    new (wf: &Wf) { asleep(wf).await }

    a_step_instead_of_a_sleep({}) Breaks("sleep", "step `pause` stands where `sleep` was recorded (step 1)")
    old (wf: &Wf) { asleep(wf).await }
    new (wf: &Wf) { one(wf, "pause").await }

    another_child({}) Breaks("lost", "step `missing` stands where `lost` was recorded (step 1)")
    old (wf: &Wf) { wf.start(lost(1)).await?.result().await.map_err(Into::into) }
    new (wf: &Wf) { wf.start(missing(1)).await?.result().await.map_err(Into::into) }

    another_input_of_a_child({}) Breaks("lost", "step `lost` was recorded with another input")
    old (wf: &Wf) { wf.start(lost(1)).await?.result().await.map_err(Into::into) }
    new (wf: &Wf) { wf.start(lost(2)).await?.result().await.map_err(Into::into) }

    another_child_before_the_recorded_one({}) Breaks("lost", "step `missing` stands where `lost` was recorded (step 1)")
    old (wf: &Wf) { wf.start(lost(1)).await?.result().await.map_err(Into::into) }
    new (wf: &Wf) {
        wf.start(missing(1)).await?;
        wf.start(lost(1)).await?.result().await.map_err(Into::into)
    }

    a_child_whose_result_is_not_awaited_any_more({}) Breaks("quick.result", "step `sleep` stands where `quick.result` was recorded (step 2)")
    old (wf: &Wf) { wf.start(quick(1)).await?.result().await?; asleep(wf).await }
    new (wf: &Wf) { wf.start(quick(1)).await?; asleep(wf).await }

    results_of_children_awaited_crosswise({}) Breaks("quick.result", "was recorded with another input")
    old (wf: &Wf) {
        let (a, b) = (wf.start(quick(1)).await?, wf.start(quick(2)).await?);
        a.result().await?;
        b.result().await?;
        asleep(wf).await
    }
    new (wf: &Wf) {
        let (a, b) = (wf.start(quick(1)).await?, wf.start(quick(2)).await?);
        b.result().await?;
        a.result().await?;
        asleep(wf).await
    }

    a_step_removed_beside_one_under_way({}) Breaks("a", "stands where `a` was recorded (step 1)")
    old (wf: &Wf) { let (a, b) = tokio::join!(biased; one(wf, "a"), async { held(wf, "b").await }); Ok(a? + b?) }
    new (wf: &Wf) { held(wf, "b").await }
}
