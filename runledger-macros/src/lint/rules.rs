//! The paths that are refused, why, and what to write instead.

use super::mentions::{Form, Mention};

/// What replay cannot repeat, by the word that allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    WallClock,
    Randomness,
    FreshUuids,
    Sleep,
    Spawn,
    Io,
}

impl Class {
    /// In the order of the documentation.
    const ALL: [Self; 6] =
        [Self::WallClock, Self::Randomness, Self::FreshUuids, Self::Sleep, Self::Spawn, Self::Io];

    pub(crate) fn words() -> [&'static str; 6] {
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
        }
    }
}

/// Paths that are refused for one reason and have one replacement.
pub(super) struct Rule {
    pub class: Class,
    why: &'static str,
    instead: &'static str,
    /// The last names of a path; fewer than it has, so that it may begin at any `use`. A `*` stands for the rest of a function's name, and a `!` for a
    /// macro.
    paths: &'static [&'static str],
}

const RULES: &[Rule] = &[
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
            "rand::fill",
            "thread_rng",
            "rand::thread_rng",
            "ThreadRng::default",
            "OsRng",
            "from_entropy",
            "from_os_rng",
            "fastrand::*",
            "fastrand::Rng::new",
            "getrandom",
            "getrandom::*",
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
            "process::Command::new",
        ],
    },
];

/// The rule that refuses a mention.
pub(super) fn rule_of(mention: &Mention) -> Option<&'static Rule> {
    let names: Vec<String> = mention.names().collect();
    RULES.iter().find(|rule| rule.paths.iter().any(|path| is(&names, mention.form, path)))
}

impl Rule {
    pub(super) fn message(&self) -> String {
        let Self { class, why, instead, .. } = self;
        format!("{why}; {instead}; `#[workflow(allow({}))]` if it decides nothing", class.word())
    }
}

/// `names` has the last one first.
fn is(names: &[String], form: Form, path: &str) -> bool {
    let (path, is_macro) = path.strip_suffix('!').map_or((path, false), |path| (path, true));
    let is_said = match form {
        Form::Macro => is_macro,
        Form::Call => !is_macro,
        // A single name may be a local variable, unless it is a type.
        Form::Value => !is_macro && (path.contains("::") || !is_function(path)),
    };
    let mut names = names.iter();
    is_said && path.rsplit("::").all(|expected| names.next().is_some_and(|name| is_name(name, expected)))
}

fn is_name(name: &str, expected: &str) -> bool {
    expected.strip_suffix('*').map_or(name == expected, |start| name.starts_with(start) && is_function(name))
}

/// Types and variants begin with a capital letter.
fn is_function(name: &str) -> bool {
    !name.starts_with(char::is_uppercase)
}
