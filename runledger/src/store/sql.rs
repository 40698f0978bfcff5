//! The engine's statements, by name. Each file in `sql/` has one statement and its contract.
//! `sql/claim/parts/` has endings that several statements share.
//!
//! Some statements run on connections of the application. Their `search_path` may list schemas in
//! which other roles can create objects. An exact match there wins over a polymorphic or coerced
//! match in `pg_catalog`. So a statement names the schema of each function, casts the literals
//! after `->` and `->>`, and names the schema of polymorphic operators (`operator(pg_catalog.&&)`).
//! `unnest` of several arrays is syntax, not a call. `tests/it/search_path.rs` checks this rule.

macro_rules! statements {
    ($($folder:literal { $($name:ident = $file:literal $(+ $part:literal)?;)* })*) => {
        $($(
            pub(crate) const $name: &str = concat!(
                include_str!(concat!("sql/", $folder, "/", $file, ".sql")),
                $(include_str!(concat!("sql/", $folder, "/parts/", $part, ".sql")),)?
            );
        )*)*

        /// The statements by file name, for the test that prepares each of them.
        pub const ALL: &[(&str, &str)] = &[$($(($file, $name)),*),*];
    };
}

statements! {
    "claim" {
        CLAIM = "claim" + "claimed";
        CLAIM_APART = "claim" + "claimed_apart";
        CLAIM_WITH_PERMIT = "claim_with_permit" + "claimed";
        CLAIM_WITH_PERMIT_APART = "claim_with_permit" + "claimed_apart";
        CONTENT = "content" + "claimed";
        LANES = "lanes";
        RESOURCE_LANES = "resource_lanes";
        WAKE_SLEEPING = "wake_sleeping";
    }
    "step" {
        CHECKPOINT = "checkpoint";
        CHECKPOINT_FRESH = "checkpoint_fresh";
        IN_BODY = "in_body";
        LOCK_LEASE = "lock_lease";
        RECORDED = "recorded";
        SEND_SIGNAL = "send_signal";
        SIGNAL_LEFT = "signal_left";
        STEP_FAILED = "step_failed";
        TAKE_SIGNAL = "take_signal";
    }
    "output" {
        EMIT = "emit";
        EMITTED = "emitted";
        LAST_PROGRESS = "last_progress";
        LOG = "log";
        LOGGED = "logged";
        PROGRESS = "progress";
        PUBLISHED = "published";
    }
    "settle" {
        CONTINUE_RUN = "continue_run";
        PARENT = "parent";
        SEEN_WHOLE = "seen_whole";
        SETTLE = "settle";
        SETTLE_COMPLETED = "settle_completed";
        START_CHILD = "start_child";
        STILL_DUE = "still_due";
        STRANDED = "stranded";
        SUSPEND = "suspend";
        TIMERS_DUE = "timers_due";
        TOPMOST = "topmost";
        WAKE_DUE = "wake_due";
        WAKE_MET = "wake_met";
        WAKE_PARENTS = "wake_parents";
    }
    "enqueue" {
        ACTIVATE = "activate";
        ACTIVE_HOLDER = "active_holder";
        DEADLINE_SET = "deadline_set";
        ENQUEUE = "enqueue";
        ENQUEUE_FRESH = "enqueue_fresh";
        EXISTING = "existing";
        LOCK_FREE_RUNS = "lock_free_runs";
        LOCK_RUNS = "lock_runs";
    }
    "link" {
        GOING_ON_BELOW = "going_on_below";
        LINK = "link";
        LINK_FROM = "link_from";
        ORIGINS = "origins";
        PIN = "pin";
        PINS = "pins";
        SHARERS = "sharers";
    }
    "inspect" {
        ATTEMPTS = "attempts";
        END_OF_RUN = "end_of_run";
        HAPPENED = "happened";
        HISTORY = "history";
        IN_FLIGHT = "in_flight";
        JOBS_KNOWN = "jobs_known";
        METRICS = "metrics";
        RUN = "run";
        RUNS = "runs";
        STEPS = "steps";
        UNSERVED = "unserved";
        WATCH = "watch";
        WORKERS = "workers";
    }
    "graph" {
        ADDITION = "addition";
        APPEND_LOCK = "append_lock";
        APPEND_LOOK = "append_look";
        GATE_DECIDE = "gate_decide";
        GATE_LINK = "gate_link";
        GATE_REVOKE = "gate_revoke";
        GATE_TYPE = "gate_type";
        GRAPH_EDGES = "graph_edges";
        GRAPH_ENDS = "graph_ends";
        GRAPH_HEAD = "graph_head";
        GRAPH_NODES = "graph_nodes";
        GRAPH_PARTS = "graph_parts";
        LOCK_COUNTERS = "lock_counters";
        RELEASE = "release";
        SUBMIT_GRAPH = "submit_graph";
    }
    "stop" {
        CANCEL_ASK = "cancel_ask";
        CANCEL_BELOW = "cancel_below";
        CANCEL_FORGET = "cancel_forget";
        CANCEL_LEFT = "cancel_left";
        CANCEL_NODES = "cancel_nodes";
        CANCEL_NOTE = "cancel_note";
        CANCEL_TAKE = "cancel_take";
        DEADLINE_DUE = "deadline_due";
        DEADLINE_FORGET = "deadline_forget";
        PAUSE_ASK = "pause_ask";
        PAUSE_FORGET = "pause_forget";
        PAUSE_LEFT = "pause_left";
        PAUSE_TAKE = "pause_take";
        RESUME = "resume";
    }
    "settings" {
        CLEAR_OVERRIDES = "clear_overrides";
        CONFIGS = "configs";
        CONFIGURE = "configure";
        RESOURCES = "resources";
        SET_OVERRIDES = "set_overrides";
        SET_PERMITS = "set_permits";
        OVERRIDES = "overrides";
        UNCONFIGURE = "unconfigure";
    }
    "worker" {
        ASKED_OF = "asked_of";
        HEARTBEAT = "heartbeat";
        LOCK_HELD = "lock_held";
        LOCK_IS_FREE = "lock_is_free";
        PREDECESSORS = "predecessors";
        PROGRESSED = "progressed";
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
    "recovery" {
        COMPANION = "companion";
        END_SESSIONS = "end_sessions";
        FREE_LEASES = "free_leases";
        HELD = "held";
        KEEP_ONE_PLACE = "keep_one_place";
        ORPHANED = "orphaned";
        ORPHANS = "orphans";
        SUSPECT = "suspect";
    }
    "server" {
        ADOPT = "adopt";
        INSTALLATION = "installation";
        LIMITS = "limits";
        MAY_WRITE = "may_write";
        SEARCH_PATH = "search_path";
        SERVER = "server";
        TIMELINE = "timeline";
    }
}
