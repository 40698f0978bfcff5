//! The timeline of a run, put together from its rows.

use runledger::prelude::*;
use runledger::{Graph, RunState, TimelineEvent};
use runledger_tests::Fixture;
use runledger_tests::rows::{soon, until, worker};
use uuid::Uuid;

#[job(max_attempts = 3, backoff = "1ms..1ms")]
async fn stumbles(#[inject] context: &Context) -> Result<u32> {
    if context.attempt() == 1 { Err("once".into()) } else { Ok(context.attempt()) }
}

#[workflow]
async fn journeys(wf: &Wf) -> Result<bool> {
    wf.run(stumbles()).await?;
    let child = wf.start(stumbles().key("child")).await?;
    child.result().await?;
    let go = wf.signal::<bool>("go").await?;
    Ok(go)
}

#[tokio::test(flavor = "multi_thread")]
async fn run_events_are_listed_in_order() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![stumbles, journeys]).await;
    let tried = stumbles().enqueue(&db).await.unwrap();
    soon(tried.result()).await.unwrap();
    let told = tried.timeline().await.unwrap();
    let events: Vec<_> = told.iter().map(|it| (it.what, it.attempt)).collect();
    use TimelineEvent::{AttemptBegan, AttemptFailed, Completed, Created};
    assert_eq!(
        events,
        [
            (Created, None),
            (AttemptBegan, Some(1)),
            (AttemptFailed, Some(1)),
            (AttemptBegan, Some(2)),
            (Completed, None)
        ]
    );
    assert!(told.windows(2).all(|pair| pair[0].at <= pair[1].at));
    assert_eq!(told[1].worker_id, Some(worker.id()));

    let run = journeys().enqueue(&db).await.unwrap();
    until(&db, run.id(), |info| info.state == RunState::Waiting && info.awaited_signals == ["go"]).await;
    let last = run.timeline().await.unwrap().pop().unwrap();
    assert_eq!(last.what, TimelineEvent::Waiting);
    run.signal("go", &true).await.unwrap();
    soon(run.result()).await.unwrap();
    let told = run.timeline().await.unwrap();
    let has = |what, step: Option<&str>| {
        told.iter().filter(|it| it.what == what && it.step_key.as_deref() == step).count()
    };
    assert_eq!(has(TimelineEvent::TryFailed, Some("stumbles")), 1);
    assert_eq!(has(TimelineEvent::StepCompleted, Some("stumbles")), 1);
    assert_eq!(has(TimelineEvent::ChildCreated, None), 1);
    let sent = told.iter().find(|it| it.what == TimelineEvent::SignalSent).unwrap();
    assert_eq!(sent.detail.as_deref(), Some("go"));
    assert_eq!(told.last().unwrap().what, TimelineEvent::Completed);
    assert_eq!(db.run(Uuid::nil()).timeline().await.unwrap(), []);

    let again = tried.rerun().await.unwrap();
    let told = tried.timeline().await.unwrap();
    let made = told.iter().find(|it| it.what == TimelineEvent::Rerun).unwrap();
    assert_eq!(made.detail, Some(again.id().to_string()));

    let mut graph = Graph::new("decides");
    let gate = graph.gate::<bool>("gate");
    let graph = graph.result(gate).enqueue(&db).await.unwrap();
    graph.gate("gate").by("ann").complete(&true).await.unwrap();
    assert!(soon(graph.result()).await.unwrap());
    let nodes = graph.nodes().await.unwrap();
    let told = db.run(nodes[0].run_id).timeline().await.unwrap();
    let decided = told.iter().find(|it| it.what == TimelineEvent::Decided).unwrap();
    assert_eq!(decided.detail.as_deref(), Some("ann"));
    let events: Vec<_> = told.iter().map(|it| it.what).collect();
    assert_eq!(events, [Created, TimelineEvent::Decided, Completed], "no worker claims a gate");
    worker.stop().await;
}
