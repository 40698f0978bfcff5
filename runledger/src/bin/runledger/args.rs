//! Defines the command line.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use runledger::{RunCursor, RunState, TenantScope};
use serde_json::value::RawValue;
use uuid::Uuid;

/// Inspects the runs, graphs and gates of a Runledger database, and acts on them.
///
/// Exit codes: 0 done, 1 refused or not found, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "runledger", version, propagate_version = true)]
pub(crate) struct Cli {
    /// The URL of the database. Default: the variable `DATABASE_URL`, which other users of the
    /// machine cannot see. If neither is set, a program built with `dev` uses the embedded database
    /// of the current folder's project.
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) database_url: Option<String>,

    /// Prints one JSON value instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) wanted: Wanted,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Wanted {
    #[command(flatten)]
    Command(Command),
    /// Starts the embedded database of a project, prints its URL, and keeps it running until
    /// Ctrl-C.
    #[cfg(all(feature = "dev", unix))]
    Dev {
        /// The project's folder, or the folder that its program passes to `Db::embedded_in`.
        #[arg(default_value = ".")]
        folder: std::path::PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Decides a gate of a graph.
    #[command(subcommand)]
    Gate(Gate),
    /// Prints the picture of a graph, with the states of its nodes.
    Graph {
        /// The id of the graph's run.
        run: Uuid,
        /// The output format.
        #[arg(long, value_enum, default_value_t, conflicts_with = "json")]
        format: Format,
    },
    /// Lists a page of runs, the newest first.
    Runs(Runs),
    /// Shows the state of a run, its error and its attempts.
    Run {
        /// The id of the run.
        run: Uuid,
        #[command(flatten)]
        scope: ScopeArgs,
    },
    /// Lists the recorded steps of a run.
    Steps {
        /// The id of the run.
        run: Uuid,
    },
    /// Shows the timeline of a run, oldest first.
    Timeline {
        /// The id of the run.
        run: Uuid,
    },
    /// Prints the logs of a run's bodies, if its workers store them.
    Logs {
        /// The id of the run.
        run: Uuid,
        /// The number of the first line, from 1.
        #[arg(long, value_name = "N", default_value_t = 1)]
        from: u64,
    },
    /// Shows metrics by tenant and job.
    Metrics {
        #[command(flatten)]
        scope: ScopeArgs,
        /// Counts outcomes of runs created within this time: `90s`, `15m`, `1h`, `7d`.
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
        window: Duration,
    },
    /// Lists the resources and their permits.
    Resources,
    /// Sets the permits of a resource. With 0, no run that needs the resource starts.
    #[command(group(ArgGroup::new("said").required(true).args(["permits", "forget"])), override_usage = "runledger permits <NAME> <N|--forget>")]
    Permits {
        /// The name of the resource.
        name: String,
        /// How many runs may use it at the same time.
        #[arg(value_name = "N")]
        permits: Option<u32>,
        /// Removes the setting. The default is one permit.
        #[arg(long)]
        forget: bool,
    },
    /// Cancels a run and its live descendants.
    Cancel {
        /// The id of the run.
        run: Uuid,
        /// The reason, which is stored with the run.
        reason: String,
    },
    /// Pauses a run until you resume it.
    Pause {
        /// The id of the run.
        run: Uuid,
        /// The reason, which is stored with the run.
        reason: String,
    },
    /// Resumes a paused or blocked run.
    Resume {
        /// The id of the run.
        run: Uuid,
    },
    /// Confirms that workers may serve this database although it is a copy of another one. Its
    /// unfinished runs start.
    Adopt,
    /// Stops claims of a job until you enable it. Its other overrides stay.
    Disable {
        /// The name of the job.
        job: String,
        /// The reason, which is stored.
        why: String,
    },
    /// Allows claims of a disabled job again. Its other overrides stay.
    Enable {
        /// The name under which the job was disabled.
        job: String,
    },
}

impl Command {
    /// Whether the command changes the database.
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
    /// Completes the gate: its dependents start and receive the value.
    Complete {
        #[command(flatten)]
        gate: GateArgs,
        /// The value, as JSON. A gate of the type `()` needs none.
        #[arg(long, value_name = "JSON", value_parser = json, allow_negative_numbers = true)]
        value: Option<Box<RawValue>>,
    },
    /// Fails the gate: nodes that need its success are cancelled.
    Fail {
        #[command(flatten)]
        gate: GateArgs,
        /// The error message.
        message: String,
    },
    /// Cancels the gate: nodes that need its success are cancelled.
    Cancel {
        #[command(flatten)]
        gate: GateArgs,
        /// The reason of the cancellation.
        message: String,
    },
    /// Revokes all links to the gate that were signed before now. The gate stays open.
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
    /// Who decides. Default: the variable `USER`. The name is stored and not checked.
    #[arg(long, value_name = "WHO")]
    pub(crate) by: Option<String>,
    /// Why. The reason is stored.
    #[arg(long, value_name = "WHY")]
    pub(crate) reason: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Format {
    /// Text for people.
    #[default]
    Table,
    /// Graphviz.
    Dot,
    /// An SVG image.
    Svg,
    /// JSON for programs.
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct Runs {
    #[command(flatten)]
    pub(crate) scope: ScopeArgs,
    /// Only runs of this job, by its name in the program that enqueued them. Aliases are not known.
    /// Can be repeated.
    #[arg(long)]
    pub(crate) job: Vec<String>,
    /// Only runs of this queue. Can be repeated.
    #[arg(long)]
    pub(crate) queue: Vec<String>,
    /// Only runs in this state. Can be repeated.
    #[arg(long, value_parser = states())]
    pub(crate) state: Vec<RunState>,
    /// How many runs to list at most.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) limit: u16,
    /// The cursor that the previous page printed.
    #[arg(long, value_name = "PLACE")]
    pub(crate) after: Option<RunCursor>,
}

/// The required scope of the runs.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ScopeArgs {
    /// Runs of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Runs without a tenant.
    #[arg(long)]
    global: bool,
    /// Runs of every tenant, and runs without one.
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

/// The states of runs, as the library displays them.
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
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn states_use_names_shown_by_library() {
        for (word, state) in STATES {
            assert_eq!(state.to_string(), word);
        }
    }

    #[test]
    fn duration_needs_number_and_unit() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(90 * 60)));
        for text in ["", "s", "1", "-1h", "1x", "99999999999999999999s"] {
            let refused = duration(text).unwrap_err();
            assert!(refused.ends_with("such as `90s`, `15m` or `1h 30m`"), "{text}: {refused}");
        }
    }
}
