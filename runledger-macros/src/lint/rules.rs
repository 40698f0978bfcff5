//! The refused paths, with the reason and the replacement.

use super::mentions::{Form, Mention};
use super::tokens::is_function;

/// The kinds of code that replay does not repeat. Each has a word for `allow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    WallClock,
    Randomness,
    FreshUuids,
    Sleep,
    Spawn,
    Io,
    HashOrder,
}

impl Class {
    /// In the order of the documentation.
    const ALL: [Self; 7] = [
        Self::WallClock,
        Self::Randomness,
        Self::FreshUuids,
        Self::Sleep,
        Self::Spawn,
        Self::Io,
        Self::HashOrder,
    ];

    pub(crate) fn words() -> [&'static str; 7] {
        Self::ALL.map(Self::word)
    }

    pub(crate) fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.word() == word)
    }

    fn word(self) -> &'static str {
        match self {
            Self::WallClock => "wall_clock",
            Self::Randomness => "randomness",
            Self::FreshUuids => "fresh_uuids",
            Self::Sleep => "sleep",
            Self::Spawn => "spawn",
            Self::Io => "io",
            Self::HashOrder => "hash_order",
        }
    }
}

/// Paths that are refused for the same reason and have the same replacement.
pub(super) struct Rule {
    pub class: Class,
    why: &'static str,
    instead: &'static str,
    /// The last names of each path. Must be fewer names than the full path has, so that the path
    /// may start at any `use`. A `*` stands for the rest of a function's name, `!` for a macro, and
    /// `()` for a call without arguments.
    paths: &'static [&'static str],
}

/// Refuses a method of points in time.
const ELAPSED: Rule = Rule {
    class: Class::WallClock,
    why: "`elapsed` reads the wall clock, which reads differently on replay",
    instead: "use `wf.now().duration_since(…)`, or read it in a step",
    paths: &["SystemTime::elapsed", "Instant::elapsed"],
};

/// Refuses a loop.
const HASH_ORDER: Rule = Rule {
    class: Class::HashOrder,
    why: "a `HashMap` or a `HashSet` has another order on replay, and so have the steps of this loop",
    instead: "loop over a `BTreeMap`, a `BTreeSet` or a sorted `Vec`",
    paths: &[],
};

const RULES: &[Rule] = &[
    ELAPSED,
    Rule {
        class: Class::WallClock,
        why: "the wall clock reads differently on replay",
        instead: "use `wf.now()`, which is recorded, or read it in a step",
        paths: &[
            "SystemTime::now",
            "Instant::now",
            "Utc::now",
            "Local::now",
            "OffsetDateTime::now_utc",
            "OffsetDateTime::now_local",
            "UtcDateTime::now",
            "Timestamp::now",
            "Zoned::now",
        ],
    },
    Rule {
        class: Class::Randomness,
        why: "a random value is another one on replay",
        instead: "use `wf.random()`, which is recorded, or draw it in a step",
        paths: &[
            "rand::random*",
            "rand::rng",
            "rand::make_rng",
            "rand::fill",
            "thread_rng",
            "rand::thread_rng",
            "ThreadRng::default",
            "OsRng",
            "SysRng",
            "from_entropy",
            "from_os_rng",
            "try_from_os_rng",
            "fastrand::*",
            "fastrand::Rng::new",
            "getrandom",
            "getrandom::*",
            "RandomState::new",
            "RandomState::default",
        ],
    },
    Rule {
        class: Class::FreshUuids,
        why: "a fresh id is another one on replay",
        instead: "use `wf.uuid()`, which is recorded, or make it in a step",
        paths: &[
            "Uuid::new_v1",
            "Uuid::new_v4",
            "Uuid::new_v6",
            "Uuid::new_v7",
            "Uuid::now_v1",
            "Uuid::now_v6",
            "Uuid::now_v7",
            "Ulid::new",
            "Ulid::from_datetime",
            "nanoid!",
        ],
    },
    Rule {
        class: Class::Sleep,
        why: "this sleep begins anew on replay and keeps the run in its worker",
        instead: "use `wf.sleep()` or `wf.sleep_until()`, whose instant of waking is recorded",
        paths: &[
            "time::sleep",
            "time::sleep_until",
            "time::interval",
            "time::interval_at",
            "thread::sleep",
            "task::sleep",
            "futures_timer::Delay::new",
        ],
    },
    Rule {
        class: Class::Sleep,
        why: "this limit begins anew on replay",
        instead: "use `Step::timeout`, or a `select!` of the step and `wf.sleep()`",
        paths: &["time::timeout", "time::timeout_at"],
    },
    Rule {
        class: Class::Spawn,
        why: "replay does not follow a task beside the workflow",
        instead: "use `wf.start(…)`, or `join!` of steps",
        paths: &[
            "tokio::spawn",
            "task::spawn*",
            "spawn_blocking",
            "thread::spawn",
            "thread::scope",
            "thread::Builder::new",
            "JoinSet::new",
        ],
    },
    Rule {
        class: Class::Io,
        why: "replay does this anew, and what is outside may answer differently",
        instead: "do it in a step, `wf.step(\"…\", || async { … })`, or in a `#[job]`",
        paths: &[
            "fs::*",
            "File::open",
            "File::create",
            "File::create_new",
            "File::options",
            "OpenOptions::new",
            "io::stdin",
            "TcpStream::connect*",
            "TcpListener::bind",
            "UdpSocket::bind",
            "UnixStream::connect",
            "UnixListener::bind",
            "reqwest::*",
            "reqwest::Client::new",
            "reqwest::Client::builder",
            "reqwest::ClientBuilder::new",
            "reqwest::blocking::*",
            "reqwest::blocking::Client::new",
            "reqwest::blocking::Client::builder",
            "sqlx::query*",
            "sqlx::query*!",
            "sqlx::raw_sql",
            "PgPool::connect*",
            "PgConnection::connect*",
            "PgPoolOptions::new",
            "env::var*",
            "env::args*",
            "env::current_dir",
            "env::current_exe",
            "env::temp_dir",
            "process::Command::new",
        ],
    },
    Rule {
        class: Class::Io,
        why: "replay is done by another process, thread or task",
        instead: "use `wf.run_id()` or `wf.uuid()`, or read it in a step",
        paths: &["process::id()", "thread::current()", "tokio::task::id()", "tokio::task::try_id()"],
    },
];

/// Returns the rule that refuses a mention.
pub(super) fn rule_of(mention: &Mention) -> Option<&'static Rule> {
    match mention.form {
        Form::Elapsed => return Some(&ELAPSED),
        Form::HashOrder => return Some(&HASH_ORDER),
        Form::Call | Form::EmptyCall | Form::Macro | Form::Value => {}
    }
    let names: Vec<&str> = mention.names().collect();
    // The user's own modules may have any name.
    if let [.., _, "crate" | "self" | "super"] = names[..] {
        return None;
    }
    RULES.iter().find(|rule| rule.paths.iter().any(|path| is(&names, mention.form, path)))
}

impl Rule {
    pub(super) fn message(&self) -> String {
        let Self { class, why, instead, .. } = self;
        format!("{why}; {instead}; `#[workflow(allow({}))]` if it decides nothing", class.word())
    }
}

/// Whether a rule's path matches. `names` has the last name first.
fn is(names: &[&str], form: Form, path: &str) -> bool {
    let (path, only) = if let Some(path) = path.strip_suffix('!') {
        (path, Some(Form::Macro))
    } else if let Some(path) = path.strip_suffix("()") {
        (path, Some(Form::EmptyCall))
    } else {
        (path, None)
    };
    let is_said = match (form, only) {
        (form, Some(only)) => form == only,
        (Form::Call | Form::EmptyCall, None) => true,
        // A single name may be a local variable, unless it is a type.
        (Form::Value, None) => path.contains("::") || !is_function(path),
        (Form::Macro | Form::Elapsed | Form::HashOrder, None) => false,
    };
    let mut names = names.iter();
    is_said && path.rsplit("::").all(|expected| names.next().is_some_and(|name| is_name(name, expected)))
}

fn is_name(name: &str, expected: &str) -> bool {
    expected.strip_suffix('*').map_or(name == expected, |start| name.starts_with(start) && is_function(name))
}
