//! Behaviours 16, 17, 19 and 25 for workflows of any shape: random programs of combinators,
//! branches, waits, markers, transactions, sagas and children. Some fail, and attempts are cut off
//! at random.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, UNIX_EPOCH};

use futures::stream::FuturesUnordered;
use futures::{StreamExt, stream};
use runledger::prelude::*;
use runledger::{EnqueuedRun, RunHandle, RunState, Saga, Step, enqueue_all};
use runledger_tests::Fixture;
use runledger_tests::rows::take_some_away;
use runledger_tests::seed::seed;
use uuid::Uuid;

use runledger_tests::rows::{LONG, execute, random, scalar, worker};

/// The effects of transactions, each at most once.
const TABLES: &str = "create table deed (run_id uuid, what text, primary key (run_id, what))";

/// The values that one part of a program has observed, in order.
type Seen = Vec<u64>;
type Part<'a> = Pin<Box<dyn Future<Output = Result<Seen>> + Send + 'a>>;

/// A step whose input is everything that its part has observed. If a replay observed something
/// else, the run would diverge. Returns its tag, which shows whose output it is.
#[job(max_attempts = 1)]
async fn noted(tag: u64, seen: Vec<u64>) -> Result<(u64, u64)> {
    drop(seen);
    tokio::time::sleep(Duration::from_micros(random(4_000))).await;
    Ok((tag, random(1_000_000)))
}

async fn write(tx: &mut Tx, run_id: Uuid, what: &str) -> Result<()> {
    let insert = sqlx::query("insert into deed (run_id, what) values ($1, $2)");
    insert.bind(run_id).bind(what).execute(&mut **tx).await?;
    Ok(())
}

/// As [`noted`], with a row that may exist only once. Every seventh fails.
#[job(max_attempts = 1)]
async fn booked(
    tag: u64,
    seen: Vec<u64>,
    #[inject] tx: &mut Tx,
    #[inject] context: &Context,
) -> Result<(u64, u64)> {
    drop(seen);
    write(tx, context.run_id(), &tag.to_string()).await?;
    if tag.is_multiple_of(7) { Err(Error::terminal("booked out")) } else { Ok((tag, random(1_000_000))) }
}

/// Compensates [`booked`] with another row.
#[job(max_attempts = 1)]
async fn unbooked(tag: u64, #[inject] tx: &mut Tx, #[inject] context: &Context) -> Result<()> {
    write(tx, context.run_id(), &format!("not {tag}")).await
}

#[job(max_attempts = 1)]
async fn unnoted(tag: u64) -> Result<u64> {
    tokio::time::sleep(Duration::from_micros(random(2_000))).await;
    Ok(tag)
}

fn mixed(seed: u64) -> u64 {
    fastrand::Rng::with_seed(seed).u64(..)
}

/// Returns the seed of the n-th child of a part.
fn part_of(seed: u64, n: u64) -> u64 {
    mixed(seed ^ mixed(n + 1))
}

/// Runs a step and checks that its output is its own.
async fn step(wf: &Wf, tag: u64, seen: &[u64]) -> Result<Seen> {
    let (whose, value) = wf.run(noted(tag, seen.to_vec())).await?;
    if whose != tag {
        return Err(Error::terminal(format!("the output of {whose} was given to {tag}")));
    }
    Ok(vec![value])
}

/// One part of a program. The seed decides its shape, and its steps depend on what it has observed.
fn part<'a>(wf: &'a Wf, seed: u64, depth: u32, seen: &'a [u64]) -> Part<'a> {
    Box::pin(async move {
        let inner = depth.saturating_sub(1);
        match if depth == 0 { seed % 7 } else { seed % 19 } {
            0..=1 => step(wf, seed, seen).await,
            3 => marks(wf, seed),
            4 => transacted(wf, seed).await,
            5 => taken_back(wf, seed, seen).await,
            2 | 6 => heard(wf, seed).await,
            7 | 18 => in_turn(wf, seed, inner, seen).await,
            8 => joined(wf, seed, inner, seen).await,
            9 => raced_parts(wf, seed, inner, seen).await,
            10 => unordered(wf, seed, inner, seen).await,
            11 => buffered(wf, seed, inner, seen).await,
            12 => mapped(wf, seed, seen).await,
            13 => raced_steps(wf, seed, seen).await,
            14 => waited(wf, seed).await,
            15 => started(wf, seed, seen).await,
            16 => beside_a_child(wf, seed, inner, seen).await,
            _ => looped(wf, seed, seen).await,
        }
    })
}

/// Reads the time, random numbers and a patch. Replays must read the same values.
fn marks(wf: &Wf, seed: u64) -> Result<Seen> {
    let now = wf.now().duration_since(UNIX_EPOCH)?.as_micros();
    let patched = wf.patched(&format!("change-{}", seed % 3));
    Ok(vec![u64::try_from(now)?, wf.random() >> 1, u64::from(patched), wf.uuid().as_u64_pair().1 >> 1])
}

async fn in_turn(wf: &Wf, seed: u64, depth: u32, seen: &[u64]) -> Result<Seen> {
    let mut all = seen.to_vec();
    for n in 0..2 + seed % 2 {
        let more = part(wf, part_of(seed, n), depth, &all).await?;
        all.extend(more);
    }
    Ok(all[seen.len()..].to_vec())
}

async fn joined(wf: &Wf, seed: u64, depth: u32, seen: &[u64]) -> Result<Seen> {
    let (left, right) = (wf.branch("left"), wf.branch("right"));
    let (mut left, right) = tokio::try_join!(
        part(&left, part_of(seed, 0), depth, seen),
        part(&right, part_of(seed, 1), depth, seen)
    )?;
    left.extend(right);
    Ok(left)
}

/// The first part to end wins. The first poll is at a random part. Each part starts with a step,
/// because a part that is ready at once would win unnoticed.
async fn raced_parts(wf: &Wf, seed: u64, depth: u32, seen: &[u64]) -> Result<Seen> {
    let (left, right) = (wf.branch("left"), wf.branch("right"));
    tokio::select! {
        first = step_and_part(&left, part_of(seed, 0), depth, seen) => first,
        first = step_and_part(&right, part_of(seed, 1), depth, seen) => first,
    }
}

async fn step_and_part(wf: &Wf, seed: u64, depth: u32, seen: &[u64]) -> Result<Seen> {
    let first = step(wf, seed, seen).await?;
    part(wf, part_of(seed, 0), depth, &first).await
}

async fn unordered(wf: &Wf, seed: u64, depth: u32, seen: &[u64]) -> Result<Seen> {
    let branches: Vec<_> = (0..3).map(|_| wf.branch("any")).collect();
    let mut parts: FuturesUnordered<_> =
        (0..).zip(&branches).map(|(n, wf)| part(wf, part_of(seed, n), depth, seen)).collect();
    let mut all = Vec::new();
    while let Some(more) = parts.next().await {
        all.extend(more?);
    }
    Ok(all)
}

async fn buffered(wf: &Wf, seed: u64, depth: u32, seen: &[u64]) -> Result<Seen> {
    let branches: Vec<_> = (0..4).map(|_| wf.branch("two")).collect();
    let parts: Vec<_> = (0..).zip(&branches).map(|(n, wf)| part(wf, part_of(seed, n), depth, seen)).collect();
    let mut parts = stream::iter(parts).buffer_unordered(2);
    let mut all = Vec::new();
    while let Some(more) = parts.next().await {
        all.extend(more?);
    }
    Ok(all)
}

async fn mapped(wf: &Wf, seed: u64, seen: &[u64]) -> Result<Seen> {
    let tags: Vec<u64> = (0..5).map(|n| part_of(seed, n)).collect();
    let outputs = wf.map(&tags, |tag| noted(*tag, seen.to_vec()).key(tag.to_string())).limit(2).await?;
    if !outputs.iter().map(|(tag, _)| tag).eq(&tags) {
        return Err(Error::terminal("outputs of a map in another order than its items"));
    }
    Ok(outputs.into_iter().map(|(_, value)| value).collect())
}

async fn raced_steps(wf: &Wf, seed: u64, seen: &[u64]) -> Result<Seen> {
    let (place, (tag, value)) =
        wf.race((0..3).map(|n| wf.run(noted(part_of(seed, n), seen.to_vec())))).await?;
    if tag != part_of(seed, u64::try_from(place)?) {
        return Err(Error::terminal("the output of another step of a race"));
    }
    Ok(vec![u64::try_from(place)?, value])
}

async fn waited(wf: &Wf, seed: u64) -> Result<Seen> {
    let limit = Duration::from_millis(seed % 4);
    let signal: Option<u64> = wf.signal("never").timeout(limit).await?;
    wf.sleep(limit).await?;
    Ok(vec![signal.unwrap_or(seed)])
}

/// Receives signals with a limit: in single waits, concurrent waits, races of waits and dropped
/// waits.
async fn heard(wf: &Wf, seed: u64) -> Result<Seen> {
    let limit = Duration::from_millis(seed % 8);
    let word = |limit| wf.signal::<u64>("word").timeout(limit);
    let words: Vec<Option<u64>> = match seed / 128 % 4 {
        0 => vec![word(limit).await?],
        1 => {
            let (one, other) = tokio::join!(word(limit), word(limit));
            vec![one?, other?]
        }
        2 => vec![wf.race([word(limit), word(2 * limit)]).await?.1],
        _ => tokio::select! {
            biased;
            word = wf.signal("word") => vec![Some(word?)],
            slept = wf.sleep(limit) => {
                slept?;
                vec![None]
            }
        },
    };
    Ok(words.into_iter().map(|word| word.unwrap_or(seed)).collect())
}

/// A loop that ends once it has seen enough.
async fn looped(wf: &Wf, seed: u64, seen: &[u64]) -> Result<Seen> {
    let mut all = seen.to_vec();
    while all.len() < seen.len() + 5 {
        let more = step(wf, part_of(seed, all.last().copied().unwrap_or(0)), &all).await?;
        let is_last = more[0].is_multiple_of(3);
        all.extend(more);
        if is_last {
            break;
        }
    }
    Ok(all[seen.len()..].to_vec())
}

async fn transacted(wf: &Wf, seed: u64) -> Result<Seen> {
    let run_id = wf.run_id();
    let written = wf.tx("written", |mut tx| async move {
        let insert = sqlx::query("insert into deed (run_id, what) values ($1, $2)");
        insert.bind(run_id).bind(format!("tx {seed}")).execute(&mut *tx).await?;
        Ok::<_, Error>(random(1_000_000))
    });
    Ok(vec![written.max_attempts(1).await?])
}

/// A step of a saga. Its key names the saga.
fn compensable<'wf>(saga: &Saga<'wf>, of: u64, tag: u64, seen: &[u64]) -> Step<'wf, (u64, u64)> {
    let key = format!("{of}-{tag}");
    if tag.is_multiple_of(2) {
        saga.run(noted(tag, seen.to_vec()).key(key), |(tag, _)| unnoted(*tag))
    } else {
        saga.run(booked(tag, seen.to_vec()).key(key), |(tag, _)| unbooked(*tag))
    }
}

/// Runs compensable steps: single ones, concurrent ones, races, and groups in which one fails. Then
/// compensates them or not. After a compensation, a step records it.
async fn taken_back(wf: &Wf, seed: u64, seen: &[u64]) -> Result<Seen> {
    let saga = wf.saga();
    let mut all = seen.to_vec();
    for n in 0..1 + seed % 3 {
        let way = part_of(seed, n);
        let step = |m| compensable(&saga, seed, part_of(way, m), &all);
        let values: Vec<u64> = match way % 4 {
            0 => vec![step(0).await.map_or(0, |(_, value)| value)],
            1 => {
                let (place, (tag, value)) = match wf.race((0..3).map(step)).await {
                    Ok(first) => first,
                    Err(_) => (0, (part_of(way, 0), 0)),
                };
                assert_eq!(tag, part_of(way, place as u64), "the output of another step of a race");
                vec![value]
            }
            2 => {
                let both = tokio::try_join!(step(0), step(1));
                both.map_or(vec![0], |((_, one), (_, other))| vec![one, other])
            }
            _ => {
                let (one, other) = tokio::join!(step(0), step(1));
                [one, other].into_iter().map(|done| done.map_or(0, |(_, value)| value)).collect()
            }
        };
        all.extend(values);
    }
    if seed.is_multiple_of(5) {
        return Ok(all[seen.len()..].to_vec());
    }
    saga.compensate().await;
    let (_, last) = wf.run(noted(seed, all.clone()).key(format!("undone-{seed}"))).await?;
    all.push(last);
    Ok(all[seen.len()..].to_vec())
}

/// A small child run, which may fail.
#[workflow(name = "tangles.child", max_attempts = 1)]
async fn child(wf: &Wf, seed: u64) -> Result<u64> {
    let seen = taken_back(wf, seed, &[]).await?;
    let value = step(wf, seed, &seen).await?[0];
    if seed.is_multiple_of(3) { Err(Error::terminal("a child that fails")) } else { Ok(value) }
}

async fn started(wf: &Wf, seed: u64, seen: &[u64]) -> Result<Seen> {
    let seed = part_of(seed, seen.len() as u64);
    let result = wf.start(child(seed)).await?.result().await;
    if result.is_err() != seed.is_multiple_of(3) {
        return Err(Error::terminal(format!("the result of another child: {result:?}")));
    }
    Ok(vec![result.unwrap_or(seed)])
}

/// The part and the child must not influence each other.
async fn beside_a_child(wf: &Wf, seed: u64, depth: u32, seen: &[u64]) -> Result<Seen> {
    let (left, right) = (wf.branch("child"), wf.branch("part"));
    let (mut all, more) =
        tokio::try_join!(started(&left, seed, seen), part(&right, part_of(seed, 0), depth, seen))?;
    all.extend(more);
    Ok(all)
}

/// Whether a program fails at its end.
fn fails(seed: u64) -> bool {
    mixed(seed).is_multiple_of(4)
}

const SO_IT_ENDS: &str = "a program that fails";

#[workflow(name = "tangles.program")]
async fn program(wf: &Wf, seed: u64) -> Result<usize> {
    let seen = part(wf, seed, 3, &[]).await?;
    // A last step takes everything that the program observed as its input.
    step(wf, seed, &seen).await?;
    if fails(seed) { Err(Error::terminal(SO_IT_ENDS)) } else { Ok(seen.len()) }
}

/// Counts uncompensated steps of failed and cancelled runs.
const LEFT: &str = "
    select count(*)
    from runledger.step
    join runledger.outcome using (run_id)
    where outcome.state <> 'completed' and step.compensation is not null
        and not exists (select from runledger.step as compensated where compensated.run_id = step.run_id and compensated.key = 'compensate[' || step.key || ']')";

/// Counts uncompensated steps of sagas that the code has compensated.
const LEFT_BY_THE_CODE: &str = "
    select count(*)
    from (select run_id, substring(key from 'undone-([0-9]+)') as saga from runledger.step where key like '%noted[undone-%' and key not like 'compensate[%') as undone
    join runledger.step using (run_id)
    where step.compensation is not null and strpos(step.key, '[' || saga || '-') > 0
        and not exists (select from runledger.step as compensated where compensated.run_id = step.run_id and compensated.key = 'compensate[' || step.key || ']')";

/// The difference between the rows that transactions wrote and the records of those transactions.
const APART: &str = "
    select array[
        (select count(*) from deed where what like 'tx %') - (select count(*) from runledger.step where key ~ '(^|/)written' and output is not null),
        (select count(*) from deed where what like 'not %')
            - (select count(*) from runledger.step where key like 'compensate[%booked[%'),
        (select count(*) from deed where what not like '% %')
            - (select count(*) from runledger.step where key ~ '^([^[]*/)?booked[[]' and output is not null)
    ]";

/// Counts signals that differ from the record of their wait, and the difference between the number
/// of received signals and the number of recorded ones.
const MISHEARD: &str = "
    select array[
        (
            select count(*)
            from runledger.signal
            where taken_by is not null and not exists (
                select
                from runledger.step
                where step.run_id = signal.run_id and step.key = signal.taken_by and step.output::text = signal.payload::text
            )
        ),
        (select count(*) from runledger.signal where taken_by is not null)
            - (select count(*) from runledger.step where key ~ '(^|/)signal[[]word[]]' and output is not null)
    ]";

/// Every second program has a signal from the start, because most end before [`talk`] reaches them.
async fn enqueue_with_words(db: &Db, seeds: impl Iterator<Item = u64>) -> Vec<EnqueuedRun> {
    let mut tx = db.pool().begin().await.unwrap();
    let runs = enqueue_all(seeds.map(program), &mut *tx).await.unwrap();
    for run in runs.iter().step_by(2) {
        RunHandle::attach(program, db, run.run_id).signal("word", &99).send(&mut *tx).await.unwrap();
    }
    tx.commit().await.unwrap();
    runs
}

/// Sends some signals to each run while it is live.
async fn talk(db: Db, runs: Vec<Uuid>) {
    for word in 0..12_u64 {
        for run_id in &runs {
            let _ = db.run(*run_id).signal("word", &word).await;
        }
    }
}

/// The number of concurrent programs.
const AT_ONCE: u64 = 250;

async fn programs_replay(n_programs: u64) {
    let Fixture { db, database } = Fixture::new().await;
    execute(&db, TABLES).await;
    let jobs = jobs![program, child, noted, unnoted, booked, unbooked];
    // The test has its own pool: bodies may use all connections of the workers' pool for seconds.
    let of_workers = Db::connect(database.url()).await.unwrap();
    let one = worker(&of_workers, jobs).await;
    let two = worker(&of_workers, jobs).await;
    let left = "select count(*) from runledger.run where run_id not in (select run_id from runledger.outcome)
                and run_id not in (select run_id from runledger.waiting where state = 'blocked')";
    let (mut n_losses, first) = (0, seed() >> 16);
    for from in (0..n_programs).step_by(usize::try_from(AT_ONCE).unwrap()) {
        let seeds = (from..n_programs.min(from + AT_ONCE)).map(|n| mixed(first + n));
        let runs = enqueue_with_words(&db, seeds.clone()).await;
        let talking = tokio::spawn(talk(db.clone(), runs.iter().map(|run| run.run_id).collect()));
        let began = Instant::now();
        while scalar::<i64>(&db, left).await > 0 {
            n_losses += take_some_away(&db).await;
            tokio::time::sleep(Duration::from_micros(random(6_000))).await;
            assert!(began.elapsed() < LONG * 3, "some program hangs");
        }
        talking.await.unwrap();
        for (seed, run) in seeds.zip(runs) {
            let info = db.run(run.run_id).info().await.unwrap();
            let expected = if fails(seed) { RunState::Failed } else { RunState::Completed };
            let as_it_was_to = info.error.as_ref().is_none_or(|failure| failure.message == SO_IT_ENDS);
            assert!(
                info.state == expected && as_it_was_to,
                "program {seed} is {}: {:?} after {n_losses} losses",
                info.state,
                info.error
            );
        }
    }
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.waiting").await, 0, "a child is blocked");
    assert_eq!(scalar::<i64>(&db, LEFT).await, 0, "of a run that has failed");
    assert_eq!(scalar::<i64>(&db, LEFT_BY_THE_CODE).await, 0, "of a saga that the code has taken back");
    assert_eq!(scalar::<Vec<i64>>(&db, APART).await, [0, 0, 0], "what is written and what is recorded");
    assert_eq!(scalar::<Vec<i64>>(&db, MISHEARD).await, [0, 0], "signals that were taken");
    let n_heard = "select count(*) from runledger.signal where taken_by is not null";
    let n_heard: i64 = scalar(&db, n_heard).await;
    assert!(n_heard.unsigned_abs() > n_programs / 50, "only {n_heard} words were heard");
    assert!(n_losses > n_programs / 4, "only {n_losses} attempts were interrupted");
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_random_programs_replay_without_divergence() {
    programs_replay(500).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: `cargo random`, or `cargo exhaustive` with the others"]
async fn five_thousand_random_programs_replay_without_divergence() {
    programs_replay(5_000).await;
}
