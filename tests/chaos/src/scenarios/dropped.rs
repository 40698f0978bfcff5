//! Calls that their callers abandon before they return.

use std::time::Duration;

use anyhow::Result;
use runledger::{Db, enqueue_all};
use runledger_tests::check::Place;
use runledger_tests::check::calls::Submission;
use runledger_tests::check::jobs::check_quick;
use tokio::time::timeout;
use uuid::Uuid;

use crate::scenario::{Scenario, Setting};
use crate::scene::{PATIENT, Scene};
use crate::summary::Summary;

pub const ALL: &[Scenario] = &[Scenario::new(
    "futures-dropped",
    "whatever call of a client is given up at whatever moment, no other is lost, and it may be repeated",
    &["F85", "F86"],
    |setting| Box::pin(futures_dropped(setting)),
)];

/// How many calls run at the same time.
const AT_ONCE: usize = 6;

async fn futures_dropped(setting: Setting) -> Result<Summary> {
    let mut scene = Scene::open(&setting, 2, PATIENT).await?;
    scene.site.may_reclaim = false;
    // The client's pool, so that its acknowledged calls share connections with abandoned ones.
    let db = scene.client.db().clone();
    while scene.goes_on() {
        let mut dropped = Vec::new();
        for _ in 0..AT_ONCE {
            let limit = scene.dice.between(Duration::ZERO, Duration::from_millis(6));
            let kind = scene.dice.below(7);
            dropped.push(given_up(db.clone(), scene.site.place.clone(), kind, limit));
        }
        for (asked, was_given_up) in futures::future::join_all(dropped).await {
            scene.site.n_faults += usize::from(was_given_up);
            scene.site.asked.extend(asked);
        }
        scene.moment(1, 20).await;
    }
    scene.end().await
}

/// Makes a call and drops it after `limit`. Returns what is known of the runs that it enqueued, and
/// whether it was dropped.
async fn given_up(db: Db, place: Place, kind: u64, limit: Duration) -> (Vec<Submission>, bool) {
    let numbers = [(); 3].map(|()| Uuid::now_v7());
    let [number, ..] = numbers;
    let call = |number| check_quick(place.of_call(number));
    let told = |number, run_id| Submission { call: Some(number), ..Submission::acknowledged(run_id) };
    match kind {
        0 | 1 => match timeout(limit, call(number).enqueue(&db)).await {
            Ok(Ok(run)) => (vec![told(number, run.id())], false),
            Ok(Err(_)) => (vec![Submission::unanswered(number)], false),
            Err(_) => (vec![Submission::unanswered(number)], true),
        },
        2 => match timeout(limit, enqueue_all(numbers.map(call), &db)).await {
            Ok(Ok(runs)) => {
                (numbers.iter().zip(runs).map(|(number, run)| told(*number, run.run_id)).collect(), false)
            }
            Ok(Err(_)) => (numbers.map(Submission::unanswered).to_vec(), false),
            Err(_) => (numbers.map(Submission::unanswered).to_vec(), true),
        },
        3 => {
            let key = Uuid::now_v7().to_string();
            let call = || check_quick(place.clone()).idempotency_key(&key);
            let was_given_up = timeout(limit, call().enqueue(&db)).await.is_err();
            // A repetition returns the same run, whether or not the dropped call created it.
            match call().enqueue(&db).await {
                Ok(run) => {
                    (vec![Submission { key: Some(key), ..Submission::acknowledged(run.id()) }], was_given_up)
                }
                Err(_) => (vec![Submission::unanswered_key(&key)], was_given_up),
            }
        }
        4 => (Vec::new(), timeout(limit, db.begin()).await.is_err()),
        5 => (Vec::new(), timeout(limit, db.workers()).await.is_err()),
        _ => {
            let Ok(run) = call(number).enqueue(&db).await else {
                return (vec![Submission::unanswered(number)], false);
            };
            let was_given_up = timeout(limit, run.result()).await.is_err();
            let _ = timeout(limit, run.info()).await;
            (vec![told(number, run.id())], was_given_up)
        }
    }
}
