//! Programs that are replaced process by process, and a schema that changes under working fleets.

use std::time::Instant;

use anyhow::{Result, ensure};
use runledger::__private::{MIGRATIONS, Migration, migrate_as};
use runledger::{Call, Db, Job, RunHandle, RunState};
use runledger_tests::check::calls::Submission;
use runledger_tests::check::jobs::check_canary;
use runledger_tests::check::place::Place;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::load::releases::{Release, former, next};
use crate::scenario::{Scenario, Setting};
use crate::scene::{LONG, Scene, count, reaches};
use crate::summary::Summary;

pub const ALL: &[Scenario] = &[
    Scenario::new(
        "rolling-deploy",
        "while a program is replaced process by process, and put back, every run goes on in code that may serve it and in no other",
        &["F80"],
        |setting| Box::pin(rolling_deploy(setting)),
    )
    .seconds(16),
    Scenario::new(
        "migrated",
        "workers of this release go on, and others of it begin, while a release to come changes the schema beneath them",
        &["F81"],
        |setting| Box::pin(migrated(setting)),
    )
    .seconds(16),
];

/// The number of workers per release.
const CREW: usize = 2;

/// Workers with default timings and a short drain.
const BRIEF: &[&str] = &["--timings", "default", "--drain-millis", "300"];

/// The runs of workflows that only one release has, or that both have in different versions.
const MAIL: &str = "select run_id, job from runledger.run where job in ('chaos.parcel', 'chaos.parcel@2', 'chaos.letter', 'chaos.letter@2', 'chaos.telegram')";

async fn rolling_deploy(setting: Setting) -> Result<Summary> {
    let mut scene = Scene::open(&setting, CREW, Release::Former.options()).await?;
    scene.site.may_reclaim = false;
    // A separate pool, because the client's callers queue for its connections.
    let db = Db::connect(scene.site.url()).await?;
    while scene.goes_on() {
        for release in [Release::Next, Release::Former] {
            for _ in 0..CREW {
                scene.hire_with(release.options()).await?;
                scene.moment(100, 600).await;
                occupy_eldest(&mut scene, &db).await?;
                retire_eldest(&mut scene).await?;
            }
            expect_left_alone(&mut scene, &db, release).await?;
        }
    }
    // With workers of both releases, every remaining run has code.
    scene.hire_with(Release::Next.options()).await?;
    let mut connection = scene.site.connect().await?;
    let open = format!(
        "select (count(*) = 0)::int::int8 from ({MAIL}) as mail where run_id not in (select run_id from runledger.outcome)"
    );
    reaches(&mut connection, &open, 1).await?;
    let misserved = misserved(&mut connection).await?;
    scene.site.violations.extend(misserved);
    let crossed = format!(
        "select count(*)
        from (
            select run_id
            from ({MAIL}) as mail join audit.claim using (run_id) join runledger.worker using (worker_id)
            where job = 'chaos.letter'
            group by run_id
            having count(distinct 'chaos.telegram' = any (worker.jobs)) = 2
        ) as crossed"
    );
    let n_crossed = count(&mut connection, &crossed).await?;
    scene.site.notes.push(format!("{n_crossed} runs went on in the other release"));
    if n_crossed == 0 {
        scene
            .site
            .violations
            .push("no run went on in the other release, so that nothing is shown".to_owned());
    }
    scene.end().await
}

/// Enqueues runs until the oldest worker executes a letter. It will hand the letter back, and
/// either release can continue it.
async fn occupy_eldest(scene: &mut Scene, db: &Db) -> Result<()> {
    let mut connection = scene.site.connect().await?;
    let letters = format!(
        "select count(*) from runledger.lease join runledger.run using (run_id) where worker_id = {} and job = 'chaos.letter'",
        scene.crew[0].process.worker_id
    );
    let began = Instant::now();
    loop {
        post(scene, db).await?;
        for _ in 0..100 {
            if count(&mut connection, &letters).await? > 0 {
                return Ok(());
            }
            scene.moment(10, 10).await;
        }
        ensure!(began.elapsed() < LONG, "the eldest worker has taken no letter after {LONG:?}");
    }
}

/// Enqueues runs of each kind, whichever release is present.
async fn post(scene: &mut Scene, db: &Db) -> Result<()> {
    for _ in 0..3 {
        ask(scene, db, former::parcel).await?;
        ask(scene, db, former::letter).await?;
        ask(scene, db, next::parcel).await?;
        ask(scene, db, next::letter).await?;
        ask(scene, db, next::telegram).await?;
    }
    Ok(())
}

async fn ask<J: Job>(
    scene: &mut Scene,
    db: &Db,
    call: impl FnOnce(Place) -> Call<J>,
) -> Result<RunHandle<J::Output>> {
    let number = Uuid::now_v7();
    let run = call(scene.site.place.of_call(number)).enqueue(db).await?;
    scene.site.asked.push(Submission { call: Some(number), ..Submission::acknowledged(run.id()) });
    Ok(run)
}

/// Asks the oldest worker to stop.
async fn retire_eldest(scene: &mut Scene) -> Result<()> {
    let mut member = scene.crew.remove(0);
    scene.site.n_faults += 1;
    if !member.process.terminate().await? {
        scene.site.violations.push(format!("process {} did not end well", member.process.pid));
    }
    Ok(())
}

/// With only one release present, a run without code must stay queued and be listed as unserved.
async fn expect_left_alone(scene: &mut Scene, db: &Db, release: Release) -> Result<()> {
    let (run_id, job, version) = match release {
        Release::Former if scene.dice.below(2) == 0 => {
            (ask(scene, db, next::telegram).await?.id(), "chaos.telegram", 1)
        }
        Release::Former => (ask(scene, db, next::parcel).await?.id(), "chaos.parcel", 2),
        Release::Next => (ask(scene, db, former::parcel).await?.id(), "chaos.parcel", 1),
    };
    // The canary is newer, so its worker could have claimed the other run first.
    let canary = check_canary().enqueue(db).await?;
    scene.site.asked.push(Submission::acknowledged(canary.id()));
    canary.result_within(LONG).await?;
    let info = db.run(run_id).info().await?;
    if (info.state, info.attempt) != (RunState::Queued, 0) {
        let (state, attempt) = (info.state, info.attempt);
        scene.site.violations.push(format!(
            "run {run_id} of `{job}` is {state:?} in attempt {attempt}, and nobody has its code"
        ));
    }
    let unserved = db.unserved().await?;
    if !unserved.iter().any(|unserved| (unserved.job.as_str(), unserved.version) == (job, version)) {
        scene
            .site
            .violations
            .push(format!("version {version} of `{job}`, which nobody serves, is not among {unserved:?}"));
    }
    Ok(())
}

/// Runs that ended in code of a version that may not serve them. A run's output is the version.
async fn misserved(connection: &mut PgConnection) -> Result<Vec<String>> {
    let misserved = format!(
        "select format('run %s of `%s` ended in code that gave %s', run_id, job, output)
        from ({MAIL}) as mail join runledger.outcome using (run_id)
        where coalesce(output::text, '') <> all (case job when 'chaos.parcel' then '{{1}}' when 'chaos.letter' then '{{1,2}}' else '{{2}}' end::text[])"
    );
    Ok(sqlx::query_scalar(sqlx::AssertSqlSafe(misserved)).fetch_all(connection).await?)
}

/// Changes that a later release may make while workers of earlier releases continue, one migration
/// each, as `CONTRIBUTING.md` requires.
const LATER: [(&str, &str); 15] = [
    ("run", "alter table runledger.run add column later text not null default 'later'"),
    ("ready", "alter table runledger.ready add column later integer"),
    ("lease", "alter table runledger.lease add column later timestamptz not null default now()"),
    ("waiting", "alter table runledger.waiting add column later text[]"),
    ("outcome", "alter table runledger.outcome add column later json"),
    ("step", "alter table runledger.step add column later integer not null default 0"),
    ("signal", "alter table runledger.signal add column later text"),
    ("attempt", "alter table runledger.attempt add column later text"),
    ("worker", "alter table runledger.worker add column later text not null default ''"),
    ("index", "create index step_later on runledger.step (recorded_at)"),
    ("check", "alter table runledger.outcome add constraint later check (attempt >= 0) not valid"),
    ("function", "do $$ begin execute pg_get_functiondef('runledger.notify(text, text)'::regprocedure); end $$"),
    (
        "view",
        "do $$ begin
            execute 'create or replace view runledger.run_state as select state.*, 1 as later from ('
                || rtrim(pg_get_viewdef('runledger.run_state'::regclass), ';') || ') as state';
        end $$",
    ),
    ("table", "create table runledger.later (run_id uuid primary key, noted_at timestamptz not null default statement_timestamp())"),
    (
        "trigger",
        "create function runledger.note_later() returns trigger language plpgsql as
            $$ begin insert into runledger.later (run_id) values (new.run_id) on conflict do nothing; return null; end $$;
        create trigger note_later after insert on runledger.outcome for each row execute function runledger.note_later()",
    ),
];

async fn migrated(setting: Setting) -> Result<Summary> {
    let mut scene = Scene::open(&setting, CREW, BRIEF).await?;
    scene.site.may_reclaim = false;
    let mut connection = scene.site.connect().await?;
    let mut known = MIGRATIONS.to_vec();
    let newest = known.last().map_or(0, |last| last.version);
    for ((name, sql), n) in LATER.into_iter().zip(1..) {
        scene.moment(100, 700).await;
        known.push(Migration { version: newest + n, name, sql, breaking: false });
        migrate_as(&mut connection, &known).await?;
        scene.site.n_faults += 1;
        if n % 5 == 0 {
            // The new worker starts on a schema that it does not know.
            scene.hire().await?;
            retire_eldest(&mut scene).await?;
        }
    }
    while scene.goes_on() {
        scene.moment(100, 100).await;
    }
    let noted = count(&mut connection, "select count(*) from runledger.later").await?;
    if noted == 0 {
        scene.site.violations.push("nothing ended on the newest schema, so that nothing is shown".to_owned());
    }
    scene.end().await
}
