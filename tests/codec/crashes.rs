//! Workers that die at every write of an encrypted run.

use runledger::testing::Testing;

use crate::words::{codec, everything, jobs};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo exhaustive`"]
async fn encrypted_run_recovers_wherever_its_worker_dies() {
    let test = Testing::new().await.unwrap().with(jobs()).codec(codec());
    let test = test.signals([("word", "abc")]);
    let crashes = test
        .crash_everywhere(everything("abc".into(), 1, true))
        .invariant(|end| async move {
            assert_eq!(end.result()?, "abc");
            assert!(end.steps().iter().any(|step| step.result.as_deref() == Ok("\"abc\"")));
            let plain = "select count(*) from runledger.step where output is not null and output ->> '$sealed' is null";
            let n_plain: i64 = sqlx::query_scalar(plain).fetch_one(end.db().pool()).await?;
            assert_eq!(n_plain, 1, "but for the id of the child");
            Ok(())
        })
        .at_most(40)
        .await
        .unwrap();
    assert!(crashes.n_crashes() > 20, "{crashes}");
}
