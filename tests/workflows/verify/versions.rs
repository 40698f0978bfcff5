//! Versions: runs of the first version, and code of a later one.

use runledger::prelude::*;

use super::stage::{Case, Expected, asleep, by_name, changes, definition, one};

changes! {
    a_version_that_does_not_accept_the_one_before({}) NoVersion
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new [version = 2] (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }

    a_version_that_accepts_another_than_this({}) NoVersion
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new [version = 3, accepts = [2]] (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }

    a_version_that_accepts_and_goes_on({}) Fine
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new [version = 3, accepts = "1.."] (wf: &Wf) { one(wf, "a").await?; asleep(wf).await?; one(wf, "b").await }

    a_version_that_accepts_and_leaves_the_record({}) Breaks("a", "step `b` stands where `a` was recorded (step 1)")
    old (wf: &Wf) { one(wf, "a").await?; asleep(wf).await }
    new [version = 2, accepts = [1]] (wf: &Wf) { one(wf, "b").await?; asleep(wf).await }
}
