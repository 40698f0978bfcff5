//! The failpoints of the engine, each with a scene in which a process passes it. `tests/tidy`
//! compares this list with the sources.

use anyhow::{Context, Result};
use runledger::__private::failpoints::{self, Action, Moment};

use super::scenes::Scene;

/// Every point, with a scene in which the first pass through the point has an effect.
pub const POINTS: &[(&str, Scene)] = &[
    // Statements, by name.
    ("activate", Scene::Graph),
    ("adopt", Scene::Pause),
    ("cancel_ask", Scene::Cancel),
    ("cancel_forget", Scene::Cancel),
    ("cancel_nodes", Scene::Cancel),
    ("cancel_note", Scene::Cancel),
    ("cancel_take", Scene::Cancel),
    ("checkpoint", Scene::Work),
    ("checkpoint_fresh", Scene::Work),
    ("claim", Scene::Work),
    ("claim_with_permit", Scene::Pause),
    ("configure", Scene::Pause),
    ("deadline_forget", Scene::Cancel),
    ("deadline_set", Scene::Cancel),
    ("continue_run", Scene::Work),
    ("emit", Scene::Work),
    ("end_sessions", Scene::Paused),
    ("enqueue", Scene::Work),
    ("enqueue_fresh", Scene::Work),
    ("gate_decide", Scene::Graph),
    ("gate_revoke", Scene::Graph),
    ("heartbeat", Scene::Work),
    ("keep_one_place", Scene::Mended),
    ("link", Scene::Resume),
    ("log", Scene::Pause),
    ("pause_ask", Scene::Pause),
    ("pause_forget", Scene::Pause),
    ("pause_take", Scene::Pause),
    ("pin", Scene::Pause),
    ("predecessors", Scene::Killed),
    ("progress", Scene::Work),
    ("release", Scene::Graph),
    ("resume", Scene::Resume),
    ("send_signal", Scene::Work),
    ("set_permits", Scene::Pause),
    ("settle", Scene::Work),
    ("settle_completed", Scene::Work),
    ("start_child", Scene::Work),
    ("step_failed", Scene::Work),
    ("submit_graph", Scene::Graph),
    ("suspect", Scene::Paused),
    ("suspend", Scene::Work),
    ("take_signal", Scene::Work),
    ("set_overrides", Scene::Pause),
    ("unconfigure", Scene::Pause),
    ("clear_overrides", Scene::Pause),
    ("wake_due", Scene::Timer),
    ("wake_met", Scene::Mended),
    ("wake_parents", Scene::Work),
    ("watch", Scene::Work),
    ("worker_ask_drain", Scene::Drain),
    ("worker_bury", Scene::Killed),
    ("worker_drain", Scene::Work),
    ("worker_lock", Scene::Work),
    ("worker_locked", Scene::Work),
    ("worker_pull_back", Scene::Work),
    ("worker_register", Scene::Work),
    ("worker_sleep", Scene::Work),
    ("worker_trial", Scene::Timer),
    // Commits of transactions.
    ("append", Scene::Graph),
    ("active_graph", Scene::Graph),
    ("batch", Scene::Work),
    ("body", Scene::Work),
    ("burial_by_lock", Scene::Killed),
    ("burial_by_silence", Scene::Paused),
    ("cancel", Scene::Cancel),
    ("cancel_batch", Scene::Cancel),
    ("continuation", Scene::Work),
    ("enqueue_on_pool", Scene::Work),
    ("gate", Scene::Graph),
    ("gate_revocation", Scene::Graph),
    ("graph_on_pool", Scene::Graph),
    ("link_whole", Scene::Graph),
    ("migrate", Scene::Migrate),
    ("pause", Scene::Pause),
    ("pause_left", Scene::Pause),
    ("pinning", Scene::Pause),
    ("resumption", Scene::Resume),
    ("settle_and_wake", Scene::Work),
    ("settle_orphans", Scene::Killed),
    ("signal", Scene::Work),
    ("start_graph", Scene::Graph),
    ("suspension", Scene::Work),
    ("wake_stranded", Scene::Mended),
];

/// The faults that can happen at a point.
pub const FAULTS: [(Moment, Action); 6] = [
    (Moment::Before, Action::Error),
    (Moment::Before, Action::Abort),
    (Moment::After, Action::Error),
    (Moment::After, Action::Abort),
    (Moment::Lost, Action::Error),
    (Moment::Lost, Action::Abort),
];

/// One fault at one point.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The point.
    pub point: &'static str,
    /// The scene in which a process passes the point.
    pub scene: Scene,
    /// The moment.
    pub moment: Moment,
    /// The fault.
    pub action: Action,
}

/// Every fault at every point.
pub fn all() -> impl Iterator<Item = Case> {
    POINTS.iter().flat_map(|&(point, scene)| {
        FAULTS.into_iter().map(move |(moment, action)| Case { point, scene, moment, action })
    })
}

impl Case {
    /// The command-line arguments that pass this case to a process.
    #[must_use]
    pub fn arguments(&self) -> [String; 3] {
        [self.point.to_owned(), format!("{:?}", self.moment), format!("{:?}", self.action)]
    }
}

/// Arms the fault of [`Case::arguments`]. Does nothing without arguments.
///
/// # Errors
/// If the arguments name no known moment or action.
pub fn arm(arguments: &[String]) -> Result<()> {
    let [point, moment, action] = arguments else { return Ok(()) };
    let moments = [Moment::Before, Moment::After, Moment::Lost];
    let actions = [Action::Error, Action::Abort, Action::Wait];
    let moment =
        moments.into_iter().find(|known| format!("{known:?}") == *moment).context("no such moment")?;
    let action =
        actions.into_iter().find(|known| format!("{known:?}") == *action).context("no such action")?;
    failpoints::arm(point, moment, action);
    Ok(())
}
