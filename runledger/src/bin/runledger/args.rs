//! What can be said on the command line.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use runledger::{RunCursor, RunState, TenantScope};
use serde_json::value::RawValue;
use uuid::Uuid;

/// Looks at the runs, graphs and gates of a Runledger database, and decides about them.
///
/// Exit codes: 0 done, 1 refused or not found, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "runledger", version, propagate_version = true)]
pub(crate) struct Cli {
    /// The address of the database. By default the variable `DATABASE_URL`, which other users of the machine
    /// cannot see. If neither is set, a program built with `dev` uses the embedded database of the current
    /// folder's project.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) database_url: Option<String>,

    /// Prints one JSON value, for programs.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) wanted: Wanted,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Wanted {
    #[command(flatten)]
    Command(Command),
    /// Starts the embedded database of a project, prints its URL, and keeps it running until Ctrl-C.
    #[cfg(all(feature = "dev", unix))]
    Dev {
        /// The project's folder, or the folder that its program passes to `Db::embedded_in`.
        #[arg(default_value = ".")]
        folder: std::path::PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Decides about a gate of a graph.
    #[command(subcommand)]
    Gate(Gate),
    /// The picture of a graph, with where its nodes stand.
    Graph {
        /// The id of the graph's run.
        run: Uuid,
        /// What is printed.
        #[arg(long, value_enum, default_value_t, conflicts_with = "json")]
        format: Format,
    },
    /// A page of runs, the latest first.
    Runs(Runs),
    /// Where a run stands, its error, and its attempts.
    Run {
        /// The id of the run.
        run: Uuid,
        #[command(flatten)]
        scope: ScopeArgs,
    },
    /// The recorded steps of a run.
    Steps {
        /// The id of the run.
        run: Uuid,
    },
    /// What has happened to a run, oldest first.
    Timeline {
        /// The id of the run.
        run: Uuid,
    },
    /// What the bodies of a run have logged, where its workers keep that.
    Logs {
        /// The id of the run.
        run: Uuid,
        /// The number of the first line, from 1.
        #[arg(long, value_name = "N", default_value_t = 1)]
        from: u64,
    },
    /// How the jobs are doing, by tenant and job.
    Metrics {
        #[command(flatten)]
        scope: ScopeArgs,
        /// Ended runs count that were created within this time: `90s`, `15m`, `1h`, `7d`.
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
        window: Duration,
    },
    /// The resources, with their permits.
    Resources,
    /// Says how many permits a resource has; 0 lets nothing start that needs one.
    #[command(group(ArgGroup::new("said").required(true).args(["permits", "forget"])), override_usage = "runledger permits <NAME> <N|--forget>")]
    Permits {
        /// The name of the resource.
        name: String,
        /// How many runs may have it at the same time.
        #[arg(value_name = "N")]
        permits: Option<u32>,
        /// Forgets what was said: one permit.
        #[arg(long)]
        forget: bool,
    },
    /// Cancels a run, and everything that goes on below it.
    Cancel {
        /// The id of the run.
        run: Uuid,
        /// Why; it is kept with the run.
        reason: String,
    },
    /// Pauses a run until it is resumed.
    Pause {
        /// The id of the run.
        run: Uuid,
        /// Why; it is kept with the run.
        reason: String,
    },
    /// Lets a paused or blocked run go on.
    Resume {
        /// The id of the run.
        run: Uuid,
    },
    /// Confirms that workers may serve this database although it is a copy of another one. Its unfinished
    /// runs start.
    Adopt,
    /// Lets no worker claim runs of a job until it is enabled; what else is tuned of it stays.
    Disable {
        /// The name of the job.
        job: String,
        /// Why; it is kept.
        why: String,
    },
    /// Lets workers claim runs of a disabled job again; what else is tuned of it stays.
    Enable {
        /// The name of the job, as it was disabled.
        job: String,
    },
}

impl Command {
    /// Whether it changes anything in the database.
    pub(crate) fn writes(&self) -> bool {
        match self {
            Self::Gate(_)
            | Self::Adopt
            | Self::Permits { .. }
            | Self::Cancel { .. }
            | Self::Pause { .. }
            | Self::Resume { .. }
            | Self::Disable { .. }
            | Self::Enable { .. } => true,
            Self::Graph { .. }
            | Self::Runs(_)
            | Self::Run { .. }
            | Self::Steps { .. }
            | Self::Timeline { .. }
            | Self::Logs { .. }
            | Self::Metrics { .. }
            | Self::Resources => false,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Gate {
    /// Completes it: the nodes that need it start, and are given the value.
    Complete {
        #[command(flatten)]
        gate: GateArgs,
        /// The value, as JSON. A gate of the type `()` needs none.
        #[arg(long, value_name = "JSON", value_parser = json, allow_negative_numbers = true)]
        value: Option<Box<RawValue>>,
    },
    /// Fails it: the nodes that need its success are cancelled.
    Fail {
        #[command(flatten)]
        gate: GateArgs,
        /// What it fails with.
        message: String,
    },
    /// Cancels it: the nodes that need its success are cancelled.
    Cancel {
        #[command(flatten)]
        gate: GateArgs,
        /// Why it is cancelled.
        message: String,
    },
    /// Revokes every link to it that was signed before now. It stays open.
    RevokeLinks {
        /// The id of the graph's run.
        run: Uuid,
        /// The name of the gate.
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct GateArgs {
    /// The id of the graph's run.
    pub(crate) run: Uuid,
    /// The name of the gate.
    pub(crate) name: String,
    /// Who decides; without it the variable `USER`. It is kept, and nobody checks it.
    #[arg(long, value_name = "WHO")]
    pub(crate) by: Option<String>,
    /// Why. It is kept.
    #[arg(long, value_name = "WHY")]
    pub(crate) reason: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// For Graphviz.
    Dot,
    /// An image.
    Svg,
    /// For programs.
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct Runs {
    #[command(flatten)]
    pub(crate) scope: ScopeArgs,
    /// Only runs of this job, by the name that it had in the program that enqueued them: no alias is known here. Said again: of that one too.
    #[arg(long)]
    pub(crate) job: Vec<String>,
    /// Only runs of this queue. Said again: of that one too.
    #[arg(long)]
    pub(crate) queue: Vec<String>,
    /// Only runs in this state. Said again: in that one too.
    #[arg(long, value_parser = states())]
    pub(crate) state: Vec<RunState>,
    /// How many runs at most.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) limit: u16,
    /// The place where the page before has ended.
    #[arg(long, value_name = "PLACE")]
    pub(crate) after: Option<RunCursor>,
}

/// Whose runs are meant: it is always said.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ScopeArgs {
    /// Those of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Those of no tenant.
    #[arg(long)]
    global: bool,
    /// Those of every tenant, and of none.
    #[arg(long)]
    all: bool,
}

impl From<ScopeArgs> for TenantScope {
    fn from(said: ScopeArgs) -> Self {
        match said.tenant {
            Some(tenant) => Self::Tenant(tenant),
            None if said.global => Self::Global,
            None => Self::All,
        }
    }
}

/// The states of runs, as people and the library write them.
const STATES: [(&str, RunState); 8] = [
    ("queued", RunState::Queued),
    ("running", RunState::Running),
    ("waiting", RunState::Waiting),
    ("blocked", RunState::Blocked),
    ("paused", RunState::Paused),
    ("completed", RunState::Completed),
    ("failed", RunState::Failed),
    ("cancelled", RunState::Cancelled),
];

fn states() -> impl TypedValueParser<Value = RunState> {
    PossibleValuesParser::new(STATES.map(|(word, _)| word)).try_map(|word| {
        let state = STATES.iter().find(|(known, _)| *known == word).map(|(_, state)| *state);
        state.ok_or("a state of a run is meant")
    })
}

fn json(text: &str) -> Result<Box<RawValue>, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("this is no JSON ({error}); a text stands in quotes: '\"text\"'"))
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; a time is numbers with units, such as `90s`, `15m` or `1h 30m`"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn states_have_the_names_that_the_library_shows() {
        for (word, state) in STATES {
            assert_eq!(state.to_string(), word);
        }
    }

    #[test]
    fn a_time_has_a_number_and_a_unit() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(90 * 60)));
        for text in ["", "s", "1", "-1h", "1x", "99999999999999999999s"] {
            let refused = duration(text).unwrap_err();
            assert!(refused.ends_with("such as `90s`, `15m` or `1h 30m`"), "{text}: {refused}");
        }
    }
}
