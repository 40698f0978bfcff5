//! Errors of a client: connecting, enqueueing, reading, waiting, and starting a worker.

mod texts;

use std::time::Duration;

use thiserror::Error;
use uuid::Uuid;

use crate::model::graph::GraphError;
use crate::model::json::DecodeError;
use crate::model::payload::PayloadError;
use crate::model::run::failure::Failure;
use crate::model::run::name::NameError;
use crate::model::run::state::RunState;
use crate::store::migrate::MigrateError;

/// An error of a client or of a worker's start. Nothing was written unless the variant says so. The
/// text does not repeat the text of the `source`: print the whole chain.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The address of the database is invalid.
    #[error(
        "the address of the database cannot be read; it is of the form `postgres://role:password@host:5432/database`, in whose parts `/`, `?`, `#` and `@` \
         are written `%2F`, `%3F`, `%23` and `%40`"
    )]
    Address(#[source] sqlx::Error),
    /// The client cannot connect to the database.
    #[error("cannot connect to {database}; nothing was written; {}", texts::without_connection(source))]
    Connect {
        /// The database, the role, and the host and port or the socket directory; no password.
        database: String,
        /// The error of the server, the network or the driver.
        source: sqlx::Error,
    },
    /// A statement failed, or the database did not confirm it.
    #[error("{}", texts::not_carried_out(.0))]
    Database(#[from] sqlx::Error),
    /// All connections of the pool were in use for too long.
    #[error(
        "no connection became free in time: all {connections} of the pool are in use; nothing was written; allow more (`Db::connect_with`), or hold \
         them for shorter; a transactional body has one already, so give its `tx` in place of the database"
    )]
    PoolExhausted {
        /// The maximum number of connections of the pool.
        connections: u32,
    },
    /// The environment variable `DATABASE_URL` is not set.
    #[error(
        "`DATABASE_URL` is not set; nothing was started; set it to the address of a PostgreSQL database, such as `postgres://user@localhost/app`, or use \
         the embedded database of the feature `dev`: in a debug build, or by `Db::embedded()`"
    )]
    NoDatabaseUrl,
    /// The server is older than PostgreSQL 13.
    #[error(
        "the server is PostgreSQL {version}; Runledger needs PostgreSQL 13 or newer; connect to a newer server"
    )]
    ServerTooOld {
        /// The server's name for its version.
        version: String,
    },
    /// The server does not accept writes.
    #[error(
        "the database `{database}` is {why} and cannot be written to; connect to the primary server, as a role that may write"
    )]
    NotWritable {
        /// The name of the database.
        database: String,
        /// `a standby` or `read-only`.
        why: &'static str,
    },
    /// The role creates unqualified objects in the engine's schema.
    #[error(
        "the `search_path` of role `{role}` at `{address}` leads into the schema `runledger` first, so tables of the application would get among those \
         of the engine, and its migrations begin anew there; nothing was written; `alter role {role} set search_path = public`, or connect as another \
         role; a `search_path` in the address itself, or of the database, must go too"
    )]
    SearchPath {
        /// The role, quoted if statements need quotes.
        role: String,
        /// The address, without a password.
        address: String,
    },
    /// The database is a copy of another one, and no operator has adopted it.
    #[error(
        "this is {here}, a copy {of}; no worker serves it, as its unfinished runs would repeat their effects outside; cancel the runs that must not be repeated, then \
         run `runledger adopt`, or call `db.adopt()`"
    )]
    Copy {
        /// The copied installation, as `of installation `…`, which lives in …`.
        of: String,
        /// This database.
        here: String,
    },
    /// Functions of other schemas can replace PostgreSQL's own on the application's connection.
    #[error(
        "this connection's `search_path` is `{search_path}`, so functions in other schemas can replace PostgreSQL's own; nothing was written; put \
         `pg_catalog` first, leave it out, or use a `Db`"
    )]
    UnsafeSearchPath {
        /// The connection's `search_path`.
        search_path: String,
    },
    /// The schema `runledger` is not usable.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// The input cannot be stored.
    #[error("the input of job `{job}` cannot be stored")]
    Encode {
        /// The job.
        job: String,
        /// The cause.
        source: PayloadError,
    },
    /// A program that encrypts payloads used a bare connection for a call or a signal.
    #[error(
        "this program seals payloads, and a bare connection or pool does not tell by which codec; nothing was written; give `db.on(&mut connection)` in \
         its place, or the transaction of `db.begin()`"
    )]
    NoCodec,
    /// A stored payload of a run cannot be decrypted.
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
    /// The start is so far ahead that it must be a mistake.
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
    /// The idempotency key was used for another request.
    #[error(
        "idempotency key `{key}` of job `{job}` was used for another request (run `{run_id}`): {difference} differs; nothing was written; use \
         another key, or repeat the request as it was"
    )]
    Conflict {
        /// The job.
        job: String,
        /// The key.
        key: String,
        /// The run with this key.
        run_id: Uuid,
        /// The first part in which the requests differ.
        difference: String,
    },
    /// Another live run has the active key.
    #[error(
        "run `{run_id}` of `{job}` has the active key `{key}` and has not ended; nothing was written; wait for its end or cancel it, or use another key"
    )]
    Active {
        /// The oldest name of the job, or `runledger.graph:` and the name of the graph.
        job: String,
        /// The key.
        key: String,
        /// The run with this key.
        run_id: Uuid,
    },
    /// The graph is invalid.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A graph, or a node of a graph, cannot be rerun like a single run.
    #[error(
        "run `{run_id}` is a graph or a node of one, and what it is given comes from other nodes; nothing was written; `handle.recover(key)` of the graph runs it again as a \
         whole"
    )]
    BelongsToGraph {
        /// The run.
        run_id: Uuid,
    },
    /// A job cannot receive signals; only a workflow can.
    #[error(
        "run `{run_id}` is of job `{job}`, and only workflows take signals, by `wf.signal`; nothing was written"
    )]
    TakesNoSignals {
        /// The run.
        run_id: Uuid,
        /// The job.
        job: &'static str,
    },
    /// A run of the engine, such as a gate, executes no code that could receive a signal.
    #[error(
        "run `{run_id}` is a graph, a gate or a map node, and takes no signals; nothing was written; decide about a gate by `handle.gate(name)`, and send a signal to the run \
         of the workflow that waits for it"
    )]
    PartTakesNoSignals {
        /// The run.
        run_id: Uuid,
    },
    /// A graph, a gate or a map node has no versions: its code belongs to the engine.
    #[error(
        "run `{run_id}` is a graph, a gate or a map node, whose code is the engine's and has no versions; nothing was written; move the runs of its nodes"
    )]
    PartHasNoVersions {
        /// The run.
        run_id: Uuid,
    },
    /// The run has no code that could be paused.
    #[error(
        "run `{run_id}` is a graph, a gate, or a node that waits for others, of which no code is under way that could be paused; nothing was written; pause nodes that are queued \
         or running, or cancel it"
    )]
    NotPausable {
        /// The run.
        run_id: Uuid,
    },
    /// The gate still waits for other nodes.
    #[error(
        "the gate `{gate}` of graph `{run_id}` is not open yet: {n_live_dependencies} of the nodes that it needs have not ended; nothing was written; decide when it is"
    )]
    GateNotOpen {
        /// The graph.
        run_id: Uuid,
        /// The gate.
        gate: String,
        /// The number of unfinished dependencies.
        n_live_dependencies: i32,
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
    /// The gate already has a different decision.
    #[error(
        "the gate `{gate}` of graph `{run_id}` has a decision already{by} and is {ended}; this call decides otherwise, and the first decision stays; nothing was written"
    )]
    GateDecided {
        /// The graph.
        run_id: Uuid,
        /// The gate.
        gate: String,
        /// The state of the gate: `completed`, `failed` or `cancelled`.
        ended: RunState,
        /// Who decided, if known: " by `ann`".
        by: String,
    },
    /// The gate link was not signed with this key.
    #[error(
        "the link to a gate is not one of this key: it was signed with another one, or changed on its way; nothing was written"
    )]
    LinkInvalid,
    /// The gate link has expired.
    #[error(
        "the link to the gate `{gate}` of graph `{run_id}` has expired; nothing was written; ask for a new one"
    )]
    LinkExpired {
        /// The graph.
        run_id: Uuid,
        /// The gate.
        gate: String,
    },
    /// The gate link was revoked.
    #[error(
        "the link to the gate `{gate}` of graph `{run_id}` was revoked; nothing was written; ask for a new one"
    )]
    LinkRevoked {
        /// The graph.
        run_id: Uuid,
        /// The gate.
        gate: String,
    },
    /// The gate link is bound to another decision.
    #[error(
        "the link to the gate `{gate}` of graph `{run_id}` is bound to another decision; nothing was written; call `decide` on the link, or ask for another link"
    )]
    LinkBound {
        /// The graph.
        run_id: Uuid,
        /// The gate.
        gate: String,
    },
    /// `decide` was called on a gate link without a bound decision.
    #[error(
        "the link to the gate `{gate}` of graph `{run_id}` is bound to no decision; nothing was written; decide with `link.gate()`"
    )]
    LinkUnbound {
        /// The graph.
        run_id: Uuid,
        /// The gate.
        gate: String,
    },
    /// The link would show a decision that must be encrypted.
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
    /// The graph has no gate with this name.
    #[error("graph `{run_id}` has no gate `{gate}`{hint}")]
    NoSuchGate {
        /// The graph.
        run_id: Uuid,
        /// The requested name.
        gate: String,
        /// A similar name, if any.
        hint: String,
    },
    /// The node has ended, so it cannot be extended.
    #[error(
        "node `{node}` of graph `{run_id}` cannot be extended, because it is {ended}; nothing was written; extend it before it ends, or submit another graph"
    )]
    ExtensionClosed {
        /// The graph.
        run_id: Uuid,
        /// The node.
        node: String,
        /// How the node ended, or how the graph ended.
        ended: RunState,
    },
    /// The graph has no node with this name.
    #[error("graph `{run_id}` has no node `{name}`{hint}")]
    NoSuchNode {
        /// The graph.
        run_id: Uuid,
        /// The requested name.
        name: String,
        /// A similar name, if any.
        hint: String,
    },
    /// The graph has no result node.
    #[error(
        "graph `{run_id}` has no result: it was submitted without `graph.result(node)`; its handle is that of `db.graph::<()>(id)`, and `handle.nodes()` has the runs of its \
         nodes"
    )]
    NoResult {
        /// The graph.
        run_id: Uuid,
    },
    /// The run is not a graph.
    #[error("run `{run_id}` is not a graph, so that nothing can be added to it; nothing was written")]
    NotAGraph {
        /// The run.
        run_id: Uuid,
    },
    /// The key was used for another extension of the graph.
    #[error(
        "key `{key}` was used for another addition to graph `{run_id}`: {difference} differs; nothing was written; use another key, or repeat the addition as it was"
    )]
    AdditionConflict {
        /// The graph.
        run_id: Uuid,
        /// The key.
        key: String,
        /// The first part in which the extensions differ.
        difference: String,
    },
    /// A keyed enqueue or a signal needs `read committed`; otherwise the answer could be wrong.
    #[error(
        "{what} needs a transaction at `read committed`, this one is at `{level}`: it could miss what was committed after its snapshot; nothing was \
         written; use a transaction of its own, or one at `read committed`"
    )]
    Isolation {
        /// The operation, as `a keyed enqueue`.
        what: &'static str,
        /// The isolation level of the caller's transaction.
        level: String,
    },
    /// The payload of a signal cannot be stored.
    #[error("the payload of signal `{name}` cannot be stored")]
    EncodeSignal {
        /// The name of the signal.
        name: String,
        /// The cause.
        source: PayloadError,
    },
    /// The configuration of a job cannot be stored.
    #[error("version {version} of the configuration of job `{job}` cannot be stored; nothing was written")]
    EncodeConfig {
        /// The job.
        job: String,
        /// The version of the configuration's type.
        version: u32,
        /// The cause.
        source: PayloadError,
    },
    /// The configuration of a job is encrypted and cannot be decrypted.
    #[error(
        "version {version} of the configuration of job `{job}` cannot be read; store it again with `db.set_job_config`, in a program with the codec of the workers"
    )]
    UnreadableConfig {
        /// The name that the job was configured under.
        job: String,
        /// The version of the configuration's type.
        version: u32,
        /// The cause.
        source: PayloadError,
    },
    /// The configuration of a job does not fit the type that the code expects.
    #[error(
        "version {version} of the configuration of job `{job}` does not fit the type that this program expects; store one that does with `db.set_job_config`, which attempts after the next heartbeat read; if the code has changed the type, give it another version"
    )]
    DecodeConfig {
        /// The name that the job was configured under.
        job: String,
        /// The version of the configuration's type.
        version: u32,
        /// Where and why.
        source: DecodeError,
    },
    /// The idempotency key was used for a signal with another payload.
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
    /// The run has too many unreceived signals.
    #[error(
        "run `{run_id}` has {limit} signals `{name}` left that it has not taken; nothing was written; send it again later, or send less: one signal may \
         carry a list"
    )]
    TooManySignals {
        /// The run.
        run_id: Uuid,
        /// The name of the signals.
        name: String,
        /// The maximum number of unreceived signals.
        limit: i32,
    },
    /// Neither this program nor a live worker knows a job with this name.
    #[error("no job `{name}` is known to this program or to a living worker{hint}; nothing was written")]
    UnknownJob {
        /// The name.
        name: String,
        /// `; did you mean …?` if a similar name exists.
        hint: String,
    },
    /// A workflow used the client between its steps. Nothing was read or written. The run fails at
    /// once, because another attempt would do the same.
    #[error(
        "this was asked for between the steps of a workflow, where every replay would do it again; do it in a step (`wf.step(…)`, or `wf.tx(…)` for what \
         is written), start runs by `wf.start(…)`, and wait for them by `child.result()`"
    )]
    BetweenSteps,
    /// The run does not exist.
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
        /// The failure of the run.
        failure: Failure,
    },
    /// The run was cancelled.
    #[error("{}: {failure}", self.head())]
    RunCancelled {
        /// The run.
        run_id: Uuid,
        /// The reason, if one was given.
        failure: Failure,
    },
    /// The run is blocked: an operator must act.
    #[error("{}: {failure}", self.head())]
    RunBlocked {
        /// The run.
        run_id: Uuid,
        /// Why it is blocked.
        failure: Failure,
    },
    /// The outcome was not known in time: the run is live, or the database did not answer.
    #[error(
        "no end of run `{run_id}` is known after {waited:?}; nothing has changed for the run, and its result can be awaited again"
    )]
    WaitTimedOut {
        /// The run.
        run_id: Uuid,
        /// How long the caller waited.
        waited: Duration,
    },
    /// Steps of the run are compensated, so the run cannot be revived.
    #[error(
        "what the steps of run `{run_id}` did has been taken back, so it cannot be revived; run it again from the start: `handle.rerun()`"
    )]
    CompensationsRan {
        /// The run.
        run_id: Uuid,
    },
    /// The step of the original run is compensated, or is about to be, so no new run can use it.
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
    /// The state of the run does not allow this operation.
    #[error("run `{run_id}` is {state}, so it cannot be {verb}")]
    WrongState {
        /// The run.
        run_id: Uuid,
        /// Its state.
        state: RunState,
        /// The operation, as a participle.
        verb: &'static str,
    },
    /// A claimed run cannot move to another version of its code.
    #[error(
        "run `{run_id}` is running, and what its code records now would be held against that of the other version; nothing was written; pause it \
         (`handle.pause`), which takes place at its next await, move it, and resume it"
    )]
    RunIsRunning {
        /// The run.
        run_id: Uuid,
    },
    /// A descendant of the run is still live. When a run fails or is cancelled, its descendants are
    /// cancelled too; it can be revived only after they have ended.
    #[error(
        "run `{run_id}` has ended, but run `{below}`, which it has started, still goes on; nothing was written; revive it once that one has ended"
    )]
    DescendantsRunning {
        /// The run.
        run_id: Uuid,
        /// One of the live descendants.
        below: Uuid,
    },
    /// The run has no recorded step with this key.
    #[error("run `{run_id}` has no recorded step `{key}`{hint}; nothing was written")]
    UnknownStep {
        /// The run.
        run_id: Uuid,
        /// The requested key.
        key: String,
        /// `; did you mean …?` if a similar key exists, otherwise the existing keys.
        hint: String,
    },
    /// The handle was made inside a transaction, so it has no database to read from.
    #[error(
        "the handle of run `{run_id}` was made in a transaction and cannot read by itself; after the commit, give it a database with `handle.with_db(&db)`"
    )]
    Detached {
        /// The run.
        run_id: Uuid,
    },
    /// The embedded server of the feature `dev` cannot start.
    #[cfg(all(feature = "dev", unix))]
    #[error(transparent)]
    Dev(#[from] crate::dev::DevError),
    /// The setup of the program is wrong.
    #[error("{0}")]
    Config(String),
}
