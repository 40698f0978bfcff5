//! I14, for graphs: counters always equal the rows that they count, and a node executes only after
//! its dependencies.

use sqlx::PgConnection;

use super::Violations;

/// Finds every inconsistency of a graph, in one snapshot.
const WRONG: &str = "
with node as (
    select
        run.run_id, run.node, run.parent_id as graph_id, run.job, outcome.state as ended, outcome.finished_at, outcome.started_at,
        (select count(*) from runledger.edge join runledger.outcome as other using (run_id) where edge.dependant_id = run.run_id) as n_ended,
        (select count(*) from runledger.edge where edge.dependant_id = run.run_id) as n_needs,
        exists (select from runledger.waiting where waiting.run_id = run.run_id) as waits,
        (select graph.state from runledger.outcome as graph where graph.run_id = run.parent_id) as graph_ended
    from runledger.run
    left join runledger.outcome using (run_id)
    where run.node is not null and run.parent_id is not null
)
select format('node `%s` of graph %s waits for %s others, and %s of those that it needs have not ended', node, graph_id, remaining, n_needs - n_ended) as wrong
from node
join runledger.graph_counter using (run_id)
where ended is null and remaining <> n_needs - n_ended
union all
select format('node `%s` of graph %s goes on or has run before %s of those that it needs have ended', node, graph_id, n_needs - n_ended)
from node
where n_ended < n_needs and ((ended is null and not waits) or ended in ('completed', 'failed'))
union all
select format('node `%s` of graph %s waits, and what it needs has ended', node, graph_id)
from node
where n_needs > 0 and n_ended = n_needs and waits and job <> 'runledger.gate' and graph_ended is null
    and exists (select from runledger.waiting where waiting.run_id = node.run_id and waiting.state = 'waiting' and wake_at is null
        and cardinality(wait_any) + cardinality(wait_all) + cardinality(wait_signals) = 0)
union all
select format('node `%s` of graph %s was started before `%s` had ended, which it needs', node.node, node.graph_id, needed.node)
from node
join runledger.edge on edge.dependant_id = node.run_id
join node as needed on needed.run_id = edge.run_id
where node.ended in ('completed', 'failed') and (needed.ended is null or node.started_at + $1 * interval '1 second' < needed.finished_at)
union all
select format('node `%s` of graph %s has run, and `%s` has %s, whose success it needs', node.node, node.graph_id, needed.node, needed.ended)
from node
join runledger.edge on edge.dependant_id = node.run_id and not edge.on_terminal
join node as needed on needed.run_id = edge.run_id
where node.ended in ('completed', 'failed') and needed.ended <> 'completed'
union all
select format('node `%s` of graph %s goes on, and `%s` has %s, whose success it needs', node.node, node.graph_id, needed.node, needed.ended)
from node
join runledger.edge on edge.dependant_id = node.run_id and not edge.on_terminal
join node as needed on needed.run_id = edge.run_id
where node.ended is null and needed.ended <> 'completed' and node.graph_ended is null
union all
select format('graph %s has not heard of %s nodes, and %s have not ended or are kept by others', graph.run_id, graph_counter.remaining, there.weight)
from runledger.run as graph
join runledger.graph_counter using (run_id)
cross join lateral (
    select coalesce(sum(coalesce(own.weight, 1)), 0) as weight
    from node
    left join runledger.graph_counter as own using (run_id)
    where node.graph_id = graph.run_id and node.ended is null
) as there
where graph.graph is not null and graph_counter.remaining <> there.weight
union all
select format('graph %s has ended, and its node `%s` had not', graph_id, node)
from node
join runledger.outcome as graph on graph.run_id = node.graph_id
where graph.state in ('completed', 'failed') and (ended is null or node.finished_at > graph.finished_at + $1 * interval '1 second')
union all
select format('all nodes of graph %s have ended, and it waits', waiting.run_id)
from runledger.waiting
join runledger.run using (run_id)
where run.graph is not null and not exists (select from node where node.graph_id = run.run_id and node.ended is null)";

/// Returns what contradicts the guarantee now. `put_back_s` is the largest number of seconds by
/// which the server's clock was put back.
///
/// # Errors
/// If the database does not answer.
pub async fn wrong(connection: &mut PgConnection, put_back_s: i64) -> Result<Violations, sqlx::Error> {
    sqlx::query_scalar(WRONG).bind(put_back_s).fetch_all(connection).await
}

#[cfg(test)]
mod tests {
    use runledger::{Graph, RunHandle, value};
    use sqlx::AssertSqlSafe;

    use crate::Fixture;
    use crate::check::jobs::check_sum;

    /// Ways to break a graph of three nodes, each with the expected finding. The second node
    /// depends on the first; the third depends on any outcome of the second.
    const BREAKS: [(&str, &str); 6] = [
        ("update runledger.graph_counter set remaining = 2 where run_id = {b}", "waits for 2 others"),
        (
            "with gone as (delete from runledger.waiting where run_id = {b} returning run_id)
             insert into runledger.ready (run_id, queue, job, priority, ready_at, cause, attempt, crashes, claims)
             select run_id, 'checks', 'check.sum', 0, now(), 'woken', 0, 0, 0 from gone",
            "goes on or has run before 1",
        ),
        (
            "delete from runledger.ready where run_id = {a};
             insert into runledger.outcome (run_id, state, output, attempt) values ({a}, 'completed', '1', 1)",
            "what it needs has ended",
        ),
        ("update runledger.graph_counter set remaining = 1 where run_id = {g}", "has not heard of 1 nodes, and 3"),
        (
            "delete from runledger.ready where run_id = {a};
             insert into runledger.outcome (run_id, state, error, attempt) values ({a}, 'failed', '{}', 1)",
            "whose success it needs",
        ),
        (
            "delete from runledger.waiting where run_id = {g};
             insert into runledger.outcome (run_id, state, output, attempt) values ({g}, 'completed', '1', 1)",
            "has ended, and its node",
        ),
    ];

    #[tokio::test]
    async fn each_listed_graph_inconsistency_is_violation() -> anyhow::Result<()> {
        let fixture = Fixture::new().await;
        let mut connection = fixture.db.pool().acquire().await?;
        for (statements, said) in BREAKS {
            let mut graph = Graph::new("checked");
            let a = graph.call(check_sum(vec![1]).key("a"));
            let b = graph.then(check_sum, (vec![a, a],));
            graph.configure(b).name("b");
            let c = graph.then(check_sum, (value(vec![1]),));
            graph.configure(c).name("c");
            graph.after(c, runledger::Need::from(a).on_any_outcome());
            let handle = graph.enqueue(&fixture.db).await?;
            assert!(
                super::wrong(&mut connection, 0).await?.is_empty(),
                "{:?}",
                super::wrong(&mut connection, 0).await?
            );
            let nodes = handle.nodes().await?;
            let id = |name: &str| {
                nodes.iter().find(|node| node.name == name).map(|node| format!("'{}'::uuid", node.run_id))
            };
            let statements = statements
                .replace("{a}", &id("check.sum[a]").unwrap_or_default())
                .replace("{b}", &id("b").unwrap_or_default())
                .replace("{g}", &format!("'{}'::uuid", handle.id()));
            sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut *connection).await?;
            let violations = super::wrong(&mut connection, 0).await?.join("\n");
            assert!(violations.contains(said), "{said:?} is not said in:\n{violations}");
            RunHandle::cancel(&handle, "done with it").await?;
            sqlx::raw_sql("truncate runledger.run, runledger.graph_counter, runledger.edge, runledger.waiting, runledger.ready, runledger.outcome, runledger.cancel")
                .execute(&mut *connection)
                .await?;
        }
        Ok(())
    }
}
