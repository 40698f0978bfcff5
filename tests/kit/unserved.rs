//! Runs that no worker of the test serves.

use std::time::Duration;

use runledger::prelude::*;
use runledger::testing::{CrashError, Testing};
use runledger::{ClientError, Graph, JobOverrides};

use super::stall_limit::ticks;

const DAY: Duration = Duration::from_secs(86_400);

/// Longer than the kit's own limit of 30 s.
const LONG: Duration = Duration::from_secs(90);

#[job]
async fn pay() -> Result<u32> {
    Ok(7)
}

#[job]
async fn mail() -> Result<u32> {
    Ok(8)
}

#[workflow]
async fn checkout(wf: &Wf) -> Result<u32> {
    let mailed = wf.start(mail()).await?;
    wf.run(pay()).await?;
    Ok(mailed.result().await?)
}

#[workflow]
async fn sleeps(wf: &Wf) -> Result<()> {
    let _left = wf.start(mail()).await?;
    wf.sleep(30 * DAY).await?;
    Ok(())
}

async fn said<T: std::fmt::Debug>(result: impl Future<Output = Result<T, ClientError>>) -> String {
    let error = tokio::time::timeout(LONG, result).await.expect("the kit gives up").unwrap_err();
    assert!(matches!(error, ClientError::Config(_)), "{error:?}");
    error.to_string()
}

#[tokio::test]
async fn unserved_run_is_reported() {
    let test = Testing::new().await.unwrap().with(jobs![pay]).stall_limit(Duration::from_secs(1));
    let run = test.start(mail()).await.unwrap();
    let said = said(run.result()).await;
    assert!(said.contains("is queued and nothing has happened for 1s"), "{said}");
    assert!(
        said.contains("no worker of the test serves `mail`") && said.contains("`Testing::with`"),
        "{said}"
    );
    run.wait_until_idle().await.unwrap();
}

#[tokio::test]
async fn unserved_child_is_reported() {
    let test = Testing::new().await.unwrap().with(jobs![checkout, pay]).stall_limit(Duration::from_secs(3));
    let said = said(test.start(checkout()).await.unwrap().result()).await;
    assert!(said.contains("no worker of the test serves `mail`"), "{said}");
}

#[tokio::test]
async fn unserved_child_is_reported_beside_progressing_run() {
    let jobs = jobs![checkout, pay, ticks];
    let test = Testing::new().await.unwrap().with(jobs).stall_limit(Duration::from_millis(500));
    test.start(ticks()).await.unwrap();
    let said = said(test.start(checkout()).await.unwrap().result()).await;
    assert!(said.contains("no worker of the test serves `mail`"), "{said}");
}

#[tokio::test]
async fn time_advances_despite_unserved_child() {
    let test = Testing::new().await.unwrap().with(jobs![sleeps]).auto_advance_time();
    let run = test.start(sleeps()).await.unwrap();
    tokio::time::timeout(LONG, run.result()).await.expect("the sleep is skipped").unwrap();
}

#[workflow]
async fn waits_for_a_gate(wf: &Wf) -> Result<bool> {
    let mut graph = Graph::new("approval");
    let approved = graph.gate::<bool>("approved");
    let second = graph.gate::<bool>("second");
    graph.after(second, approved);
    Ok(wf.start_graph(graph.result(second)).await?.result().await?)
}

#[tokio::test]
async fn undecided_gate_is_named() {
    let test =
        Testing::new().await.unwrap().with(jobs![waits_for_a_gate]).stall_limit(Duration::from_secs(3));
    let said = said(test.start(waits_for_a_gate()).await.unwrap().result()).await;
    assert!(said.contains("nobody has decided gate `approved`; call `GateHandle::complete`"), "{said}");
}

#[tokio::test]
async fn due_run_without_permit_is_reported() {
    let test = Testing::new().await.unwrap().with(jobs![pay]).stall_limit(Duration::from_secs(1));
    test.db().set_permits("gateway", 0).await.unwrap();
    let said = said(test.start(pay().resource("gateway")).await.unwrap().result()).await;
    assert!(said.contains("1 due run is not claimed; has a resource no permit left?"), "{said}");
}

#[tokio::test]
async fn paused_run_is_named() {
    let test = Testing::new().await.unwrap().with(jobs![pay]).stall_limit(Duration::from_secs(1));
    let run = test.start(pay().delay(DAY)).await.unwrap();
    run.handle().pause("by an operator").await.unwrap();
    let said = said(run.result()).await;
    assert!(said.contains("a run of `pay` is paused"), "{said}");
}

#[tokio::test]
async fn crash_test_with_unserved_child_names_job() {
    let test = Testing::new().await.unwrap().with(jobs![sleeps]);
    let error = tokio::time::timeout(LONG, test.crash_everywhere(sleeps()).into_future());
    let error = error.await.expect("the kit gives up").unwrap_err();
    assert!(matches!(error, CrashError::WithoutFault { .. }), "{error:?}");
    assert!(error.to_string().contains("no worker of the test serves `mail`"), "{error}");
}

#[tokio::test]
async fn stuck_run_in_unserved_queue_names_job_and_queue() {
    let test = Testing::new().await.unwrap().with(jobs![mail]).stall_limit(Duration::from_secs(1));
    let said = said(test.start(mail().queue("other")).await.unwrap().result()).await;
    assert!(said.contains("no worker of the test serves `mail` in queue `other`"), "{said}");
    assert!(said.contains("`Testing::queues`") && !said.contains("`Testing::with`"), "{said}");
}

#[tokio::test]
async fn queue_named_by_test_is_served() {
    let test = Testing::new().await.unwrap().with(jobs![mail]).queues(["other"]);
    assert_eq!(test.start(mail().queue("other")).await.unwrap().result().await.unwrap(), 8);
}

#[tokio::test]
async fn stuck_run_of_disabled_job_gives_reason() {
    let test = Testing::new().await.unwrap().with(jobs![mail]).stall_limit(Duration::from_secs(1));
    test.db().set_overrides("mail", JobOverrides::new().disabled("no stamps")).await.unwrap();
    let run = test.start(mail()).await.unwrap();
    let said = said(run.result()).await;
    assert!(said.contains("job `mail` is disabled: no stamps"), "{said}");
    assert!(said.contains("`Db::clear_overrides`") && !said.contains("permit"), "{said}");
    run.wait_until_idle().await.unwrap();
}

#[job(name = "kit.letter", aliases = ["kit.post"])]
async fn letter() -> Result<()> {
    Ok(())
}

#[tokio::test]
async fn job_disabled_by_any_name_reports_that_name_and_reason() {
    for name in ["kit.post", "kit.letter"] {
        let test = Testing::new().await.unwrap().with(jobs![letter]).stall_limit(Duration::from_secs(1));
        test.db().set_overrides(name, JobOverrides::new().disabled("no stamps")).await.unwrap();
        let run = test.start(letter()).await.unwrap();
        let said = said(run.result()).await;
        assert!(said.contains(&format!("job `{name}` is disabled: no stamps")), "{said}");
        assert!(said.contains("`Db::clear_overrides`") && !said.contains("permit"), "{said}");
        run.wait_until_idle().await.unwrap();
        assert!(test.db().clear_overrides(name).await.unwrap());
        run.result().await.unwrap();
    }
}
