//! Graphs: creates them with all their nodes at once, releases the dependents of ended nodes, and
//! decides gates.

pub mod addition;

use std::time::{Duration, SystemTime};

use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use super::session::BEGIN_RESTLESS;
use super::write::{commit, write};
use super::{sparse, sql};
use crate::model::graph::Unreachable;
use crate::model::graph::link::Link;
use crate::model::payload::{Sealer, Stored};
use crate::model::replay::recorded::place_of_error;
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::state::RunState;
use crate::model::run::version::parts;
use crate::model::shape::GateType;
use crate::model::timestamp::{FURTHEST, Timestamp};
use crate::store::run::enqueue::{NewRun, loaded, stored};
use crate::store::run::inspect::{instant, state, stored as stored_in};

/// A graph to create.
#[derive(Clone, Debug)]
pub(crate) struct NewGraph {
    /// The graph itself: its id, tenant, queue, priority, request, options and key.
    pub(crate) run: NewRun,
    pub(crate) name: String,
    pub(crate) nodes: Vec<NewNode>,
    pub(crate) edges: Vec<NewEdge>,
    /// The graph that this one recovers.
    pub(crate) origin_id: Option<Uuid>,
}

/// A node of a new graph.
#[derive(Clone, Debug)]
pub(crate) struct NewNode {
    /// Without a tenant, the node gets the tenant of the graph.
    pub(crate) run: NewRun,
    pub(crate) name: String,
    /// The number of live dependencies.
    pub(crate) n_waits: i32,
    /// Why the node cannot succeed, and is cancelled at once.
    pub(crate) unreachable: Option<Unreachable>,
    /// For a gate: the values that it accepts.
    pub(crate) accepts: Option<GateType>,
}

/// An edge of a new graph.
#[derive(Clone, Debug)]
pub(crate) struct NewEdge {
    pub(crate) dependant_id: Uuid,
    pub(crate) run_id: Uuid,
    pub(crate) on_terminal: bool,
    /// The parameters of the dependent that receive the output of the dependency.
    pub(crate) parameters: Vec<String>,
}

/// The result of creating a graph.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) created: bool,
    pub(crate) isolation: String,
}

/// Nodes to add to an existing graph.
#[derive(Clone, Debug)]
pub(crate) struct NewAddition<'a> {
    pub(crate) graph_id: Uuid,
    pub(crate) key: &'a str,
    /// The canonical form of the addition.
    pub(crate) request: &'a str,
    pub(crate) nodes: Vec<NewNode>,
    pub(crate) edges: Vec<NewEdge>,
}

/// Creates a graph in one statement, whatever its size: on its own, or as the child of a workflow.
pub(crate) async fn submit(
    connection: &mut PgConnection,
    graph: &NewGraph,
    parent: Option<Uuid>,
) -> Result<Submission, sqlx::Error> {
    let NewGraph { run, name, nodes, edges, origin_id } = graph;
    let row = write(sql::SUBMIT_GRAPH, |put| {
        let head = sqlx::query(put)
            .bind(run.run_id)
            .bind(Some(name.as_str()))
            .bind(&run.tenant)
            .bind(&run.queue)
            .bind(run.priority)
            .bind(run.input.as_str())
            .bind(stored(&run.options))
            .bind(&run.idempotency_key);
        bind_nodes(head, nodes, edges)
            .bind(origin_id)
            .bind(parent)
            .bind(accepted(nodes))
            .fetch_one(connection)
    })
    .await?;
    Ok(Submission { created: row.try_get("created")?, isolation: row.try_get("isolation")? })
}

/// Adds nodes to an existing graph, in the transaction that locked their dependencies.
pub(crate) async fn add(
    connection: &mut PgConnection,
    addition: &NewAddition<'_>,
) -> Result<(), sqlx::Error> {
    let NewAddition { graph_id, key, request, nodes, edges } = addition;
    write(sql::SUBMIT_GRAPH, |put| {
        let head = sqlx::query(put)
            .bind(graph_id)
            .bind(None::<&str>)
            .bind(None::<&str>)
            .bind(None::<&str>)
            .bind(None::<i16>)
            .bind(request)
            .bind(None::<&str>)
            .bind(key);
        bind_nodes(head, nodes, edges)
            .bind(None::<Uuid>)
            .bind(None::<Uuid>)
            .bind(accepted(nodes))
            .execute(connection)
    })
    .await
    .map(drop)
}

type Put<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// Binds the parameters of `submit_graph.sql` for nodes and edges.
fn bind_nodes<'q>(put: Put<'q>, nodes: &'q [NewNode], edges: &'q [NewEdge]) -> Put<'q> {
    let texts = |part: fn(&NewNode) -> &str| nodes.iter().map(part).collect::<Vec<_>>();
    let unreachable = || nodes.iter().map(|node| node.unreachable.as_ref());
    put.bind(nodes.iter().map(|node| node.run.run_id).collect::<Vec<_>>())
        .bind(texts(|node| &node.name))
        .bind(texts(|node| &node.run.job))
        .bind(sparse(
            nodes.iter().map(|node| Some(node.run.tenant.as_str()).filter(|tenant| !tenant.is_empty())),
        ))
        .bind(texts(|node| &node.run.queue))
        .bind(nodes.iter().map(|node| node.run.priority).collect::<Vec<_>>())
        .bind(texts(|node| node.run.input.as_str()))
        .bind(sparse(nodes.iter().map(|node| stored(&node.run.options))))
        .bind(sparse(nodes.iter().map(|node| node.run.options.delay_us)))
        .bind(sparse(nodes.iter().map(|node| node.run.options.start_at())))
        .bind(nodes.iter().map(|node| node.n_waits).collect::<Vec<_>>())
        .bind(sparse(
            unreachable().map(|unreachable| unreachable.map(|unreachable| unreachable.cause.as_str())),
        ))
        .bind(sparse(
            unreachable().map(|unreachable| unreachable.map(|unreachable| unreachable.ending.as_str())),
        ))
        .bind(edges.iter().map(|edge| edge.dependant_id).collect::<Vec<_>>())
        .bind(edges.iter().map(|edge| edge.run_id).collect::<Vec<_>>())
        .bind(edges.iter().map(|edge| edge.on_terminal).collect::<Vec<_>>())
        .bind(edges.iter().map(|edge| array_literal(&edge.parameters)).collect::<Vec<_>>())
}

/// Returns the values that each gate among the nodes accepts.
fn accepted(nodes: &[NewNode]) -> Vec<Option<String>> {
    // Serialization cannot fail: all maps of a shape have text keys.
    sparse(
        nodes
            .iter()
            .map(|node| node.accepts.as_ref().and_then(|accepts| serde_json::to_string(accepts).ok())),
    )
}

/// The conditions of a decision about a gate.
#[derive(Debug)]
pub(crate) struct GateTerms {
    /// The values that the gate accepts. `None` if none are stored, or if a newer program stored
    /// them in an unknown form.
    pub(crate) accepts: Option<GateType>,
    /// Whether the payloads of its graph are encrypted.
    pub(crate) is_encrypted: bool,
}

/// Returns the terms of a gate. `None` if it does not exist.
pub(crate) async fn gate_terms(
    connection: &mut PgConnection,
    gate: Uuid,
) -> Result<Option<GateTerms>, sqlx::Error> {
    let row = sqlx::query(sql::GATE_TYPE).bind(gate).fetch_optional(connection).await?;
    row.map(|row| {
        let accepts = read_type(row.try_get("accepts")?);
        Ok(GateTerms { accepts, is_encrypted: row.try_get("is_encrypted")? })
    })
    .transpose()
}

fn read_type(accepts: Option<String>) -> Option<GateType> {
    accepts.and_then(|accepts| serde_json::from_str(&accepts).ok())
}

/// An array in PostgreSQL's text form. An array of arrays with different lengths cannot be sent.
fn array_literal(items: &[String]) -> String {
    let quoted = items.iter().map(|item| format!("\"{}\"", item.replace('\\', "\\\\").replace('"', "\\\"")));
    format!("{{{}}}", quoted.collect::<Vec<_>>().join(","))
}

/// Counts the ends of nodes, in the transaction that ended them. Starts or cancels the nodes that
/// are now decided, and concludes the graph after its last node.
pub(crate) async fn release(connection: &mut PgConnection, ended: &[Uuid]) -> Result<(), sqlx::Error> {
    write(sql::RELEASE, |release| sqlx::query(release).bind(ended).execute(connection)).await.map(drop)
}

/// Locks the counters that change when these unclaimed nodes and graphs end. Returns false if the
/// runs are neither.
pub(crate) async fn lock_counters(connection: &mut PgConnection, runs: &[Uuid]) -> Result<bool, sqlx::Error> {
    Ok(!sqlx::query(sql::LOCK_COUNTERS).bind(runs).fetch_all(connection).await?.is_empty())
}

/// The definition of a graph or of one of its nodes.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) state: RunState,
    pub(crate) run: NewRun,
    pub(crate) needs: Vec<(String, bool, Vec<String>)>,
    /// For a gate: the values that it accepts.
    pub(crate) accepts: Option<GateType>,
}

/// Returns the definitions of a graph and of its nodes. `None` if the graph does not exist.
pub(crate) async fn parts_of(
    connection: &mut PgConnection,
    graph: Uuid,
) -> Result<Option<(Part, Vec<Part>)>, sqlx::Error> {
    let rows = sqlx::query(sql::GRAPH_PARTS).bind(graph).fetch_all(connection).await?;
    let mut parts = rows.iter().map(part).collect::<Result<Vec<_>, _>>()?.into_iter();
    Ok(parts.next().filter(|first| first.run.run_id == graph).map(|first| (first, parts.collect())))
}

fn part(row: &PgRow) -> Result<Part, sqlx::Error> {
    let needs: Option<String> = row.try_get("needs")?;
    let needs = needs.map(|needs| serde_json::from_str(&needs)).transpose();
    Ok(Part {
        name: row.try_get("name")?,
        state: state(row)?,
        run: NewRun {
            run_id: row.try_get("run_id")?,
            job: row.try_get("job")?,
            tenant: row.try_get("tenant")?,
            queue: row.try_get("queue")?,
            priority: row.try_get("priority")?,
            input: Stored::read(row.try_get("input")?),
            options: loaded(row.try_get("options")?)?,
            idempotency_key: None,
        },
        needs: needs.map_err(|error| sqlx::Error::Decode(error.into()))?.unwrap_or_default(),
        accepts: read_type(row.try_get("accepts")?),
    })
}

/// A graph without its nodes.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) name: String,
    pub(crate) state: RunState,
    /// The canonical form of its request.
    pub(crate) request: Stored,
}

/// Returns the name, the state and the request of a graph. `None` if the graph does not exist.
pub(crate) async fn head(connection: &mut PgConnection, graph: Uuid) -> Result<Option<Head>, sqlx::Error> {
    let row = sqlx::query(sql::GRAPH_HEAD).bind(graph).fetch_optional(connection).await?;
    row.map(|row| {
        let request = Stored::read(row.try_get("input")?);
        Ok(Head { name: row.try_get("graph")?, state: state(&row)?, request })
    })
    .transpose()
}

/// An edge of a graph, with the names of its nodes.
#[derive(Debug)]
pub(crate) struct NamedEdge {
    pub(crate) dependant: String,
    pub(crate) needed: String,
    pub(crate) on_terminal: bool,
    pub(crate) parameters: Vec<String>,
}

/// All edges of a graph.
pub(crate) async fn edges(connection: &mut PgConnection, graph: Uuid) -> Result<Vec<NamedEdge>, sqlx::Error> {
    let rows = sqlx::query(sql::GRAPH_EDGES).bind(graph).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(NamedEdge {
                dependant: row.try_get("dependant")?,
                needed: row.try_get("needed")?,
                on_terminal: row.try_get("on_terminal")?,
                parameters: row.try_get("parameters")?,
            })
        })
        .collect()
}

/// A node that ended without completing, or the result node.
#[derive(Debug)]
pub(crate) struct NodeEnd {
    pub(crate) run_id: Uuid,
    pub(crate) node: String,
    pub(crate) state: RunState,
    pub(crate) output: Option<Stored>,
    pub(crate) error: Option<Stored>,
    /// Whether a node that was not skipped depends on it.
    pub(crate) is_needed: bool,
}

impl NodeEnd {
    /// Whether the node was skipped. The kind of an error is never encrypted.
    pub(crate) fn is_skipped(&self) -> bool {
        #[derive(serde::Deserialize)]
        struct Kind {
            kind: FailureKind,
        }
        let kind = self.error.as_ref().and_then(|error| serde_json::from_str(error.as_str()).ok());
        kind.is_some_and(|Kind { kind }| kind == FailureKind::Skipped)
    }
}

/// Returns the nodes of a graph that ended without completing, and its result node, in the order in
/// which they ended.
pub(crate) async fn ends(
    connection: &mut PgConnection,
    run_id: Uuid,
    result: Option<&str>,
) -> Result<Vec<NodeEnd>, sqlx::Error> {
    let rows = sqlx::query(sql::GRAPH_ENDS).bind(run_id).bind(result).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(NodeEnd {
                run_id: row.try_get("run_id")?,
                node: row.try_get("node")?,
                state: state(row)?,
                output: stored_in(row, "output")?,
                error: stored_in(row, "error")?,
                is_needed: row.try_get("is_needed")?,
            })
        })
        .collect()
}

/// The outcome that a decision gives a gate.
#[derive(Debug)]
pub(crate) struct Decision<'d> {
    pub(crate) state: RunState,
    pub(crate) output: Option<&'d Stored>,
    pub(crate) error: Option<&'d Stored>,
    pub(crate) by: Option<&'d str>,
    pub(crate) reason: Option<&'d str>,
    /// The link that the decision was made with.
    pub(crate) by_link: Option<&'d Link>,
}

/// The result of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decided {
    /// The gate has ended with this decision.
    Yes,
    /// The gate is not open, or has ended.
    No,
    /// The link has expired.
    Late,
    /// The link was revoked.
    Revoked,
}

/// The terms of a new link.
#[derive(Debug)]
pub(crate) struct LinkTerms {
    /// When it expires.
    pub(crate) expires_at: Timestamp,
    /// The epoch of the gate's links.
    pub(crate) epoch: Uuid,
}

/// Returns the terms of a new link. `None` if there is no such gate.
pub(crate) async fn gate_link(
    connection: &mut PgConnection,
    gate: Uuid,
    valid_for: Duration,
) -> Result<Option<LinkTerms>, sqlx::Error> {
    let micros = i64::try_from(valid_for.min(FURTHEST).as_micros()).unwrap_or(i64::MAX);
    let row = sqlx::query(sql::GATE_LINK).bind(gate).bind(micros).fetch_one(connection).await?;
    let is_gate: bool = row.try_get("is_gate")?;
    let terms = LinkTerms { expires_at: row.try_get("expires_at")?, epoch: row.try_get("epoch")? };
    Ok(is_gate.then_some(terms))
}

/// Revokes every link to a gate that was signed before. Returns false if there is no such gate.
pub(crate) async fn revoke_links(connection: &mut PgConnection, gate: Uuid) -> Result<bool, sqlx::Error> {
    let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
    sqlx::query(sql::LOCK_RUNS).bind(vec![gate]).execute(&mut *tx).await?;
    let revoked =
        write(sql::GATE_REVOKE, |revoke| sqlx::query(revoke).bind(gate).fetch_optional(&mut *tx)).await?;
    commit("gate_revocation", tx.commit()).await?;
    Ok(revoked.is_some())
}

/// Ends a gate and releases its dependents.
pub(crate) async fn decide(
    connection: &mut PgConnection,
    gate: Uuid,
    decision: &Decision<'_>,
) -> Result<Decided, sqlx::Error> {
    let mut tx = connection.begin_with(BEGIN_RESTLESS).await?;
    sqlx::query(sql::LOCK_RUNS).bind(vec![gate]).execute(&mut *tx).await?;
    lock_counters(&mut tx, &[gate]).await?;
    let row = write(sql::GATE_DECIDE, |decide| {
        sqlx::query(decide)
            .bind(gate)
            .bind(decision.state.as_str())
            .bind(decision.output.map(Stored::as_str))
            .bind(decision.error.map(Stored::as_str))
            .bind(decision.by)
            .bind(decision.reason)
            .bind(decision.by_link.map(|link| link.expires_at))
            .bind(decision.by_link.map(|link| link.epoch))
            .fetch_one(&mut *tx)
    })
    .await?;
    if !row.try_get::<bool, _>("decided")? {
        tx.rollback().await?;
        let (is_revoked, is_late) = (row.try_get("revoked")?, row.try_get("late")?);
        return Ok(match (is_revoked, is_late) {
            (true, _) => Decided::Revoked,
            (false, true) => Decided::Late,
            (false, false) => Decided::No,
        });
    }
    release(&mut tx, &[gate]).await?;
    commit("gate", tx.commit()).await?;
    Ok(Decided::Yes)
}

/// The state of a node of a graph.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeInfo {
    /// The id of its run, which `db.run(id)` takes.
    pub run_id: Uuid,
    /// Its name in the graph.
    pub name: String,
    /// The name of its job; `None` for a gate.
    pub job: Option<String>,
    /// Its state. A node that waits for other nodes and an undecided gate are `waiting`.
    pub state: RunState,
    /// The number of attempts, including the current one. Attempts that ended by a crash, a
    /// suspension or a shutdown do not count.
    pub attempt: i32,
    /// The number of its live dependencies. A gate with 0 is open.
    pub n_live_dependencies: i32,
    /// The names of its dependencies, sorted.
    pub dependencies: Vec<String>,
    /// When its current or last attempt began. For a gate: when it opened.
    pub started_at: Option<SystemTime>,
    /// When it ended.
    pub finished_at: Option<SystemTime>,
    /// The error that it failed with, or the reason for its cancel.
    pub error: Option<Failure>,
    /// For a gate: who decided it, as stated in the decision.
    pub decided_by: Option<String>,
    /// For a gate: why, as stated in the decision.
    pub reason: Option<String>,
    /// For a gate: when it was decided.
    pub decided_at: Option<SystemTime>,
}

impl NodeInfo {
    /// Whether the node was skipped: its condition did not hold, or a node whose success it needs
    /// was skipped. The state of a skipped node is `cancelled`.
    #[must_use]
    pub fn is_skipped(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.kind == FailureKind::Skipped)
    }
}

/// Returns the nodes of a graph with their states, by name.
pub(crate) async fn nodes(
    connection: &mut PgConnection,
    graph: Uuid,
    after: Option<&str>,
    limit: i64,
    sealer: &Sealer,
) -> Result<Vec<NodeInfo>, sqlx::Error> {
    let rows =
        sqlx::query(sql::GRAPH_NODES).bind(graph).bind(after).bind(limit).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            let run_id = row.try_get("run_id")?;
            let job: String = row.try_get("job")?;
            let error = stored_in(row, "error")?;
            Ok(NodeInfo {
                run_id,
                name: row.try_get("node")?,
                job: (job != crate::model::graph::GATE).then(|| parts(&job).0.to_owned()),
                state: state(row)?,
                attempt: row.try_get("attempt")?,
                n_live_dependencies: row.try_get("needs")?,
                dependencies: row.try_get("needed")?,
                started_at: instant(row, "started_at")?,
                finished_at: instant(row, "finished_at")?,
                error: error.map(|error| sealer.show_failure(&place_of_error(run_id, ""), &error)),
                decided_by: row.try_get("decided_by")?,
                reason: row.try_get("reason")?,
                decided_at: instant(row, "decided_at")?,
            })
        })
        .collect()
}
