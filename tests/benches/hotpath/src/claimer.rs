//! The client side of the claim: a cursor per lane, and the background scan that finds runs behind
//! the cursors.

use crate::Res;
use crate::instant::Instant;
use crate::net::{Net, due};
use crate::variant::Variant;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{FromRow, Row};
use std::collections::BTreeMap;
use std::time::{Duration, Instant as Clock};
use uuid::Uuid;

/// How far behind its cursor a claim sometimes starts, in microseconds. The background scan (`Net`)
/// covers everything older.
const REACH: [i64; 2] = [20_000, 1_000_000];

/// Runs of one job at one priority in one queue. Sorts by urgency (the negated priority) first,
/// because a higher priority is served first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    pub urgency: i16,
    pub queue: String,
    pub job: String,
}

/// A range of a lane: after a row, up to an instant.
#[derive(Clone, Copy)]
pub struct Stretch {
    pub after: (Instant, Uuid),
    pub until: Instant,
}

pub struct Claimed {
    pub run_id: Uuid,
    pub lane: Lane,
    pub ready_at: Instant,
    pub attempt: i16,
    pub token: Uuid,
}

/// When a scan last ran, its cost, and the number of scans so far.
#[derive(Clone, Copy, Default)]
pub struct Look {
    pub last: Option<Clock>,
    pub cost: Duration,
    pub taken: u32,
}

/// Claims for one worker.
pub struct Claimer {
    variant: Variant,
    worker: i32,
    lanes: BTreeMap<Lane, (Instant, Uuid)>,
    served: Vec<(String, String)>,
    looks: [Look; REACH.len()],
    discovery: Look,
    net: Net,
    turn: usize,
}

impl Claimer {
    pub fn new(variant: Variant, worker: i32, served: &[(&str, &str)]) -> Self {
        Self {
            variant,
            worker,
            lanes: BTreeMap::new(),
            served: served.iter().map(|(q, j)| ((*q).to_owned(), (*j).to_owned())).collect(),
            looks: [Look::default(); REACH.len()],
            discovery: Look::default(),
            net: Net::new(variant, worker),
            turn: 0,
        }
    }

    /// Claims up to `limit` runs after the cursors, and adds the runs that the background scan has
    /// claimed.
    pub async fn claim(&mut self, connection: &mut PgConnection, limit: i64) -> Res<Vec<Claimed>> {
        if due(&self.discovery) {
            self.discover(connection).await?;
        }
        let watched = self.variant.remembers && self.variant.look_back;
        let caught = if watched { self.net.tend(&self.lanes, limit).await? } else { vec![] };
        let level = (0..REACH.len()).rev().find(|level| watched && due(&self.looks[*level]));
        let began = Clock::now();
        let mut claimed = self.take(connection, limit, level.map_or(0, |level| REACH[level])).await?;
        if self.variant.remembers {
            self.advance(&claimed, level.is_some());
        }
        if let Some(level) = level {
            // A scan that reaches farther back covers the nearer ones too.
            for look in &mut self.looks[..=level] {
                look.last = Some(Clock::now());
            }
            self.looks[level].cost = began.elapsed();
            self.looks[level].taken += 1;
        }
        claimed.extend(caught);
        Ok(claimed)
    }

    /// Claims from the cursors without any scan and moves the cursors, in every variant.
    pub async fn drain(&mut self, connection: &mut PgConnection, limit: i64) -> Res<Vec<Claimed>> {
        let claimed = self.take(connection, limit, 0).await?;
        self.advance(&claimed, false);
        Ok(claimed)
    }

    /// Claims once, starting `reach` microseconds behind the cursors.
    pub async fn take(&mut self, connection: &mut PgConnection, limit: i64, reach: i64) -> Res<Vec<Claimed>> {
        let lanes = self.in_turn(reach);
        let claimed = take(connection, self.variant.claim, self.worker, &lanes, limit).await?;
        self.turn = self.turn.wrapping_add(1);
        Ok(claimed)
    }

    /// Finds priorities that have ready runs in the served queues but no lane yet.
    pub async fn discover(&mut self, connection: &mut PgConnection) -> Res<()> {
        let Some(statement) = self.variant.discover else { return Ok(()) };
        let began = Clock::now();
        loop {
            let (queues, jobs, above, below) = self.gaps();
            let probe = sqlx::query_as(statement).bind(queues).bind(jobs).bind(above).bind(below);
            let found: Vec<(String, String, i16)> = probe.fetch_all(&mut *connection).await?;
            if found.is_empty() {
                break;
            }
            for (queue, job, priority) in found {
                self.know(priority, &queue, &job);
            }
        }
        self.discovery =
            Look { last: Some(Clock::now()), cost: began.elapsed(), taken: self.discovery.taken + 1 };
        Ok(())
    }

    pub fn know(&mut self, priority: i16, queue: &str, job: &str) {
        let lane = Lane { urgency: -priority, queue: queue.to_owned(), job: job.to_owned() };
        self.lanes.insert(lane, (Instant::START, Uuid::nil()));
    }

    /// The numbers of near, far and background scans, and the cost of the last background scan.
    pub fn looks(&self) -> ([u32; 3], Duration) {
        let [near, far] = self.looks;
        ([near.taken, far.taken, self.net.look.taken], self.net.look.cost)
    }

    /// The ranges between the known priorities of every served job: queues, jobs, lower bounds,
    /// upper bounds.
    fn gaps(&self) -> (Vec<&str>, Vec<&str>, Vec<i32>, Vec<i32>) {
        let (mut queues, mut jobs, mut above, mut below) = (vec![], vec![], vec![], vec![]);
        for (queue, job) in &self.served {
            let mut upper = i32::from(i16::MAX) + 1;
            let known = self.lanes.keys().filter(|lane| lane.queue == *queue && lane.job == *job);
            for priority in known.map(|lane| -i32::from(lane.urgency)).chain([i32::from(i16::MIN) - 1]) {
                if upper - priority > 1 {
                    queues.push(queue.as_str());
                    jobs.push(job.as_str());
                    above.push(priority);
                    below.push(upper);
                }
                upper = priority;
            }
        }
        (queues, jobs, above, below)
    }

    /// The lanes by priority. Lanes of equal priority take turns in first place.
    fn in_turn(&self, reach: i64) -> Vec<(Lane, Stretch)> {
        let stretch = |at: (Instant, Uuid)| Stretch { after: (at.0.back(reach), at.1), until: Instant::END };
        let mut lanes: Vec<_> = self.lanes.iter().map(|(lane, at)| (lane.clone(), stretch(*at))).collect();
        for equals in lanes.chunk_by_mut(|(a, _), (b, _)| a.urgency == b.urgency) {
            equals.rotate_left(self.turn % equals.len());
        }
        lanes
    }

    /// Moves each cursor to the lane's last claimed run. After a scan a cursor may move back,
    /// because runs after a late run are probably late too.
    fn advance(&mut self, claimed: &[Claimed], looked_back: bool) {
        for (lane, at) in last_of(claimed) {
            let known = self.lanes.entry(lane).or_insert(at);
            *known = if looked_back { at } else { at.max(*known) };
        }
    }
}

/// The last claimed row of each lane.
pub fn last_of(claimed: &[Claimed]) -> BTreeMap<Lane, (Instant, Uuid)> {
    let mut last = BTreeMap::new();
    for run in claimed {
        let at = (run.ready_at, run.run_id);
        last.entry(run.lane.clone()).and_modify(|known| *known = at.max(*known)).or_insert(at);
    }
    last
}

/// Runs the claim statement over ranges of lanes, in the order in which they are served.
pub async fn take(
    connection: &mut PgConnection,
    statement: &'static str,
    worker: i32,
    lanes: &[(Lane, Stretch)],
    limit: i64,
) -> Res<Vec<Claimed>> {
    let token = Uuid::now_v7();
    let rows = sqlx::query(statement)
        .bind(lanes.iter().map(|(lane, _)| lane.queue.as_str()).collect::<Vec<_>>())
        .bind(lanes.iter().map(|(lane, _)| lane.job.as_str()).collect::<Vec<_>>())
        .bind(lanes.iter().map(|(lane, _)| -lane.urgency).collect::<Vec<_>>())
        .bind(lanes.iter().map(|(_, at)| at.after.0).collect::<Vec<_>>())
        .bind(lanes.iter().map(|(_, at)| at.after.1).collect::<Vec<_>>())
        .bind(limit)
        .bind(token)
        .bind(worker)
        .bind(lanes.iter().map(|(_, at)| at.until).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    let mut claimed = Vec::with_capacity(rows.len());
    for row in &rows {
        claimed.push(Claimed { token, ..Claimed::from_row(row)? });
    }
    Ok(claimed)
}

impl<'r> FromRow<'r, PgRow> for Claimed {
    fn from_row(row: &'r PgRow) -> sqlx::Result<Self> {
        let _input: String = row.try_get("input")?;
        Ok(Self {
            run_id: row.try_get("run_id")?,
            lane: Lane {
                urgency: -row.try_get::<i16, _>("priority")?,
                queue: row.try_get("queue")?,
                job: row.try_get("job")?,
            },
            ready_at: row.try_get("ready_at")?,
            attempt: row.try_get("attempt")?,
            token: Uuid::nil(),
        })
    }
}
