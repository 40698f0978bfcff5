//! Every order in which the statements of two or three transactions can reach the server, on one
//! connection each.
//!
//! A statement that waits for another transaction is detected by asking the server which session
//! blocks it, never by time. The later statements of its transaction then wait too, and the other
//! transactions continue. So every order is executed as far as the locks allow.

mod scene;
mod steps;

use std::time::Duration;

use runledger::__private::SESSION_SETTINGS;
use runledger_tests::Fixture;
use sqlx::PgConnection;
use tokio::task::JoinHandle;

pub use scene::{CRASHES, End, RunEnd, Scene, Start};
pub use steps::{Ending, Said, Step};

use crate::statements::{Edit, Statements};

/// The pause between two checks for blocked statements. Most statements end within it, which saves
/// the check.
const PACE: Duration = Duration::from_millis(2);

/// Concurrent transactions, and what must hold after every order of them.
#[derive(Debug)]
pub struct Pair {
    /// The name of the transactions.
    pub name: &'static str,
    /// The database before them.
    pub start: Start,
    /// The statements of each transaction, in the engine's order.
    pub transactions: &'static [&'static [Step]],
    /// Returns an error if the database after them violates an expectation.
    pub holds: fn(&End) -> Result<(), String>,
}

/// A defect under which the expectation must be violated.
#[derive(Clone, Copy, Debug)]
pub enum Wrong {
    /// A change in the text of a statement.
    Text(Edit),
    /// Other statements in the transactions.
    Transactions(&'static [&'static [Step]]),
}

/// The result of all orders.
#[derive(Debug, Default)]
pub struct Explored {
    /// The number of orders.
    pub n_interleavings: usize,
    /// The number of orders in which a statement waited.
    pub n_waited: usize,
    /// The orders with a violation, and the violation.
    pub violations: Vec<String>,
}

impl Pair {
    /// Executes every order, with the engine's statements or with a defect.
    ///
    /// # Errors
    /// The database could not be prepared or read.
    pub async fn explore(&self, wrong: Option<Wrong>) -> Result<Explored, sqlx::Error> {
        let (statements, transactions) = match wrong {
            None => (Statements::real(), self.transactions),
            Some(Wrong::Text(edit)) => (Statements::with(edit), self.transactions),
            Some(Wrong::Transactions(transactions)) => (Statements::real(), transactions),
        };
        let fixture = Fixture::new().await;
        let mut admin = fixture.database.connect().await?;
        let mut sessions = Vec::new();
        for _ in transactions {
            sessions.push(Session::open(&fixture, statements).await?);
        }
        let mut explored = Explored::default();
        for order in orders(&transactions.iter().map(|steps| steps.len()).collect::<Vec<_>>()) {
            let scene = Scene::set(&mut admin, self.start).await?;
            let played;
            (played, sessions) = play(&mut admin, sessions, transactions, &scene, &order).await?;
            let said = sessions.iter_mut().map(|session| std::mem::take(&mut session.said)).collect();
            let end = End::read(&mut admin, &scene, said).await?;
            explored.n_interleavings += 1;
            explored.n_waited += usize::from(played.waited);
            if let Err(violation) = end.check(self.holds) {
                explored.violations.push(format!("{}: {violation}", played.trace.join(", ")));
            }
        }
        Ok(explored)
    }

    /// Returns the number of orders: the ways to interleave sequences of these lengths.
    #[must_use]
    pub fn n_interleavings(transactions: &[&[Step]]) -> usize {
        let mut ways = 1;
        let mut n_before = 0;
        for steps in transactions {
            for at in 1..=steps.len() {
                // `n choose k`, exact at every step.
                ways = ways * (n_before + at) / at;
            }
            n_before += steps.len();
        }
        ways
    }
}

/// All interleavings of sequences of these lengths, each as the sequence of turns.
fn orders(lengths: &[usize]) -> Vec<Vec<usize>> {
    if lengths.iter().all(|length| *length == 0) {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for turn in (0..lengths.len()).filter(|turn| lengths[*turn] > 0) {
        let mut rest = lengths.to_vec();
        rest[turn] -= 1;
        all.extend(orders(&rest).into_iter().map(|order| [vec![turn], order].concat()));
    }
    all
}

/// A connection, and what its transaction has learned.
struct Session {
    db: PgConnection,
    pid: i32,
    statements: Statements,
    said: Said,
}

impl Session {
    async fn open(fixture: &Fixture, statements: Statements) -> Result<Self, sqlx::Error> {
        let mut db = fixture.database.connect().await?;
        sqlx::raw_sql(SESSION_SETTINGS).execute(&mut db).await?;
        let pid = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut db).await?;
        Ok(Self { db, pid, statements, said: Said::default() })
    }
}

/// A session between two steps, or inside one.
enum Turn {
    Idle(Box<Session>),
    Busy {
        pid: i32,
        step: JoinHandle<Box<Session>>,
        waits: bool,
    },
    /// Only while the value moves from one variant to another.
    Moving,
}

struct Played {
    trace: Vec<String>,
    waited: bool,
}

async fn play(
    admin: &mut PgConnection,
    sessions: Vec<Session>,
    transactions: &'static [&'static [Step]],
    scene: &Scene,
    order: &[usize],
) -> Result<(Played, Vec<Session>), sqlx::Error> {
    let pids: Vec<i32> = sessions.iter().map(|session| session.pid).collect();
    let mut turns: Vec<Turn> = sessions.into_iter().map(|session| Turn::Idle(Box::new(session))).collect();
    let mut next = vec![0; turns.len()];
    let mut pending = order.to_vec();
    let mut played = Played { trace: Vec::new(), waited: false };
    loop {
        let free = pending.iter().position(|turn| matches!(turns[*turn], Turn::Idle(_)));
        let Some(at) = free else {
            if turns.iter().all(|turn| matches!(turn, Turn::Idle(_))) {
                break;
            }
            // All remaining sessions wait for each other. The server's deadlock detector ends one.
            first_of(&mut turns).await;
            continue;
        };
        let turn = pending.remove(at);
        let step = transactions[turn][next[turn]];
        next[turn] += 1;
        played.trace.push(format!("{turn}:{step:?}"));
        turns[turn] = begin(std::mem::replace(&mut turns[turn], Turn::Moving), step, scene);
        for busy in &mut turns {
            played.waited |= !until_done_or_blocked(admin, busy, &pids).await?;
        }
    }
    let sessions = turns
        .into_iter()
        .filter_map(|turn| match turn {
            Turn::Idle(session) => Some(*session),
            Turn::Busy { .. } | Turn::Moving => None,
        })
        .collect();
    Ok((played, sessions))
}

fn begin(turn: Turn, step: Step, scene: &Scene) -> Turn {
    let Turn::Idle(mut session) = turn else { unreachable!("a step begins in an idle session") };
    let (pid, scene) = (session.pid, scene.clone());
    let step = tokio::spawn(async move {
        let Session { db, statements, said, .. } = &mut *session;
        step.perform(db, *statements, &scene, said).await;
        session
    });
    Turn::Busy { pid, step, waits: false }
}

/// Waits until a step has ended. Returns false if it waits for another session.
async fn until_done_or_blocked(
    admin: &mut PgConnection,
    turn: &mut Turn,
    pids: &[i32],
) -> Result<bool, sqlx::Error> {
    let Turn::Busy { pid, step, waits } = turn else { return Ok(true) };
    let blocked = "select pg_blocking_pids($1) && $2";
    loop {
        // A step that waited is probably still waiting, so the check comes first.
        let pace = if *waits { Duration::ZERO } else { PACE };
        if let Ok(ended) = tokio::time::timeout(pace, &mut *step).await {
            *turn = idle(ended);
            return Ok(true);
        }
        *waits = sqlx::query_scalar(blocked).bind(*pid).bind(pids).fetch_one(&mut *admin).await?;
        if *waits {
            return Ok(false);
        }
    }
}

async fn first_of(turns: &mut [Turn]) {
    let busy = turns.iter_mut().filter_map(|turn| match turn {
        Turn::Busy { step, .. } => Some(step),
        Turn::Idle(_) | Turn::Moving => None,
    });
    let (ended, at, _) = futures::future::select_all(busy).await;
    let ended = idle(ended);
    let busy = turns.iter_mut().filter(|turn| matches!(turn, Turn::Busy { .. }));
    if let Some(turn) = { busy }.nth(at) {
        *turn = ended;
    }
}

fn idle(ended: Result<Box<Session>, tokio::task::JoinError>) -> Turn {
    Turn::Idle(ended.unwrap_or_else(|error| unreachable!("a step panicked: {error}")))
}

/// Ends an open transaction on a connection.
async fn roll_back(db: &mut PgConnection) {
    // If this fails the connection is lost, and the next statement reports it.
    let _ = sqlx::raw_sql("rollback").execute(db).await;
}
