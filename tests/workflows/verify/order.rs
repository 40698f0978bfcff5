//! Concurrent steps, sequential steps, and reordered steps.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use runledger::prelude::*;
use tokio::sync::oneshot;

use super::stage::{Case, Expected, add, asleep, by_name, changes, definition, gate, one};

/// A step whose result comes after the result of [`early`].
async fn late(wf: &Wf, name: &str) -> Result<u64> {
    let gate = gate(wf);
    let step = wf.step(name, move || {
        let gate = gate.clone();
        async move {
            gate.acquire().await?.forget();
            Ok::<u64, Error>(1)
        }
    });
    Ok(step.await?)
}

/// A step that releases the late one.
async fn early(wf: &Wf, name: &str) -> Result<u64> {
    let value = one(wf, name).await?;
    gate(wf).add_permits(1);
    Ok(value)
}

changes! {
    a_join_instead_of_a_sequence({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf) { tokio::try_join!(one(wf, "a"), one(wf, "b"))?; asleep(wf).await }

    another_combinator({}) Fine
    old (wf: &Wf) { tokio::try_join!(one(wf, "a"), one(wf, "b"))?; asleep(wf).await }
    new (wf: &Wf) {
        let mut all: FuturesUnordered<_> = ["a", "b"].into_iter().map(|name| one(wf, name)).collect();
        while let Some(value) = all.next().await { value?; }
        asleep(wf).await
    }

    a_loop_as_an_iterator({}) Fine
    old (wf: &Wf) { for n in 0..3 { wf.run(add(n, 1).key(n)).await?; } asleep(wf).await }
    new (wf: &Wf) {
        futures::stream::iter(0..3).then(|n| wf.run(add(n, 1).key(n))).collect::<Vec<_>>().await;
        asleep(wf).await
    }

    a_late_result_is_still_received_last({}) Fine
    old (wf: &Wf) { tokio::try_join!(late(wf, "a"), early(wf, "b"))?; one(wf, "c").await?; asleep(wf).await }
    new (wf: &Wf) {
        futures::future::try_join(late(wf, "a"), early(wf, "b")).await?;
        one(wf, "c").await?;
        asleep(wf).await
    }

    code_that_awaits_something_short_of_its_own({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new [allow(sleep)] (wf: &Wf) {
        one(wf, "a").await?;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        one(wf, "b").await?;
        asleep(wf).await
    }

    code_that_awaits_a_task_of_its_own({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new [allow(spawn)] (wf: &Wf) {
        one(wf, "a").await?;
        let n = tokio::spawn(async { tokio::task::yield_now().await; 3 }).await?;
        one(wf, "b").await?;
        let _ = n;
        asleep(wf).await
    }

    code_that_yields_often({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf) {
        one(wf, "a").await?;
        for _ in 0..100 { tokio::task::yield_now().await; }
        one(wf, "b").await?;
        asleep(wf).await
    }

    code_that_awaits_a_message_that_never_comes({}) Undecided
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf) {
        one(wf, "a").await?;
        let (kept, never) = oneshot::channel::<()>();
        let _ = never.await;
        drop(kept);
        one(wf, "b").await?;
        asleep(wf).await
    }

    two_steps_reordered({}) Breaks("a", "step `b` stands where `a` was recorded (step 1)")
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "b").await?; one(wf, "a").await?; asleep(wf).await }

    a_join_in_another_order({}) Breaks("a", "step `b` stands where `a` was recorded (step 1)")
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf) { tokio::try_join!(biased; one(wf, "b"), one(wf, "a"))?; asleep(wf).await }

    a_sequence_instead_of_a_join({}) Breaks("b", "no longer reaches it")
    old (wf: &Wf) { tokio::try_join!(biased; one(wf, "a"), one(wf, "b"))?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }

    results_awaited_in_another_order({}) Breaks("b", "the result of step `b` was awaited next when this run was recorded")
    old (wf: &Wf) { tokio::try_join!(late(wf, "a"), early(wf, "b"))?; one(wf, "c").await?; asleep(wf).await }
    new (wf: &Wf) {
        let a = wf.step("a", || async { Ok::<u64, Error>(1) });
        let b = wf.step("b", || async { Ok::<u64, Error>(1) });
        a.await?;
        b.await?;
        one(wf, "c").await?;
        asleep(wf).await
    }

    a_step_before_a_combinator_instead_of_in_it({}) Breaks("c", "step `b` stands where `c` was recorded (step 2)")
    old (wf: &Wf) { tokio::try_join!(biased; one(wf, "a"), one(wf, "c"), one(wf, "b"))?; asleep(wf).await }
    new (wf: &Wf) { tokio::try_join!(biased; one(wf, "a"), one(wf, "b"), one(wf, "c"))?; asleep(wf).await }

    a_branch_of_a_join_removed({}) Breaks("b", "step `c` stands where `b` was recorded (step 2)")
    old (wf: &Wf) { tokio::try_join!(biased; one(wf, "a"), one(wf, "b"), one(wf, "c"))?; asleep(wf).await }
    new (wf: &Wf) { tokio::try_join!(biased; one(wf, "a"), one(wf, "c"))?; asleep(wf).await }

    a_loop_in_reverse({}) Breaks("add[0]", "step `add[2]` stands where `add[0]` was recorded (step 1)")
    old (wf: &Wf) { for n in 0..3 { wf.run(add(n, 1).key(n)).await?; } asleep(wf).await }
    new (wf: &Wf) { for n in (0..3).rev() { wf.run(add(n, 1).key(n)).await?; } asleep(wf).await }
}
