//! The engine's statements, by name. Each file in `sql/` has one statement and its contract.
//! `sql/parts/` has endings that several statements share.
//!
//! Some statements run on connections of the application. Their `search_path` may list schemas in
//! which other roles can create objects. An exact match there wins over a polymorphic or coerced
//! match in `pg_catalog`. So a statement names the schema of each function, casts the literals
//! after `->` and `->>`, and names the schema of polymorphic operators (`operator(pg_catalog.&&)`).
//! `unnest` of several arrays is syntax, not a call. `tests/it/search_path.rs` checks this rule.

macro_rules! statements {
    ($($name:ident = $file:literal $(+ $part:literal)?;)*) => {
        $(
            pub(crate) const $name: &str = concat!(
                include_str!(concat!("sql/", $file, ".sql")),
                $(include_str!(concat!("sql/parts/", $part, ".sql")),)?
            );
        )*

        /// The statements by file name, for the test that prepares each of them.
        pub const ALL: &[(&str, &str)] = &[$(($file, $name)),*];
    };
}

statements! {
    ACTIVATE = "activate";
    ACTIVE_HOLDER = "active_holder";
    ADDITION = "addition";
    ADOPT = "adopt";
    APPEND_LOCK = "append_lock";
    APPEND_LOOK = "append_look";
    ASKED_OF = "asked_of";
    ATTEMPTS = "attempts";
    CANCEL_ASK = "cancel_ask";
    CANCEL_BELOW = "cancel_below";
    CANCEL_FORGET = "cancel_forget";
    CANCEL_LEFT = "cancel_left";
    CANCEL_NODES = "cancel_nodes";
    CANCEL_NOTE = "cancel_note";
    CANCEL_TAKE = "cancel_take";
    CHECKPOINT = "checkpoint";
    CHECKPOINT_FRESH = "checkpoint_fresh";
    CLAIM = "claim" + "claimed";
    CLAIM_APART = "claim" + "claimed_apart";
    CLAIM_WITH_PERMIT = "claim_with_permit" + "claimed";
    CLAIM_WITH_PERMIT_APART = "claim_with_permit" + "claimed_apart";
    COMPANION = "companion";
    CONFIGS = "configs";
    CONFIGURE = "configure";
    DEADLINE_DUE = "deadline_due";
    DEADLINE_FORGET = "deadline_forget";
    DEADLINE_SET = "deadline_set";
    CONTENT = "content" + "claimed";
    CONTINUE_RUN = "continue_run";
    EMIT = "emit";
    EMITTED = "emitted";
    END_OF_RUN = "end_of_run";
    END_SESSIONS = "end_sessions";
    ENQUEUE = "enqueue";
    ENQUEUE_FRESH = "enqueue_fresh";
    EXISTING = "existing";
    FREE_LEASES = "free_leases";
    GATE_DECIDE = "gate_decide";
    GATE_LINK = "gate_link";
    GATE_REVOKE = "gate_revoke";
    GATE_TYPE = "gate_type";
    GOING_ON_BELOW = "going_on_below";
    GRAPH_EDGES = "graph_edges";
    GRAPH_ENDS = "graph_ends";
    GRAPH_HEAD = "graph_head";
    GRAPH_NODES = "graph_nodes";
    GRAPH_PARTS = "graph_parts";
    HAPPENED = "happened";
    HEARTBEAT = "heartbeat";
    HELD = "held";
    HISTORY = "history";
    IN_BODY = "in_body";
    INSTALLATION = "installation";
    IN_FLIGHT = "in_flight";
    JOBS_KNOWN = "jobs_known";
    LANES = "lanes";
    LAST_PROGRESS = "last_progress";
    LIMITS = "limits";
    LINK = "link";
    LINK_FROM = "link_from";
    LOCK_HELD = "lock_held";
    LOCK_IS_FREE = "lock_is_free";
    LOCK_LEASE = "lock_lease";
    LOCK_PENDING = "lock_pending";
    KEEP_ONE_PLACE = "keep_one_place";
    LOCK_FREE_RUNS = "lock_free_runs";
    LOCK_RUNS = "lock_runs";
    LOG = "log";
    LOGGED = "logged";
    MAY_WRITE = "may_write";
    METRICS = "metrics";
    ORIGINS = "origins";
    ORPHANED = "orphaned";
    ORPHANS = "orphans";
    PARENT = "parent";
    PAUSE_ASK = "pause_ask";
    PAUSE_FORGET = "pause_forget";
    PAUSE_LEFT = "pause_left";
    PAUSE_TAKE = "pause_take";
    PIN = "pin";
    PINS = "pins";
    PREDECESSORS = "predecessors";
    PROGRESS = "progress";
    PROGRESSED = "progressed";
    PUBLISHED = "published";
    RECORDED = "recorded";
    RELEASE = "release";
    RESOURCES = "resources";
    RESOURCE_LANES = "resource_lanes";
    RESUME = "resume";
    RUN = "run";
    SEARCH_PATH = "search_path";
    SEEN_WHOLE = "seen_whole";
    SEND_SIGNAL = "send_signal";
    RUNS = "runs";
    SERVER = "server";
    SETTLE = "settle";
    SETTLE_COMPLETED = "settle_completed";
    SHARERS = "sharers";
    SET_PERMITS = "set_permits";
    SIGNAL_LEFT = "signal_left";
    START_CHILD = "start_child";
    STEPS = "steps";
    STEP_FAILED = "step_failed";
    STRANDED = "stranded";
    SUBMIT_GRAPH = "submit_graph";
    SUSPECT = "suspect";
    SUSPEND = "suspend";
    TAKE_SIGNAL = "take_signal";
    TIMELINE = "timeline";
    TOPMOST = "topmost";
    SET_OVERRIDES = "set_overrides";
    TUNINGS = "tunings";
    UNCONFIGURE = "unconfigure";
    UNSERVED = "unserved";
    CLEAR_OVERRIDES = "clear_overrides";
    TIMERS_DUE = "timers_due";
    WAKE_DUE = "wake_due";
    WAKE_MET = "wake_met";
    WAKE_PARENTS = "wake_parents";
    WAKE_SLEEPING = "wake_sleeping";
    WATCH = "watch";
    WORKERS = "workers";
    WORKER_ASK_DRAIN = "worker_ask_drain";
    WORKER_BURY = "worker_bury";
    WORKER_DRAIN = "worker_drain";
    WORKER_LOCK = "worker_lock";
    WORKER_LOCKED = "worker_locked";
    WORKER_PULL_BACK = "worker_pull_back";
    WORKER_REGISTER = "worker_register";
    WORKER_SLEEP = "worker_sleep";
    WORKER_TRIAL = "worker_trial";
}
