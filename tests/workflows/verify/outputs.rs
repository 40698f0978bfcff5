//! Types of recorded outputs.

use runledger::prelude::*;
use serde::{Deserialize, Serialize};

use super::stage::{Case, Expected, add, asleep, by_name, changes, definition, held, named, quick};

#[derive(Serialize, Deserialize)]
pub struct Receipt {
    id: u64,
}

#[derive(Serialize, Deserialize)]
pub struct ReceiptWithDefault {
    id: u64,
    #[serde(default)]
    note: String,
}

#[derive(Serialize, Deserialize)]
pub struct ReceiptWithNote {
    id: u64,
    note: String,
}

#[derive(Serialize, Deserialize)]
pub enum Before {
    Paid,
    Open,
}

#[derive(Serialize, Deserialize)]
pub enum After {
    Open,
}

#[derive(Serialize, Deserialize)]
pub enum More {
    Paid,
    Open,
    Disputed,
}

changes! {
    an_output_of_a_wider_type({}) Fine
    old (wf: &Wf) { wf.step("a", || async { Ok::<u8, Error>(7) }).await?; asleep(wf).await }
    new (wf: &Wf) { wf.step("a", || async { Ok::<i64, Error>(7) }).await?; asleep(wf).await }

    an_output_that_may_be_none({}) Fine
    old (wf: &Wf) { wf.step("a", || async { Ok::<u8, Error>(7) }).await?; asleep(wf).await }
    new (wf: &Wf) { wf.step("a", || async { Ok::<Option<u8>, Error>(None) }).await?; asleep(wf).await }

    a_field_with_a_default_added_to_an_output({}) Fine
    old (wf: &Wf) { wf.step("a", || async { Ok::<_, Error>(Receipt { id: 1 }) }).await?; asleep(wf).await }
    new (wf: &Wf) {
        wf.step("a", || async { Ok::<_, Error>(ReceiptWithDefault { id: 1, note: String::new() }) }).await?;
        asleep(wf).await
    }

    a_variant_added_to_an_output({}) Fine
    old (wf: &Wf) { wf.step("a", || async { Ok::<_, Error>(Before::Paid) }).await?; asleep(wf).await }
    new (wf: &Wf) { wf.step("a", || async { Ok::<_, Error>(More::Disputed) }).await?; asleep(wf).await }

    a_field_removed_from_an_output({}) Fine
    old (wf: &Wf) {
        wf.step("a", || async { Ok::<_, Error>(ReceiptWithNote { id: 1, note: String::new() }) }).await?;
        asleep(wf).await
    }
    new (wf: &Wf) { wf.step("a", || async { Ok::<_, Error>(Receipt { id: 1 }) }).await?; asleep(wf).await }

    a_recorded_failure_handled_in_another_way({}) Fine
    old (wf: &Wf) {
        let failing = wf.step("a", || async { Err::<u64, _>(Error::terminal("no")) });
        drop(failing.await);
        asleep(wf).await
    }
    new (wf: &Wf) {
        let failing = wf.step("a", || async { Err::<String, _>(Error::terminal("no")) });
        let text = failing.await.unwrap_or_else(|error| error.to_string());
        assert_eq!(text, "step `a` failed: no");
        asleep(wf).await
    }

    a_recorded_failure_that_ends_the_workflow_now({}) Breaks("sleep", "no longer reaches it")
    old (wf: &Wf) {
        let failing = wf.step("a", || async { Err::<u64, _>(Error::terminal("no")) });
        drop(failing.await);
        asleep(wf).await
    }
    new (wf: &Wf) {
        wf.step("a", || async { Err::<u64, _>(Error::terminal("no")) }).await?;
        asleep(wf).await
    }

    an_output_of_another_type({}) Breaks("a", "the recorded output does not fit the type of the code")
    old (wf: &Wf) { wf.step("a", || async { Ok::<u64, Error>(7) }).await?; asleep(wf).await }
    new (wf: &Wf) { wf.step("a", || async { Ok::<_, Error>("7".to_owned()) }).await?; asleep(wf).await }

    the_last_recorded_output_of_another_type({}) Breaks("b", "the value at `$` does not fit its type")
    old (wf: &Wf) { wf.run(add(1, 1)).await?; wf.step("b", || async { Ok::<u64, Error>(7) }).await?; held(wf, "c").await }
    new (wf: &Wf) { wf.run(add(1, 1)).await?; wf.step("b", || async { Ok::<_, Error>("7".to_owned()) }).await?; held(wf, "c").await }

    a_field_added_to_an_output({}) Breaks("a", "missing field `note`")
    old (wf: &Wf) { wf.step("a", || async { Ok::<_, Error>(Receipt { id: 1 }) }).await?; asleep(wf).await }
    new (wf: &Wf) {
        wf.step("a", || async { Ok::<_, Error>(ReceiptWithNote { id: 1, note: String::new() }) }).await?;
        asleep(wf).await
    }

    a_variant_removed_from_an_output({}) Breaks("a", "unknown variant `Paid`")
    old (wf: &Wf) {
        let paid = true;
        wf.step("a", || async { Ok::<_, Error>(if paid { Before::Paid } else { Before::Open }) }).await?;
        asleep(wf).await
    }
    new (wf: &Wf) { wf.step("a", || async { Ok::<_, Error>(After::Open) }).await?; asleep(wf).await }

    a_step_as_a_child({}) Breaks("quick", "or by another call")
    old (wf: &Wf) { wf.run(quick(1)).await?; asleep(wf).await }
    new (wf: &Wf) { wf.start(quick(1)).await?; asleep(wf).await }

    a_child_as_a_step({}) Breaks("quick", "or by another call")
    old (wf: &Wf) { wf.start(quick(1)).await?; asleep(wf).await }
    new (wf: &Wf) { wf.run(quick(1)).await?; asleep(wf).await }

    a_child_as_a_step_whose_output_is_any_text({}) Breaks("named", "or by another call")
    old (wf: &Wf) { wf.start(named(1)).await?; asleep(wf).await }
    new (wf: &Wf) { wf.run(named(1)).await?; asleep(wf).await }

    a_map_of_texts_that_is_not_spread_any_more({}) Breaks("named[0]", "or by another call")
    old (wf: &Wf) { wf.map(0..3, |n| named(n).key(n)).as_child_runs().await?; asleep(wf).await }
    new (wf: &Wf) { wf.map(0..3, |n| named(n).key(n)).await?; asleep(wf).await }

    a_step_as_a_sleep_of_its_name({}) Breaks("sleep", "or by another call")
    old (wf: &Wf) { wf.step("sleep", || async { Ok::<(), Error>(()) }).await?; held(wf, "b").await }
    new (wf: &Wf) { wf.sleep(std::time::Duration::from_secs(60)).await?; held(wf, "b").await }

    a_step_as_the_time_of_its_name({}) Breaks("now", "or by another call")
    old (wf: &Wf) { wf.step("now", || async { Ok::<u64, Error>(7) }).await?; asleep(wf).await }
    new (wf: &Wf) { let _ = wf.now(); asleep(wf).await }

    an_id_as_a_step_of_its_name({}) Breaks("uuid", "or by another call")
    old (wf: &Wf) { let _ = wf.uuid(); asleep(wf).await }
    new (wf: &Wf) { wf.step("uuid", || async { Ok::<_, Error>(String::new()) }).await?; asleep(wf).await }
}
