//! Parameters of workflows and jobs, and inputs of steps.

use runledger::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::stage::{Case, Expected, add, asleep, by_name, changes, definition};

#[derive(Serialize, Deserialize)]
pub struct Item {
    id: u64,
}

#[derive(Serialize, Deserialize)]
pub struct ItemWithNote {
    id: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Serialize, Deserialize)]
pub struct ItemWithCount {
    id: u64,
    #[serde(default)]
    count: u64,
}

mod taking {
    use super::{Item, ItemWithCount, ItemWithNote};
    use runledger::prelude::*;

    #[job(name = "verify.take")]
    pub async fn plain(item: Item) -> Result<u64> {
        Ok(item.id)
    }

    #[job(name = "verify.take")]
    pub async fn with_note(item: ItemWithNote) -> Result<u64> {
        Ok(item.id)
    }

    #[job(name = "verify.take")]
    pub async fn with_count(item: ItemWithCount) -> Result<u64> {
        Ok(item.id)
    }

    #[job(name = "verify.take")]
    pub async fn of_a_float(item: f64) -> Result<u64> {
        let _ = item;
        Ok(0)
    }

    #[job(name = "verify.take")]
    pub async fn of_a_number(item: u64) -> Result<u64> {
        Ok(item)
    }
}
use taking::{of_a_float, of_a_number, plain, with_count, with_note};

mod table {
    use super::*;

    changes! {
        a_parameter_added_as_an_option({ "n": 1 }) Fine
        old (wf: &Wf, n: u64) { wf.run(add(n, 1)).await?; asleep(wf).await }
        new (wf: &Wf, n: u64, note: Option<String>) { drop(note); wf.run(add(n, 1)).await?; asleep(wf).await }

        a_parameter_added_with_a_default({ "n": 1 }) Fine
        old (wf: &Wf, n: u64) { wf.run(add(n, 1)).await?; asleep(wf).await }
        new (wf: &Wf, n: u64, #[default = 1] by: u64) { wf.run(add(n, by)).await?; asleep(wf).await }

        a_default_that_decides_a_recorded_input({ "n": 1 }) Breaks("add", "step `add` was recorded with another input")
        old (wf: &Wf, n: u64) { wf.run(add(n, 1)).await?; asleep(wf).await }
        new (wf: &Wf, n: u64, #[default = 2] by: u64) { wf.run(add(n, by)).await?; asleep(wf).await }

        a_parameter_removed({ "n": 1, "note": "x" }) Fine
        old (wf: &Wf, n: u64, note: String) { drop(note); wf.run(add(n, 1)).await?; asleep(wf).await }
        new (wf: &Wf, n: u64) { wf.run(add(n, 1)).await?; asleep(wf).await }

        parameters_reordered({ "n": 1, "m": 2 }) Fine
        old (wf: &Wf, n: u64, m: u64) { wf.run(add(n, m)).await?; asleep(wf).await }
        new (wf: &Wf, m: u64, n: u64) { wf.run(add(n, m)).await?; asleep(wf).await }

        a_parameter_of_a_wider_type({ "n": 1 }) Fine
        old (wf: &Wf, n: u8) { wf.run(add(n.into(), 1)).await?; asleep(wf).await }
        new (wf: &Wf, n: u64) { wf.run(add(n, 1)).await?; asleep(wf).await }

        a_field_of_an_input_that_is_left_out({}) Fine
        old (wf: &Wf) { wf.run(plain(Item { id: 1 })).await?; asleep(wf).await }
        new (wf: &Wf) { wf.run(with_note(ItemWithNote { id: 1, note: None })).await?; asleep(wf).await }

        a_parameter_renamed({ "n": 1 }) Undecodable("argument `number` is missing")
        old (wf: &Wf, n: u64) { wf.run(add(n, 1)).await?; asleep(wf).await }
        new (wf: &Wf, number: u64) { wf.run(add(number, 1)).await?; asleep(wf).await }

        a_parameter_of_another_type({ "n": 1 }) Undecodable("the value at `$.n` does not fit its type")
        old (wf: &Wf, n: u64) { wf.run(add(n, 1)).await?; asleep(wf).await }
        new (wf: &Wf, n: String) { let _ = n; wf.run(add(1, 1)).await?; asleep(wf).await }

        a_parameter_of_a_narrower_type({ "n": 300 }) Undecodable("the value at `$.n` does not fit its type")
        old (wf: &Wf, n: u64) { wf.run(add(n, 1)).await?; asleep(wf).await }
        new (wf: &Wf, n: u8) { wf.run(add(n.into(), 1)).await?; asleep(wf).await }

        a_parameter_added_without_a_default({ "n": 1 }) Undecodable("argument `by` is missing")
        old (wf: &Wf, n: u64) { wf.run(add(n, 1)).await?; asleep(wf).await }
        new (wf: &Wf, n: u64, by: u64) { wf.run(add(n, by)).await?; asleep(wf).await }

        another_input_of_a_step({}) Breaks("add", "step `add` was recorded with another input")
        old (wf: &Wf) { wf.run(add(1, 1)).await?; asleep(wf).await }
        new (wf: &Wf) { wf.run(add(1, 2)).await?; asleep(wf).await }

        another_input_of_the_second_of_two({}) Breaks("add#2", "step `add#2` was recorded with another input")
        old (wf: &Wf) { wf.run(add(1, 1)).await?; wf.run(add(2, 2)).await?; asleep(wf).await }
        new (wf: &Wf) { wf.run(add(1, 1)).await?; wf.run(add(2, 3)).await?; asleep(wf).await }

        a_field_added_to_an_input({}) Breaks("verify.take", "step `verify.take` was recorded with another input")
        old (wf: &Wf) { wf.run(plain(Item { id: 1 })).await?; asleep(wf).await }
        new (wf: &Wf) { wf.run(with_count(ItemWithCount { id: 1, count: 0 })).await?; asleep(wf).await }

        a_number_of_an_input_as_a_float({}) Breaks("verify.take", "step `verify.take` was recorded with another input")
        old (wf: &Wf) { wf.run(of_a_number(1)).await?; asleep(wf).await }
        new (wf: &Wf) { wf.run(of_a_float(1.0)).await?; asleep(wf).await }

        an_inline_step_as_a_job_of_its_name({}) Breaks("add", "step `add` was recorded with another input")
        old (wf: &Wf) { wf.step("add", || async { Ok::<u64, Error>(2) }).await?; asleep(wf).await }
        new (wf: &Wf) { wf.run(add(1, 1)).await?; asleep(wf).await }

        an_input_that_depends_on_a_recorded_output({}) Breaks("add#2", "step `add#2` was recorded with another input")
        old (wf: &Wf) { let n = wf.run(add(1, 1)).await?; wf.run(add(n, 0)).await?; asleep(wf).await }
        new (wf: &Wf) { let n = wf.run(add(1, 1)).await?; wf.run(add(n + 1, 0)).await?; asleep(wf).await }
    }
}

/// No worker serves it, so its run stays queued with the input of the old code.
mod job_before {
    use runledger::prelude::*;

    #[job(name = "a_queued_job_of_another_parameter", queue = "verify.nobody")]
    pub async fn before(cents: u64) -> Result<u64> {
        Ok(cents)
    }
    #[job(name = "a_queued_job_that_takes_more", queue = "verify.nobody")]
    pub async fn before_too(cents: u64) -> Result<u64> {
        Ok(cents)
    }
}

mod job_after {
    use runledger::prelude::*;

    #[job(name = "a_queued_job_of_another_parameter", queue = "verify.nobody")]
    pub async fn after(#[inject] tx: &mut Tx, amount: String) -> Result<()> {
        drop(amount);
        sqlx::query("select 1").execute(&mut **tx).await?;
        Ok(())
    }
    #[job(name = "a_queued_job_that_takes_more", queue = "verify.nobody")]
    pub async fn after_too(cents: u64, #[default] note: String) -> Result<u64> {
        drop(note);
        Ok(cents)
    }
}

/// Renamed, with the old name as an alias.
mod renamed {
    use super::super::stage::{asleep, one};
    use runledger::prelude::*;

    #[workflow(name = "a_workflow_renamed_with_an_alias")]
    pub async fn before(wf: &Wf) -> Result<u64> {
        one(wf, "a").await?;
        asleep(wf).await
    }
    #[workflow(name = "verify.its_new_name", aliases = ["a_workflow_renamed_with_an_alias"])]
    pub async fn after(wf: &Wf) -> Result<u64> {
        one(wf, "a").await?;
        asleep(wf).await
    }
    #[workflow(name = "a_workflow_that_is_gone")]
    pub async fn gone(wf: &Wf) -> Result<u64> {
        one(wf, "a").await?;
        asleep(wf).await
    }
}

pub fn cases() -> Vec<Case> {
    let case = |name, expected, input, old, new| Case { name, expected, input, call: by_name, old, new };
    let mut cases = table::cases();
    cases.extend([
        case(
            "a_queued_job_of_another_parameter",
            Expected::Undecodable("argument `amount` is missing"),
            json!({ "cents": 1 }),
            definition(job_before::before),
            Some(definition(job_after::after)),
        ),
        case(
            "a_queued_job_that_takes_more",
            Expected::Fine,
            json!({ "cents": 1 }),
            definition(job_before::before_too),
            Some(definition(job_after::after_too)),
        ),
        Case {
            // A call by name would start a run of the new job.
            call: |_| renamed::before().into(),
            ..case(
                "a_workflow_renamed_with_an_alias",
                Expected::Fine,
                json!({}),
                definition(renamed::before),
                Some(definition(renamed::after)),
            )
        },
        case("a_workflow_that_is_gone", Expected::NoCode, json!({}), definition(renamed::gone), None),
    ]);
    cases
}
