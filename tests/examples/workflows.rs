//! The output of the workflow examples, each on its own database.

use runledger_tests::Fixture;

use crate::program::{example, run};

/// Checks that a program prints these lines in this order, among others.
async fn prints(name: &str, expected: &[&str]) {
    let fixture = Fixture::new().await;
    let output = run(&mut example(name, &fixture)).output();
    let mut rest = output.as_str();
    for line in expected {
        let Some(at) = rest.find(line) else { panic!("no `{line}` where it should be in:\n{output}") };
        rest = &rest[at + line.len()..];
    }
}

#[tokio::test]
async fn approval_is_given_refused_or_timed_out() {
    let expected = [
        "small: 900 cents paid to ada",
        "large: 50000 cents paid to bob",
        "refused: carol said no",
        "late: nobody answered in time",
        "afterwards: run `",
        "` is completed, so it cannot be signalled",
    ];
    prints("approval", &expected).await;
}

#[tokio::test]
async fn saga_completes_or_compensates_on_failure_or_when_code_asks() {
    let expected = [
        "kept: 2 bookings\n  flight, hotel\n",
        "failed: run `",
        "no cars left",
        "\n  flight, hotel, cancelled hotel-booking, cancelled flight-booking\n",
        "not confirmed: 0 bookings\n  flight, hotel, cancelled hotel-booking, cancelled flight-booking\n",
    ];
    prints("saga", &expected).await;
}

#[tokio::test]
async fn fan_out_collects_all_results_partial_results_or_first_result() {
    let expected = [
        "all or nothing: 820 words",
        "with an empty page: Some(run `",
        "the page is empty",
        "as many as there are: 820 words, 1 page without",
        "first of two: one of them",
    ];
    prints("fan_out", &expected).await;
}

#[tokio::test]
async fn long_loop_keeps_history_of_only_one_slice() {
    let sum: u32 = (0..1000).map(|n| n % 7).sum();
    let expected = [
        &format!("sum of 1000 readings: {sum}"),
        &format!("published last: Some({sum})"),
        "steps on record: 26",
        "counted to 200",
    ];
    prints("long_loop", &expected.map(|line| line as &str)).await;
}

#[tokio::test]
async fn nightly_run_starts_regional_runs_and_its_cancel_reaches_them() {
    let expected = [
        "one night: true",
        "rows: 240",
        "regions: 3",
        "cancelled: Some(run `",
        "cancelled: the day is over",
        "and its regions with it",
    ];
    prints("nightly", &expected).await;
}

#[tokio::test]
async fn outbox_sends_and_counts_each_welcome_message() {
    let expected = ["welcome ada (message ", "welcome bob (message ", "counted: ada, bob"];
    prints("outbox", &expected).await;
}
