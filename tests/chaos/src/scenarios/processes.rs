//! Processes that are killed, paused, starved or asked to stop, and bodies that end their process.

use std::process::Stdio;

use anyhow::Result;
use runledger::Db;
use runledger_tests::check::calls::Submission;
use runledger_tests::check::jobs::check_killer;
use tokio::process::{Child, Command};

use crate::load::jobs::{Poison, chaos_poison};
use crate::scenario::{Scenario, Setting};
use crate::scene::{PATIENT, Scene, count};
use crate::summary::Summary;

pub const ALL: &[Scenario] = &[
    Scenario::new(
        "kill-nine",
        "the runs of processes that are killed anywhere go on in others, and nothing recorded is repeated",
        &["F01", "F02", "F03"],
        |setting| Box::pin(kill_nine(setting, &[])),
    )
    .seconds(20)
    .long(),
    Scenario::new(
        "kill-nine-default",
        "the same at the default timings, which most programs use",
        &["F01", "F02", "F03"],
        |setting| Box::pin(kill_nine(setting, PATIENT)),
    )
    .seconds(30)
    .long(),
    Scenario::new(
        "asked-to-stop",
        "a process that is asked to stop ends well, and what it had in hand goes on elsewhere at once",
        &["F05"],
        |setting| Box::pin(asked_to_stop(setting)),
    )
    .seconds(12),
    Scenario::new(
        "short-pauses",
        "a process that is paused for less than it may be silent loses nothing",
        &["F06"],
        |setting| Box::pin(short_pauses(setting)),
    )
    .seconds(12),
    Scenario::new(
        "zombies",
        "a process that slept through its lease overwrites nothing of those that have its runs",
        &["F07"],
        |setting| Box::pin(zombies(setting)),
    )
    .seconds(24)
    .long(),
    Scenario::new(
        "suicides",
        "a body that ends its process takes no more than five with it, and no other run is harmed",
        &["F10", "F11", "F14"],
        |setting| Box::pin(suicides(setting)),
    )
    .seconds(10),
    Scenario::new(
        "starved",
        "workers that hardly get the processor are not taken for dead",
        &["F15"],
        |setting| Box::pin(starved(setting)),
    )
    .seconds(10)
    .alone(),
];

async fn kill_nine(setting: Setting, options: &'static [&'static str]) -> Result<Summary> {
    let mut scene = Scene::open(&setting, 3, options).await?;
    scene.site.must_recover = true;
    while scene.goes_on() {
        scene.moment(300, 1800).await;
        let victim = scene.any();
        scene.replace_killed(victim).await?;
    }
    scene.end().await
}

async fn asked_to_stop(setting: Setting) -> Result<Summary> {
    // Shorter than the longest bodies, so that workers hand some runs back.
    let mut scene = Scene::open(&setting, 2, &["--drain-millis", "300"]).await?;
    let mut connection = scene.site.connect().await?;
    while scene.goes_on() {
        scene.moment(300, 1500).await;
        let at = scene.any();
        let mut member = scene.crew.swap_remove(at);
        scene.site.n_faults += 1;
        if !member.process.terminate().await? {
            scene.site.violations.push(format!("process {} did not end well", member.process.pid));
        }
        let left =
            format!("select count(*) from runledger.lease where worker_id = {}", member.process.worker_id);
        let n_left = count(&mut connection, &left).await?;
        if n_left > 0 {
            scene
                .site
                .violations
                .push(format!("process {} kept {n_left} runs when it ended", member.process.pid));
        }
        scene.hire().await?;
    }
    let crashed =
        count(&mut connection, "select count(*) from audit.recovery where cause = 'crashed'").await?;
    if crashed > 0 {
        scene
            .site
            .violations
            .push(format!("{crashed} runs count as crashed, though every process ended well"));
    }
    scene.end().await
}

async fn short_pauses(setting: Setting) -> Result<Summary> {
    let mut scene = Scene::open(&setting, 2, PATIENT).await?;
    scene.site.may_reclaim = false;
    while scene.goes_on() {
        let at = scene.any();
        scene.crew[at].process.pause()?;
        scene.site.n_faults += 1;
        scene.moment(500, 3000).await;
        scene.crew[at].process.resume()?;
        scene.moment(100, 1000).await;
    }
    scene.end().await
}

async fn zombies(setting: Setting) -> Result<Summary> {
    let mut scene = Scene::open(&setting, 3, &[]).await?;
    scene.site.must_recover = true;
    while scene.goes_on() {
        scene.moment(200, 1200).await;
        let at = scene.any();
        scene.crew[at].process.pause()?;
        scene.site.n_faults += 1;
        scene.site.excuse(&scene.crew[at].process);
        scene.moment(4500, 6500).await;
        scene.crew[at].process.resume()?;
        scene.site.recovers(&scene.crew[at].process);
    }
    scene.end().await
}

async fn suicides(setting: Setting) -> Result<Summary> {
    let mut scene = Scene::open(&setting, 2, &["--memory-mib", "3000"]).await?;
    let mut connection = scene.site.connect().await?;
    let db = Db::connect(scene.site.url()).await?;
    let mut poisons = vec![check_killer(scene.site.place.clone()).enqueue(&db).await?.id()];
    for poison in [Poison::Exit, Poison::Overflow, Poison::Hunger] {
        poisons.push(chaos_poison(poison).enqueue(&db).await?.id());
    }
    scene.site.hopeless.extend(&poisons);
    scene.site.asked.extend(poisons.iter().copied().map(Submission::acknowledged));
    let mut n_deaths = 0;
    loop {
        // Moves the retry delays into the past instead of waiting for them.
        sqlx::query(
            "update runledger.ready set ready_at = now() where ready_at > now() and run_id = any ($1)",
        )
        .bind(&poisons)
        .execute(&mut connection)
        .await?;
        while let Some(at) = scene.crew.iter_mut().position(|member| member.process.has_ended()) {
            scene.crew.swap_remove(at);
            n_deaths += 1;
            scene.hire().await?;
        }
        let blocked: Vec<uuid::Uuid> =
            sqlx::query_scalar("select run_id from runledger.waiting where state = 'blocked'")
                .fetch_all(&mut connection)
                .await?;
        if poisons.iter().all(|poison| blocked.contains(poison)) {
            break;
        }
        if n_deaths > 5 * poisons.len() {
            scene.site.violations.push(format!("{n_deaths} processes died of {} runs", poisons.len()));
            break;
        }
        scene.moment(50, 50).await;
    }
    scene.site.n_faults = n_deaths;
    for poison in &poisons {
        // A worker that claims two suspect runs returns one, so claims may exceed crashes.
        let crashes = format!("select crashes::int8 from runledger.waiting where run_id = '{poison}'");
        let n_crashes = count(&mut connection, &crashes).await?;
        if n_crashes != 5 {
            scene
                .site
                .violations
                .push(format!("the poison {poison} is blocked after {n_crashes} crashes, not 5"));
        }
    }
    scene.end().await
}

async fn starved(setting: Setting) -> Result<Summary> {
    let mut scene = Scene::open(&setting, 2, PATIENT).await?;
    scene.site.may_reclaim = false;
    let n_hogs = std::thread::available_parallelism()?.get() * 3;
    let hogs: Vec<Child> = (0..n_hogs).map(|_| hog()).collect::<Result<_>>()?;
    scene.site.n_faults = hogs.len();
    for member in &scene.crew {
        // On Linux a process id names only the first thread, so `renice` needs the id of each
        // thread.
        let mut renice = Command::new("renice");
        renice.args(["-n", "19", "-p"]).stdout(Stdio::null());
        for thread in std::fs::read_dir(format!("/proc/{}/task", member.process.pid))? {
            renice.arg(thread?.file_name());
        }
        anyhow::ensure!(renice.status().await?.success(), "`renice` failed");
    }
    let before = scene.client.n_calls();
    while scene.goes_on() {
        scene.moment(100, 100).await;
    }
    if scene.client.n_calls() == before {
        scene.site.violations.push("nobody could enqueue anything".to_owned());
    }
    drop(hogs);
    scene.end().await
}

/// A process that uses one processor until it is dropped.
fn hog() -> Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).kill_on_drop(true);
    Ok(command.spawn()?)
}
