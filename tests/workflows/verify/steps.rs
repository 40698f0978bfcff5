//! Added, removed and renamed steps.

use runledger::prelude::*;
use runledger::{Definition, Graph, Job};

use super::stage::{Case, Expected, add, asleep, by_name, changes, definition, held, one};

/// A helper with two steps.
async fn both(wf: &Wf) -> Result<u64> {
    Ok(one(wf, "a").await? + one(wf, "b").await?)
}

/// A job before and after its renaming.
pub(super) mod renamed {
    use runledger::prelude::*;

    #[job(name = "verify.step.before")]
    pub async fn before(n: u64) -> Result<u64> {
        Ok(n)
    }

    #[job(name = "verify.step.after", aliases = ["verify.step.before"])]
    pub async fn after(n: u64) -> Result<u64> {
        Ok(n)
    }
}

fn graph_of<J: Job>(call: Call<J>) -> Graph<()> {
    let mut graph = Graph::new("renamed");
    graph.call(call);
    graph
}

/// The jobs of the new programs.
pub fn after() -> impl Iterator<Item = &'static Definition> {
    jobs![renamed::after].into_iter()
}

changes! {
    a_job_renamed_with_an_alias_as_a_step({}) Fine
    old (wf: &Wf) { wf.run(renamed::before(1)).await?; wf.run(renamed::before(2).key("b")).await?; asleep(wf).await }
    new (wf: &Wf) { wf.run(renamed::after(1)).await?; wf.run(renamed::after(2).key("b")).await?; asleep(wf).await }

    a_job_renamed_with_an_alias_as_a_child({}) Fine
    old (wf: &Wf) { let _ = wf.start(renamed::before(1)).await?; asleep(wf).await }
    new (wf: &Wf) { let _ = wf.start(renamed::after(1)).await?; asleep(wf).await }

    a_job_renamed_with_an_alias_as_a_node({}) Fine
    old (wf: &Wf) { wf.start_graph(graph_of(renamed::before(1))).await?; asleep(wf).await }
    new (wf: &Wf) { wf.start_graph(graph_of(renamed::after(1))).await?; asleep(wf).await }

    a_job_renamed_with_an_alias_over_a_list({}) Fine
    old (wf: &Wf) { wf.map(1..4, renamed::before).limit(2).await?; asleep(wf).await }
    new (wf: &Wf) { wf.map(1..4, renamed::after).limit(1).await?; asleep(wf).await }

    a_step_appended_at_the_end({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "a").await?; asleep(wf).await?; one(wf, "b").await }

    a_step_appended_behind_one_under_way({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; held(wf, "b").await }
    new (wf: &Wf) { one(wf, "a").await?; held(wf, "b").await?; one(wf, "c").await }

    a_step_under_way_renamed({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; held(wf, "b").await }
    new (wf: &Wf) { one(wf, "a").await?; held(wf, "c").await }

    a_step_under_way_removed({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; held(wf, "b").await }
    new (wf: &Wf) { one(wf, "a").await }

    a_step_not_reached_removed({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await?; one(wf, "b").await }
    new (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }

    steps_not_reached_reordered({}) Fine
    old (wf: &Wf) { asleep(wf).await?; one(wf, "a").await?; one(wf, "b").await }
    new (wf: &Wf) { asleep(wf).await?; one(wf, "b").await?; one(wf, "a").await }

    a_branch_that_no_run_in_flight_takes({ "big": false }) Fine
    old (wf: &Wf, big: bool) { let _ = big; one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf, big: bool) { if big { one(wf, "approve").await?; } one(wf, "a").await?; asleep(wf).await }

    a_branch_that_this_run_takes({ "big": true }) Breaks("a", "step `approve` stands where `a` was recorded (step 1)")
    old (wf: &Wf, big: bool) { let _ = big; one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf, big: bool) { if big { one(wf, "approve").await?; } one(wf, "a").await?; asleep(wf).await }

    a_comment_and_a_version({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new [version = 2, accepts = [1]] (wf: &Wf) { /* now with a reason */ one(wf, "a").await?; asleep(wf).await }

    steps_moved_into_a_helper({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf) { both(wf).await?; asleep(wf).await }

    a_step_made_from_another_name_by_an_expression({}) Fine
    old (wf: &Wf) { one(wf, "a-1").await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, &format!("a-{}", 1)).await?; asleep(wf).await }

    an_unrolled_loop({}) Fine
    old (wf: &Wf) { for n in 0..3 { wf.run(add(n, 1).key(n)).await?; } asleep(wf).await }
    new (wf: &Wf) {
        wf.run(add(0, 1).key("0")).await?;
        wf.run(add(1, 1).key("1")).await?;
        wf.run(add(2, 1).key("2")).await?;
        asleep(wf).await
    }

    options_of_a_step({}) Fine
    old (wf: &Wf) { wf.run(add(1, 2)).await?; asleep(wf).await }
    new (wf: &Wf) { wf.run(add(1, 2).max_attempts(9)).timeout(crate::verify::stage::DAY).await?; asleep(wf).await }

    the_body_of_a_step({}) Fine
    old (wf: &Wf) { wf.step("a", || async { Ok::<u64, Error>(1) }).await?; asleep(wf).await }
    new (wf: &Wf) { wf.step("a", || async { Err::<u64, _>(Error::from("another")) }).await?; asleep(wf).await }

    the_workflow_ends_where_the_record_does({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; held(wf, "b").await }
    new (wf: &Wf) { one(wf, "a").await?; Err(Error::terminal("no more")) }

    the_first_step_renamed({}) Breaks("a", "step `x` stands where `a` was recorded (step 1)")
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "x").await?; one(wf, "b").await?; asleep(wf).await }

    the_last_recorded_step_renamed({}) Breaks("b", "step `x` stands where `b` was recorded (step 2)")
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; held(wf, "c").await }
    new (wf: &Wf) { one(wf, "a").await?; one(wf, "x").await?; held(wf, "c").await }

    a_job_renamed_as_a_step({}) Breaks("add", "step `sum` stands where `add` was recorded (step 1)")
    old (wf: &Wf) { wf.run(add(1, 2)).await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "sum").await?; asleep(wf).await }

    the_first_step_removed({}) Breaks("a", "step `b` stands where `a` was recorded (step 1)")
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "b").await?; asleep(wf).await }

    the_last_recorded_step_removed({}) Breaks("b", "step `sleep` stands where `b` was recorded (step 2)")
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }

    an_enqueue_between_steps({}) Breaks("a", "after step `a` the workflow asks the engine for something between its steps")
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf, #[inject] db: &Db) { one(wf, "a").await?; add(1, 2).enqueue(db).await?; asleep(wf).await }

    every_step_removed({}) Breaks("a", "no longer reaches it (2 such)")
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { let _ = wf.run_id(); Ok(0) }

    an_early_return({ "skip": true }) Breaks("b", "no longer reaches it (2 such)")
    old (wf: &Wf, skip: bool) { let _ = skip; one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf, skip: bool) {
        one(wf, "a").await?;
        if skip { return Ok(0); }
        one(wf, "b").await?;
        asleep(wf).await
    }

    a_panic_before_a_recorded_step({}) Breaks("b", "no longer reaches it")
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf) {
        let a = one(wf, "a").await?;
        assert_eq!(a, 2, "meant for the corpus");
        one(wf, "b").await?;
        asleep(wf).await
    }

    an_error_before_a_recorded_step({}) Breaks("b", "no longer reaches it")
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf) {
        if one(wf, "a").await? == 1 { return Err(Error::terminal("refused now")); }
        one(wf, "b").await?;
        asleep(wf).await
    }

    a_step_inserted_at_the_start({}) Breaks("a", "step `new` stands where `a` was recorded (step 1)")
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "new").await?; one(wf, "a").await?; asleep(wf).await }

    a_step_inserted_in_the_middle({}) Breaks("b", "step `new` stands where `b` was recorded (step 2)")
    old (wf: &Wf) { one(wf, "a").await?; one(wf, "b").await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "a").await?; one(wf, "new").await?; one(wf, "b").await?; asleep(wf).await }

    a_step_inserted_before_a_sleep({}) Breaks("sleep", "step `new` stands where `sleep` was recorded (step 2)")
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "a").await?; one(wf, "new").await?; asleep(wf).await }

    a_step_called_once_more({}) Breaks("sleep", "step `add#2` stands where `sleep` was recorded (step 2)")
    old (wf: &Wf) { wf.run(add(1, 1)).await?; asleep(wf).await }
    new (wf: &Wf) { wf.run(add(1, 1)).await?; wf.run(add(1, 1)).await?; asleep(wf).await }

    a_step_called_once_less({}) Breaks("add#2", "step `sleep` stands where `add#2` was recorded (step 2)")
    old (wf: &Wf) { wf.run(add(1, 1)).await?; wf.run(add(1, 1)).await?; asleep(wf).await }
    new (wf: &Wf) { wf.run(add(1, 1)).await?; asleep(wf).await }

    a_step_that_was_never_awaited_removed({}) Breaks("a", "step `a` stands where `a` was recorded (step 2)")
    old (wf: &Wf) { drop(wf.run(add(1, 1))); one(wf, "a").await?; asleep(wf).await }
    new (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }

    a_loop_of_fewer_rounds({}) Breaks("add#3", "step `sleep` stands where `add#3` was recorded (step 3)")
    old (wf: &Wf) { for n in 0..3 { wf.run(add(n, 1)).await?; } asleep(wf).await }
    new (wf: &Wf) { for n in 0..2 { wf.run(add(n, 1)).await?; } asleep(wf).await }

    a_loop_of_more_rounds({}) Breaks("sleep", "step `add#3` stands where `sleep` was recorded (step 3)")
    old (wf: &Wf) { for n in 0..2 { wf.run(add(n, 1)).await?; } asleep(wf).await }
    new (wf: &Wf) { for n in 0..3 { wf.run(add(n, 1)).await?; } asleep(wf).await }

    a_key_added({}) Breaks("add", "step `add[x]` stands where `add` was recorded (step 1)")
    old (wf: &Wf) { wf.run(add(1, 1)).await?; asleep(wf).await }
    new (wf: &Wf) { wf.run(add(1, 1).key("x")).await?; asleep(wf).await }

    a_key_removed({}) Breaks("add[x]", "step `add` stands where `add[x]` was recorded (step 1)")
    old (wf: &Wf) { wf.run(add(1, 1).key("x")).await?; asleep(wf).await }
    new (wf: &Wf) { wf.run(add(1, 1)).await?; asleep(wf).await }

    a_key_changed({}) Breaks("add[x]", "step `add[y]` stands where `add[x]` was recorded (step 1)")
    old (wf: &Wf) { wf.run(add(1, 1).key("x")).await?; asleep(wf).await }
    new (wf: &Wf) { wf.run(add(1, 1).key("y")).await?; asleep(wf).await }
}
