//! Kills a worker process in the middle of its workflows. Measures how long until another process
//! has claimed and completed them.

use std::time::{Duration, Instant};

use runledger::enqueue_all;

use super::memory::{HALF, held, until_held};
use super::process::Process;
use super::{WHO, client};
use crate::Res;
use crate::arguments::Arguments;
use crate::line::Line;
use crate::work::{connect, now, number, until};

/// A second process reclaims the workflows. With `--restart 1` a new process with the name of the
/// killed one does.
pub async fn measure(url: &str, arguments: &Arguments) -> Res<Line> {
    let (workflows, fast) = (arguments.count("workflows", 256), arguments.count("fast", 0));
    let restart = arguments.get("restart", 0) == 1;
    let db = client(url, 4).await?;
    let mut connection = connect(url).await?;
    let settings = [("fast", fast), ("concurrency", workflows)];
    let named = [&settings[..], &[("name", 1)]].concat();
    let doomed = Process::start(url, &[&named[..], &[("hold", 1)]].concat()).await?;
    enqueue_all((0..workflows).map(|_| held()), &db).await?;
    until_held(url, workflows).await?;
    let mut heir = if restart { None } else { Some(Process::start(url, &settings).await?) };
    let (began, killed_at) = (Instant::now(), now(&mut connection).await?);
    doomed.kill().await?;
    if restart {
        heir = Some(Process::start(url, &named).await?);
    }
    let heir = heir.ok_or("nobody took over")?;
    until(&mut connection, "select count(*) from runledger.outcome where state = 'completed'", workflows)
        .await?;
    let took = began.elapsed();
    let steps = usize::try_from(number(&mut connection, "select count(*) from runledger.step").await?)?;
    if steps != workflows * (2 * HALF + 1) {
        return Err(format!("{steps} steps are recorded").into());
    }
    let query = "select count(*) filter (where worker_id = $2),
                     (extract(epoch from max(started_at) - $1::timestamptz) * 1000000)::bigint,
                     (extract(epoch from max(finished_at) - $1::timestamptz) * 1000000)::bigint
                 from runledger.outcome";
    let asked = sqlx::query_as::<_, (i64, i64, i64)>(query).bind(&killed_at).bind(heir.worker_id);
    let (elsewhere, claimed, ended) = asked.fetch_one(&mut connection).await?;
    if usize::try_from(elsewhere)? != workflows {
        return Err(format!("{elsewhere} of {workflows} workflows ended in the other process").into());
    }
    let [claimed, ended] =
        [claimed, ended].map(|micros| Duration::from_micros(micros.unsigned_abs()).as_secs_f64());
    Ok(Line::named(WHO, "recovery", arguments, workflows, took)
        .with("claimed_s", claimed)
        .with("ended_s", ended)
        .noting("from kill -9 until the last of its workflows was claimed elsewhere, and had ended there"))
}
