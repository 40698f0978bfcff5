//! Bodies that only look nondeterministic, and bodies that `allow(…)` permits.

use ::runledger::{Error, Result, Wf, job, workflow};
use ::std::collections::HashMap;
use ::std::prelude::rust_2024::*;
use ::std::time::{Duration, Instant, SystemTime};
use ::tokio::{join, select};

/// Harmless functions with suspicious names.
async fn sleep(wf: &Wf, seconds: u64) -> Result<()> {
    Ok(wf.sleep(Duration::from_secs(seconds)).await?)
}

fn now(began: SystemTime) -> Duration {
    began.elapsed().unwrap_or_default()
}

const fn random() -> u64 {
    4
}

const fn spawn(value: u64) -> u64 {
    value
}

#[derive(Clone, Copy)]
struct Set(u64);

impl Set {
    const fn spawn(self, value: u64) -> u64 {
        self.0 + value
    }

    const fn thread_rng(self) -> u64 {
        self.0
    }
}

/// Code in a step may differ between executions, because its output is recorded.
#[workflow(name = "replays.steps")]
pub async fn steps(wf: &Wf, path: String) -> Result<u64> {
    let read = wf.step("read", || async { Ok::<_, Error>(::std::fs::read(&path)?.len()) });
    let at = wf.step("at", || async {
        ::tokio::time::sleep(Duration::from_millis(1)).await;
        let home = ::std::env::var("HOME");
        ::std::thread::spawn(|| 7).join().map_err(|_| Error::terminal("a panic"))?;
        Ok::<_, Error>((SystemTime::now(), home.is_ok()))
    });
    let (read, at) = join!(read, at);
    let size = select! {
        size = wf.step::<_, _, Result<u64>>("size", async || Ok(::std::fs::metadata(&path)?.len())) => size?,
        late = sleep(wf, 60) => late.map(|()| 0)?,
    };
    let [first, second] =
        [1, 2].map(|n| Wf::step(wf, "nth", move || async move { Ok::<_, Error>((n, Instant::now()).0) }));
    let draw = || async { Ok::<_, Error>(::std::fs::read(&path)?.first().copied().map_or(0, u64::from)) };
    let sum = first.await? + second.await? + wf.step("draw", draw).await? + wf.step("draw", draw).await?;
    Ok(size + sum + u64::from(at?.1) + u64::try_from(read?).unwrap_or_default())
}

/// A name alone proves little. Names in texts and attributes do not count.
#[workflow(name = "replays.names")]
pub async fn names(wf: &Wf, began: SystemTime) -> Result<u64> {
    use ::std::fs::File;
    /// As `File::open`, which is not done here: `SystemTime::now()`.
    #[job(name = "replays.open")]
    async fn open(path: &str) -> Result<u64> {
        Ok(File::open(path)?.metadata()?.len())
    }
    // std::env::var("HOME")
    let (thread_rng, text) = (Set(4), "rand::random(), Uuid::new_v4()");
    sleep(wf, u64::from(text.is_empty())).await?;
    let value = spawn(random()) + thread_rng.spawn(7) + thread_rng.thread_rng() + now(began).as_secs();
    Ok(value + wf.run(open(text)).await?)
}

/// Helpers that only steps call may do anything, wherever they are defined.
#[workflow(name = "replays.helpers")]
pub async fn helpers(wf: &Wf, path: String, due: SystemTime) -> Result<u64> {
    fn read(path: &str) -> ::std::io::Result<u64> {
        Ok(size(&::std::fs::read(path)?))
    }
    const fn size(bytes: &[u8]) -> u64 {
        bytes.len() as u64
    }
    let began: SystemTime = wf.now();
    let age: fn(SystemTime) -> bool = |due| SystemTime::now() > due;
    let home = {
        let name = path.clone();
        move || ::std::env::var(&name).is_ok()
    };
    let length = wf.step("read", || async { Ok::<_, Error>(read(&path)?) }).await?;
    let is_late = wf.step("late", || async { Ok::<_, Error>(age(due) || home()) }).await?;
    // The order of a map does not matter to a sum, and each branch has its own key.
    let counts: HashMap<String, u64> = path.split('/').map(|part| (part.to_owned(), 1)).collect();
    let mut sum = counts.values().sum::<u64>();
    let mut parts = Vec::new();
    for (name, count) in &counts {
        let part = wf.branch(name);
        parts.push(async move { sleep(&part, *count).await });
    }
    for part in parts {
        part.await?;
    }
    sum += u64::from(is_late) + wf.now().duration_since(began)?.as_secs();
    Ok(sum + length)
}

/// Permitted by an explicit `allow`.
#[workflow(allow(wall_clock, sleep), name = "replays.excused")]
pub async fn excused(wf: &Wf, pause: Duration) -> Result<()> {
    let began = Instant::now();
    ::std::thread::sleep(pause);
    wf.step("taken", || async { Ok::<_, Error>(began.elapsed()) }).await?;
    Ok(())
}
