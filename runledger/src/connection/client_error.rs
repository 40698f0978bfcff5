//! What can go wrong for a client: connecting, enqueueing, reading, waiting, and starting a worker.

mod texts;

use std::time::Duration;

use thiserror::Error;
use uuid::Uuid;

use crate::model::failure::Failure;
use crate::model::graph::GraphError;
use crate::model::json::DecodeError;
use crate::model::name::NameError;
use crate::model::payload::PayloadError;
use crate::model::state::RunState;
use crate::store::migrate::MigrateError;

/// Why a call of the client, or the start of a worker, did not do what was asked. Nothing was written unless the variant says so.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The address of the database cannot be read.
    #[error(
        "the address of the database cannot be read; it is of the form `postgres://role:password@host:5432/database`, in whose parts `/`, `?`, `#` and `@` \
         are written `%2F`, `%3F`, `%23` and `%40`"
    )]
    Address(#[source] sqlx::Error),
    /// There is no connection to the database.
    #[error("cannot connect to {database}; nothing was written; {}", texts::without_connection(source))]
    Connect {
        /// The database, the role, and the host and port or the directory of the socket, without the password.
        database: String,
        /// What the server, the network or the driver says.
        source: sqlx::Error,
    },
    /// The database did not carry out a statement, or did not say whether it has.
    #[error("{}", texts::not_carried_out(.0))]
    Database(#[from] sqlx::Error),
    /// All connections of the pool were in use for too long.
    #[error(
        "no connection became free in time: all {connections} of the pool are in use; nothing was written; allow more (`Db::connect_with`), or hold \
         them for shorter; a transactional body has one already, so give its `tx` in place of the database"
    )]
    PoolExhausted {
        /// How many connections the pool may have.
        connections: u32,
    },
    /// The environment variable with the address of the database is not set.
    #[error(
        "`DATABASE_URL` is not set; nothing was started; set it to the address of a PostgreSQL database, such as `postgres://user@localhost/app`, or use \
         the embedded database of the feature `dev`: in a debug build, or by `Db::embedded()`"
    )]
    NoDatabaseUrl,
    /// The server is too old.
    #[error(
        "the server is PostgreSQL {version}; Runledger needs PostgreSQL 13 or newer; connect to a newer server"
    )]
    ServerTooOld {
        /// What the server calls its version.
        version: String,
    },
    /// The server cannot be written to.
    #[error(
        "the database `{database}` is {why} and cannot be written to; connect to the primary server, as a role that may write"
    )]
    NotWritable {
        /// The database.
        database: String,
        /// `a standby` or `read-only`.
        why: &'static str,
    },
    /// What this role makes without naming a schema would get into the engine's own.
    #[error(
        "the `search_path` of role `{role}` at `{address}` leads into the schema `runledger` first, so tables of the application would get among those \
         of the engine, and its migrations begin anew there; nothing was written; `alter role {role} set search_path = public`, or connect as another \
         role; a `search_path` in the address itself, or of the database, must go too"
    )]
    SearchPath {
        /// The role, in quotes where statements need them.
        role: String,
        /// Where it is, without a password.
        address: String,
    },
    /// The database is a copy of another one, and nobody has confirmed that workers may serve it.
    #[error(
        "this is {here}, a copy {of}; no worker serves it, as its unfinished runs would repeat their effects outside; cancel the runs that must not be repeated, then \
         run `runledger adopt`, or call `db.adopt()`"
    )]
    Copy {
        /// The installation that it copies, as `of installation `…`, which lives in …`.
        of: String,
        /// This database.
        here: String,
    },
    /// A connection of the application on which functions of other schemas can replace PostgreSQL's own.
    #[error(
        "this connection's `search_path` is `{search_path}`, so functions in other schemas can replace PostgreSQL's own; nothing was written; put \
         `pg_catalog` first, leave it out, or use a `Db`"
    )]
    UnsafeSearchPath {
        /// The connection's `search_path`.
        search_path: String,
    },
    /// The schema cannot be used.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// The input cannot be stored.
    #[error("the input of job `{job}` cannot be stored")]
    Encode {
        /// The job.
        job: String,
        /// Why.
        source: PayloadError,
    },
    /// A call or a signal on a bare connection, in a program that seals payloads.
    #[error(
        "this program seals payloads, and a bare connection or pool does not tell by which codec; nothing was written; give `db.on(&mut connection)` in \
         its place, or the transaction of `db.begin()`"
    )]
    NoCodec,
    /// What is stored of a run cannot be opened.
    #[error("what is stored of run `{run_id}` cannot be read")]
    Unreadable {
        /// The run.
        run_id: Uuid,
        /// Which payload, and why.
        source: PayloadError,
    },
    /// A stored output does not fit the type that the code expects.
    #[error(
        "the output of run `{run_id}` does not fit the type that this program expects: another version of the job wrote it, or the type does not read what it writes"
    )]
    Decode {
        /// The run.
        run_id: Uuid,
        /// Where and why.
        source: DecodeError,
    },
    /// A name, key or tenant breaks a rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A start so far ahead that it must be a mistake.
    #[error(
        "the `{option}` of this call of job `{job}` puts its start more than 100 years ahead; nothing was written; if it should wait for something that \
         may never come, wait for that instead"
    )]
    TooFarAhead {
        /// The job.
        job: String,
        /// `delay` or `start_at`.
        option: &'static str,
    },
    /// The same idempotency key was used for another request.
    #[error(
        "idempotency key `{key}` of job `{job}` was used for another request (run `{run_id}`): {difference} differs; nothing was written; use \
         another key, or repeat the request as it was"
    )]
    Conflict {
        /// The job.
        job: String,
        /// The key.
        key: String,
        /// The run that has the key.
        run_id: Uuid,
        /// The first part in which the requests differ.
        difference: String,
    },
    /// Another run has the active key.
    #[error(
        "run `{run_id}` of `{job}` has the active key `{key}` and has not ended; nothing was written; wait for its end or cancel it, or use another key"
    )]
    Active {
        /// The oldest name of the job, or of a graph `runledger.graph:` and its name.
        job: String,
        /// The key.
        key: String,
        /// The run that has it.
        run_id: Uuid,
    },
    /// A graph that cannot be.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// Another go at a graph, or at a node of one, as if it were a run by itself.
    #[error(
        "run `{run_id}` is a graph or a node of one, and what it is given comes from other nodes; nothing was written; `handle.recover(key)` of the graph runs it again as a \
         whole"
    )]
    BelongsToGraph {
        /// The run.
        run_id: Uuid,
    },
    /// A signal to a run of a job: only the code of a workflow takes signals.
    #[error(
        "run `{run_id}` is of job `{job}`, and only workflows take signals, by `wf.signal`; nothing was written"
    )]
    TakesNoSignals {
        /// The run.
        run_id: Uuid,
        /// The job.
        job: &'static str,
    },
    /// A signal to a run of the engine's own: no code of the program is under way in it that could take one.
    #[error(
        "run `{run_id}` is a graph, a gate or a map node, and takes no signals; nothing was written; decide about a gate by `handle.gate(name)`, and send a signal to the run \
         of the workflow that waits for it"
    )]
    PartTakesNoSignals {
        /// The run.
        run_id: Uuid,
    },
    /// A graph, a gate or a map node that was to be moved to another version of its code, which is the engine's own.
    #[error(
        "run `{run_id}` is a graph, a gate or a map node, whose code is the engine's and has no versions; nothing was written; move the runs of its nodes"
    )]
    PartHasNoVersions {
        /// The run.
        run_id: Uuid,
    },
    /// A pause of what has no code of its own to hold up.
    #[error(
        "run `{run_id}` is a graph, a gate, or a node that waits for others, of which no code is under way that could be paused; nothing was written; pause nodes that are queued \
         or running, or cancel it"
    )]
    NotPausable {
        /// The run.
        run_id: Uuid,
    },
    /// A gate that other nodes come before.
    #[error(
        "the gate `{gate}` of graph `{run_id}` is not open yet: {n_needs} of the nodes that it needs have not ended; nothing was written; decide when it is"
    )]
    GateNotOpen {
        /// The graph.
        run_id: Uuid,
        /// The gate.
        gate: String,
        /// How many it still waits for.
        n_needs: i32,
    },
    /// The gate does not accept the value.
    #[error("the gate `{gate}` of graph `{run_id}` was not decided: {why}; nothing was written; {advice}")]
    GateValue {
        /// The graph.
        run_id: Uuid,
        /// The gate.
        gate: String,
        /// Why the gate does not accept the value, or that the value is missing.
        why: String,
        /// The values that the gate accepts, with an example.
        advice: String,
    },
    /// The gate belongs to a graph whose payloads are encrypted, and this program has no codec.
    #[error(
        "gate `{gate}` of graph `{run_id}` was not decided: its payloads are encrypted and this program has no codec; nothing was written; decide in a program with the codec, or through a link that such a program answers"
    )]
    GateEncrypted {
        /// The graph.
        run_id: Uuid,
        /// The gate.
        gate: String,
    },
    /// A gate about which somebody has decided otherwise.
    #[error(
        "the gate `{gate}` of graph `{run_id}` has a decision already{by} and is {ended}; this call decides otherwise, and the first decision stays; nothing was written"
    )]
    GateDecided {
        /// The graph.
        run_id: Uuid,
        /// The gate.
        gate: String,
        /// How it ended: `completed`, `failed` or `cancelled`.
        ended: RunState,
        /// Who decided, if they said: " by `ann`".
        by: String,
    },
    /// A link to a gate that was not signed with the key.
    #[error(
        "the link to a gate is not one of this key: it was signed with another one, or changed on its way; nothing was written"
    )]
    LinkInvalid,
    /// A link to a gate that is over.
    #[error(
        "the link to the gate `{gate}` of graph `{run_id}` has expired; nothing was written; ask for a new one"
    )]
    LinkExpired {
        /// The graph.
        run_id: Uuid,
        /// The gate.
        gate: String,
    },
    /// A link to a gate that somebody revoked.
    #[error(
        "the link to the gate `{gate}` of graph `{run_id}` was revoked; nothing was written; ask for a new one"
    )]
    LinkRevoked {
        /// The graph.
        run_id: Uuid,
        /// The gate.
        gate: String,
    },
    /// A decision by a link that is bound to another decision.
    #[error(
        "the link to the gate `{gate}` of graph `{run_id}` is bound to another decision; nothing was written; call `decide` on the link, or ask for another link"
    )]
    LinkBound {
        /// The graph.
        run_id: Uuid,
        /// The gate.
        gate: String,
    },
    /// A call of `decide` on a link that is bound to no decision.
    #[error(
        "the link to the gate `{gate}` of graph `{run_id}` is bound to no decision; nothing was written; decide with `link.gate()`"
    )]
    LinkUnbound {
        /// The graph.
        run_id: Uuid,
        /// The gate.
        gate: String,
    },
    /// A decision that must be sealed, and that a link would show.
    #[error(
        "no link was signed: it would show a decision about the gate `{gate}` of graph `{run_id}` that must be sealed; sign an unbound link with `link`, and decide in the \
         program that answers its URL"
    )]
    LinkShowsSealed {
        /// The graph.
        run_id: Uuid,
        /// The gate.
        gate: String,
    },
    /// A name that no gate of the graph has.
    #[error("graph `{run_id}` has no gate `{gate}`{hint}")]
    NoSuchGate {
        /// The graph.
        run_id: Uuid,
        /// What was asked for.
        gate: String,
        /// What may be meant.
        hint: String,
    },
    /// A node of a graph that has ended, so that it is no window for an addition any more.
    #[error(
        "the window `{window}` of graph `{run_id}` is closed, as it is {ended}; nothing was written; add nodes while it goes on, or submit a graph of their own"
    )]
    WindowClosed {
        /// The graph.
        run_id: Uuid,
        /// The node.
        window: String,
        /// How it ended, or how the graph did.
        ended: RunState,
    },
    /// A name that no node of the graph has.
    #[error("graph `{run_id}` has no node `{name}`{hint}")]
    NoSuchNode {
        /// The graph.
        run_id: Uuid,
        /// What was asked for.
        name: String,
        /// What may be meant.
        hint: String,
    },
    /// A graph was asked for a result, and no node of it was declared to give one.
    #[error(
        "graph `{run_id}` has no result: it was submitted without `graph.result(node)`; its handle is that of `db.graph::<()>(id)`, and `handle.nodes()` has the runs of its \
         nodes"
    )]
    NoResult {
        /// The graph.
        run_id: Uuid,
    },
    /// A run that is not a graph.
    #[error("run `{run_id}` is not a graph, so that nothing can be added to it; nothing was written")]
    NotAGraph {
        /// The run.
        run_id: Uuid,
    },
    /// The same key was used for another addition to the graph.
    #[error(
        "key `{key}` was used for another addition to graph `{run_id}`: {difference} differs; nothing was written; use another key, or repeat the addition as it was"
    )]
    AdditionConflict {
        /// The graph.
        run_id: Uuid,
        /// The key.
        key: String,
        /// The first part in which the two differ.
        difference: String,
    },
    /// A keyed enqueue or a signal in a transaction whose isolation level could make the answer wrong.
    #[error(
        "{what} needs a transaction at `read committed`, this one is at `{level}`: it could miss what was committed after its snapshot; nothing was \
         written; use a transaction of its own, or one at `read committed`"
    )]
    Isolation {
        /// What was asked for, as `a keyed enqueue`.
        what: &'static str,
        /// The level of the caller's transaction.
        level: String,
    },
    /// The payload of a signal cannot be stored.
    #[error("the payload of signal `{name}` cannot be stored")]
    EncodeSignal {
        /// The name of the signal.
        name: String,
        /// Why.
        source: PayloadError,
    },
    /// The configuration of a job cannot be stored.
    #[error("version {version} of the configuration of job `{job}` cannot be stored; nothing was written")]
    EncodeConfig {
        /// The job.
        job: String,
        /// The version of its form.
        version: u32,
        /// Why.
        source: PayloadError,
    },
    /// The configuration of a job is sealed, and cannot be opened.
    #[error(
        "version {version} of the configuration of job `{job}` cannot be read; store it anew by `db.configure` in a program with the codec of the workers"
    )]
    UnreadableConfig {
        /// The job, by the name under which it was configured.
        job: String,
        /// The version of its form.
        version: u32,
        /// Why.
        source: PayloadError,
    },
    /// The configuration of a job does not fit the type that the code expects.
    #[error(
        "version {version} of the configuration of job `{job}` does not fit the type that this program expects; store one that does by `db.configure`, and what is tried after the next heartbeat is given that; a form that the code has changed needs another version"
    )]
    DecodeConfig {
        /// The job, by the name under which it was configured.
        job: String,
        /// The version of its form.
        version: u32,
        /// Where and why.
        source: DecodeError,
    },
    /// The same idempotency key was used for a signal with another payload.
    #[error(
        "idempotency key `{key}` was used for a signal `{name}` of run `{run_id}` with another payload; nothing was written; use another key, or repeat \
         the signal as it was"
    )]
    SignalConflict {
        /// The run.
        run_id: Uuid,
        /// The name of the signal.
        name: String,
        /// The key.
        key: String,
    },
    /// Signals come faster than the run takes them.
    #[error(
        "run `{run_id}` has {limit} signals `{name}` left that it has not taken; nothing was written; send it again later, or send less: one signal may \
         carry a list"
    )]
    TooManySignals {
        /// The run.
        run_id: Uuid,
        /// The name of the signals.
        name: String,
        /// How many may be left.
        limit: i32,
    },
    /// Nobody knows a job of this name.
    #[error("no job `{name}` is known to this program or to a living worker{hint}; nothing was written")]
    UnknownJob {
        /// The name.
        name: String,
        /// `; did you mean …?`, where a name is near.
        hint: String,
    },
    /// It was asked for between the steps of a workflow. Nothing was read or written. The run fails with it at once, since another attempt would ask again.
    #[error(
        "this was asked for between the steps of a workflow, where every replay would do it again; do it in a step (`wf.step(…)`, or `wf.tx(…)` for what \
         is written), start runs by `wf.start(…)`, and wait for them by `child.result()`"
    )]
    BetweenSteps,
    /// There is no such run.
    #[error("there is no run `{run_id}` in this database; it was never committed here, or it was deleted")]
    NoSuchRun {
        /// The id.
        run_id: Uuid,
    },
    /// The run failed.
    #[error("{}: {failure}", self.head())]
    RunFailed {
        /// The run.
        run_id: Uuid,
        /// With what.
        failure: Failure,
    },
    /// The run was cancelled.
    #[error("{}: {failure}", self.head())]
    RunCancelled {
        /// The run.
        run_id: Uuid,
        /// The reason, as far as one was given.
        failure: Failure,
    },
    /// The run is blocked: it waits for a person.
    #[error("{}: {failure}", self.head())]
    RunBlocked {
        /// The run.
        run_id: Uuid,
        /// Why it is blocked.
        failure: Failure,
    },
    /// No end of the run was known when the caller's time was over: it goes on, or the database did not say.
    #[error(
        "no end of run `{run_id}` is known after {waited:?}; nothing has changed for the run, and its result can be awaited again"
    )]
    WaitTimedOut {
        /// The run.
        run_id: Uuid,
        /// How long the caller waited.
        waited: Duration,
    },
    /// What the steps of a run did has been taken back, so it cannot go on from them.
    #[error(
        "what the steps of run `{run_id}` did has been taken back, so it cannot be revived; run it again from the start: `handle.rerun()`"
    )]
    CompensationsRan {
        /// The run.
        run_id: Uuid,
    },
    /// What a step of a run did has been taken back after the steps that another was to go on from, or is about to be.
    #[error(
        "what step `{key}` of run `{run_id}` did has been taken back, or is about to be, so no run can go on from it; nothing was written; fork from a step \
         before it, or run it again from the start: `handle.rerun()`"
    )]
    StepCompensated {
        /// The run.
        run_id: Uuid,
        /// The step.
        key: String,
    },
    /// A run cannot do this in its state.
    #[error("run `{run_id}` is {state}, so it cannot be {verb}")]
    WrongState {
        /// The run.
        run_id: Uuid,
        /// Its state.
        state: RunState,
        /// What was asked.
        verb: &'static str,
    },
    /// A run that a worker holds cannot be moved to another version of its code.
    #[error(
        "run `{run_id}` is running, and what its code records now would be held against that of the other version; nothing was written; pause it \
         (`handle.pause`), which takes place at its next await, move it, and resume it"
    )]
    RunIsRunning {
        /// The run.
        run_id: Uuid,
    },
    /// A run cannot be revived before everything that it has started has ended: what goes on below one that failed or was cancelled is being cancelled.
    #[error(
        "run `{run_id}` has ended, but run `{below}`, which it has started, still goes on; nothing was written; revive it once that one has ended"
    )]
    DescendantsRunning {
        /// The run.
        run_id: Uuid,
        /// One of those that go on.
        below: Uuid,
    },
    /// The run has no such step on record.
    #[error("run `{run_id}` has no recorded step `{key}`{hint}; nothing was written")]
    UnknownStep {
        /// The run.
        run_id: Uuid,
        /// The key that was given.
        key: String,
        /// `; did you mean …?` where a key is near, or the keys that there are.
        hint: String,
    },
    /// A handle that was made inside a transaction has no database of its own to ask.
    #[error(
        "the handle of run `{run_id}` was made in a transaction and cannot read by itself; after the commit, give it a database with `handle.on(&db)`"
    )]
    Detached {
        /// The run.
        run_id: Uuid,
    },
    /// The embedded server of the feature `dev` could not be started.
    #[cfg(all(feature = "dev", unix))]
    #[error(transparent)]
    Dev(#[from] crate::dev::DevError),
    /// The program's own set-up is wrong.
    #[error("{0}")]
    Config(String),
}
