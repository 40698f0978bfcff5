//! Cancels the live descendants of runs.

use std::collections::{BTreeMap, HashSet};

use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use super::{Budget, cancel_nodes, cancel_or_note};
use crate::store::error::spares_others;
use crate::store::locks::{IfLocked, free};
use crate::store::session::BEGIN_IN_ORDER;
use crate::store::sql;

/// The maximum number of children on a page. A run may have millions of children, most of them
/// ended.
const PAGE: usize = 2_000;

/// The maximum number of parents whose children are on one page.
const MOST_ABOVE: usize = 50;

/// Twice the depth that runs may have. A change from outside may have made a run its own
/// descendant.
const MOST_DEEP: usize = 200;

/// The number of nodes that the first transaction cancels. It is small, because a transaction
/// visits and cancels all dependents of each of its nodes. Later transactions visit fewer.
const FIRST_NODES: usize = 16;

/// The maximum number of nodes that one transaction cancels.
const MOST_NODES: usize = 1_000;

/// After this many failures, a caller without a budget gets the error, because it may concern all
/// runs. Maintenance then cancels the remaining runs.
const MOST_FAILURES: usize = 100;

/// Cancels all live descendants of some runs, page by page. Parents come before their children, so
/// that a cancelled child never wakes a parent that is about to be cancelled too. A run that has
/// ended or has a cancel request starts no children, so one walk is enough.
#[derive(Debug)]
pub(crate) struct Walk {
    runs: Vec<Uuid>,
    /// The runs with children that the walk has not reached. The last is next.
    todo: Vec<Above>,
    /// How many nodes the next transaction may cancel.
    n_nodes: usize,
    /// The runs for which both the cancel and the request failed.
    failed: HashSet<Uuid>,
    /// The first failure that leaves a descendant uncancelled.
    failure: Option<sqlx::Error>,
    /// The run whose cancel is under way. If the session is lost, or the caller drops the call, the
    /// run may be the cause.
    under_way: Option<Uuid>,
    /// Whether the nodes of this page are cancelled one by one, because a transaction with several
    /// of them failed.
    one_by_one: bool,
}

/// A run with children that the walk has not reached.
#[derive(Debug)]
struct Above {
    run_id: Uuid,
    /// The last child that the walk has reached.
    last: Uuid,
    depth: usize,
    reason: Option<String>,
}

struct Child {
    /// The index of its parent among the runs of the page.
    parent: usize,
    run_id: Uuid,
    goes_on: bool,
    /// Whether it can be cancelled together with others.
    is_free: bool,
    has_children: bool,
    reason: Option<String>,
}

enum Page {
    Cancelled,
    /// The cancelled nodes may have ended other nodes of the page.
    ReadAgain,
    BudgetSpent,
}

impl Walk {
    pub(crate) fn below(runs: Vec<Uuid>, reason: Option<&str>) -> Self {
        let above = |run_id: &Uuid| Above {
            run_id: *run_id,
            last: Uuid::nil(),
            depth: 0,
            reason: reason.map(str::to_owned),
        };
        let todo = runs.iter().map(above).collect();
        Self {
            runs,
            todo,
            n_nodes: FIRST_NODES,
            failed: HashSet::new(),
            failure: None,
            under_way: None,
            one_by_one: false,
        }
    }

    /// The runs with which the walk began.
    pub(crate) fn runs(&self) -> &[Uuid] {
        &self.runs
    }

    /// Why some descendants are not cancelled at the end of the walk.
    pub(crate) fn failure(&mut self) -> Option<sqlx::Error> {
        self.failure.take()
    }

    /// Continues the walk. Returns false if the budget is spent before the end. A run that another
    /// transaction keeps locked gets a request, which maintenance carries out. Appends the parents
    /// to wake afterwards. Skips the run whose cancel ended the last call.
    pub(crate) async fn go_on(
        &mut self,
        connection: &mut PgConnection,
        budget: &mut Budget,
        to_wake: &mut Vec<Uuid>,
    ) -> Result<bool, sqlx::Error> {
        if let Some(run_id) = self.under_way.take() {
            let error = format!("the session or the call ended during the cancel of the run {run_id}");
            self.fail(run_id, sqlx::Error::Io(std::io::Error::other(error)));
        }
        while !self.todo.is_empty() {
            let first = self.todo.len().saturating_sub(MOST_ABOVE);
            let above = &self.todo[first..];
            let limit = PAGE / above.len();
            let children = match budget.spend(read(connection, above, limit)).await {
                Err(error) if spares_others(&error) => {
                    self.failure.get_or_insert(error);
                    self.todo.truncate(first);
                    continue;
                }
                children => children?,
            };
            match self.cancel_page(connection, &children, budget, to_wake).await? {
                Page::Cancelled => self.pass(first, &children, limit),
                Page::ReadAgain => {}
                Page::BudgetSpent => return Ok(false),
            }
            if budget.is_spent() {
                return Ok(self.todo.is_empty());
            }
        }
        Ok(true)
    }

    /// Replaces the runs from `first` on: keeps those with more children, and adds the children
    /// that have children.
    fn pass(&mut self, first: usize, children: &[Child], limit: usize) {
        let mut below = Vec::new();
        let passed = self.todo.split_off(first);
        for (place, mut above) in passed.into_iter().enumerate() {
            let mut n_children = 0;
            for child in children.iter().filter(|child| child.parent == place) {
                n_children += 1;
                above.last = above.last.max(child.run_id);
                if child.has_children && above.depth < MOST_DEEP {
                    let (depth, reason) = (above.depth + 1, child.reason.clone());
                    below.push(Above { run_id: child.run_id, last: Uuid::nil(), depth, reason });
                }
            }
            if n_children == limit {
                self.todo.push(above);
            } else {
                // The next nodes may belong to another graph.
                self.n_nodes = FIRST_NODES;
            }
        }
        self.one_by_one = false;
        self.todo.append(&mut below);
    }

    /// Cancels the nodes of ended graphs together, and the other runs one by one.
    async fn cancel_page(
        &mut self,
        connection: &mut PgConnection,
        children: &[Child],
        budget: &mut Budget,
        to_wake: &mut Vec<Uuid>,
    ) -> Result<Page, sqlx::Error> {
        let mut free: BTreeMap<Option<&str>, Vec<Uuid>> = BTreeMap::new();
        let goes_together = |child: &&Child| {
            child.goes_on && child.is_free && !self.one_by_one && !self.failed.contains(&child.run_id)
        };
        for child in children.iter().filter(goes_together) {
            free.entry(child.reason.as_deref()).or_default().push(child.run_id);
        }
        let (mut n_taken, mut n_free) = (0, 0);
        for (reason, nodes) in &free {
            n_free += nodes.len();
            let mut left = nodes.as_slice();
            while !left.is_empty() {
                let (next, behind) = left.split_at(self.n_nodes.min(left.len()));
                self.one_by_one = true;
                let n_taken_now = budget.spend(cancel_nodes(connection, next, *reason)).await?;
                self.one_by_one = false;
                n_taken += n_taken_now;
                // A transaction that cancels nothing is no progress.
                if n_taken_now > 0 && budget.is_spent() {
                    return Ok(Page::BudgetSpent);
                }
                left = behind;
                self.n_nodes = (self.n_nodes * 2).min(MOST_NODES);
            }
        }
        if 0 < n_taken && n_taken < n_free {
            return Ok(Page::ReadAgain);
        }
        let is_left = |child: &&Child| {
            child.goes_on && (n_taken == 0 || !child.is_free) && !self.failed.contains(&child.run_id)
        };
        let left = children.iter().filter(is_left);
        // The next call does not repeat the transactions that fail.
        self.one_by_one |= n_taken < n_free;
        let left = left.map(|child| (child.run_id, child.reason.as_deref())).collect();
        self.cancel_each(connection, left, budget, to_wake).await?;
        if budget.is_spent() {
            return Ok(Page::BudgetSpent);
        }
        Ok(Page::Cancelled)
    }

    /// Cancels runs one by one, while the budget lasts.
    async fn cancel_each(
        &mut self,
        connection: &mut PgConnection,
        runs: Vec<(Uuid, Option<&str>)>,
        budget: &mut Budget,
        to_wake: &mut Vec<Uuid>,
    ) -> Result<(), sqlx::Error> {
        let ids: Vec<Uuid> = runs.iter().map(|(run_id, _)| *run_id).collect();
        let free = free(connection, &ids).await?;
        let mut n_failures = 0;
        // A client gets the error. Another client that cancels the same runs ends soon.
        let if_noted = if budget.is_unlimited() { IfLocked::Wait } else { IfLocked::Skip };
        for (run_id, reason) in runs {
            self.under_way = Some(run_id);
            let cancel = cancel_or_note(connection, run_id, reason, free.contains(&run_id), if_noted);
            match budget.spend(cancel).await {
                Ok(parent) => to_wake.extend(parent),
                Err(error)
                    if spares_others(&error) && !(budget.is_unlimited() && n_failures == MOST_FAILURES) =>
                {
                    n_failures += 1;
                    self.fail(run_id, error);
                }
                Err(error) => return Err(error),
            }
            self.under_way = None;
            if budget.is_spent() {
                break;
            }
        }
        Ok(())
    }

    fn fail(&mut self, run_id: Uuid, error: sqlx::Error) {
        self.failed.insert(run_id);
        self.failure.get_or_insert(error);
    }
}

async fn read(
    connection: &mut PgConnection,
    above: &[Above],
    limit: usize,
) -> Result<Vec<Child>, sqlx::Error> {
    let runs: Vec<Uuid> = above.iter().map(|above| above.run_id).collect();
    let last: Vec<Uuid> = above.iter().map(|above| above.last).collect();
    let reasons: Vec<Option<&str>> = above.iter().map(|above| above.reason.as_deref()).collect();
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let query = sqlx::query(sql::CANCEL_BELOW).bind(runs).bind(last).bind(reasons).bind(limit);
    let mut tx = connection.begin_with(BEGIN_IN_ORDER).await?;
    let rows = query.fetch_all(&mut *tx).await?;
    tx.rollback().await?;
    rows.iter()
        .map(|row| {
            let place: i64 = row.try_get("place")?;
            Ok(Child {
                parent: usize::try_from(place - 1).unwrap_or(usize::MAX),
                run_id: row.try_get("run_id")?,
                goes_on: row.try_get("goes_on")?,
                is_free: row.try_get("is_free")?,
                has_children: row.try_get("has_children")?,
                reason: row.try_get("reason")?,
            })
        })
        .collect()
}
