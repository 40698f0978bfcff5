//! Prints pictures of graphs, and decides their gates.

use runledger::{ClientError, Db, GateType, NodeInfo};
use serde_json::json;
use uuid::Uuid;

use super::Said;
use super::args::{Format, Gate, GateArgs};
use super::shown::{instant, json as json_line, plain_json, shown};

/// Prints the picture of a graph. The library escapes the names in it, except in JSON.
pub(crate) async fn picture(db: &Db, run: Uuid, format: Format, json: bool) -> Said {
    let picture = match db.graph::<()>(run).picture().await {
        Err(error @ ClientError::NoSuchRun { .. }) => {
            let other = db.run(run).info().await.map_err(|_| error)?;
            return Err(format!("run `{run}` is of job `{}`, and no graph", other.job).into());
        }
        picture => picture?,
    };
    let said = match if json { Format::Json } else { format } {
        Format::Table => picture.to_string(),
        Format::Dot => picture.to_dot(),
        Format::Svg => picture.to_svg(),
        Format::Json => plain_json(&picture.to_json()?),
    };
    Ok(if said.ends_with('\n') { said } else { said + "\n" })
}

/// Decides a gate, and prints the stored decision. If the gate was decided before, that is the
/// earlier decision.
pub(crate) async fn decide(db: &Db, gate: Gate, json: bool) -> Said {
    let (args, end) = match gate {
        Gate::Complete { gate, value } => (gate, End::Completed(value)),
        Gate::Fail { gate, message } => (gate, End::Failed(message)),
        Gate::Cancel { gate, message } => (gate, End::Cancelled(message)),
        Gate::RevokeLinks { run, name } => return revoke_links(db, run, &name, json).await,
    };
    let GateArgs { run, name, by, reason } = args;
    let graph = db.graph::<()>(run);
    let mut gate = graph.gate(&name);
    if let Some(who) = by.or_else(login) {
        gate = gate.by(who);
    }
    if let Some(why) = reason {
        gate = gate.reason(why);
    }
    match end {
        End::Completed(value) => {
            // For a missing gate, `complete` returns a better error.
            let is_there =
                async || graph.nodes().await.map(|nodes| nodes.iter().any(|node| node.name == name));
            if value.is_none() && is_there().await? {
                needs_no_value(run, &name, gate.value_type().await?)?;
            }
            gate.complete(&value).await?;
        }
        End::Failed(message) => gate.fail(&message).await?,
        End::Cancelled(message) => gate.cancel(&message).await?,
    }
    let kept = graph.nodes().await?.into_iter().find(|node| node.name == name);
    let kept = kept.ok_or(ClientError::NoSuchRun { run_id: run })?;
    if json { json_line(&decision(run, &kept)) } else { Ok(told(run, &kept)) }
}

/// Revokes the links to a gate.
async fn revoke_links(db: &Db, run: Uuid, name: &str, json: bool) -> Said {
    db.graph::<()>(run).gate(name).revoke_links().await?;
    if json {
        return json_line(&json!({ "run_id": run, "gate": name, "revoked": true }));
    }
    Ok(format!("revoked every link to gate `{}` of graph `{run}` that was signed before now\n", shown(name)))
}

/// Refuses to complete a gate without a value unless its type is `()`.
fn needs_no_value(run: Uuid, name: &str, accepts: Option<GateType>) -> Result<(), String> {
    let advice = match accepts {
        Some(accepts) if accepts.is_unit() => return Ok(()),
        Some(accepts) => match accepts.example() {
            Some(example) => format!("it takes {accepts}; give it one, such as `--value '{example}'`"),
            None => format!("it takes {accepts}; give it one with `--value`"),
        },
        None => "its type is not known; give it one with `--value`, or `--value null` for none".to_owned(),
    };
    Err(format!(
        "gate `{name}` of graph `{run}` needs a value and none was given; nothing was written; {advice}"
    ))
}

enum End {
    Completed(Option<Box<serde_json::value::RawValue>>),
    Failed(String),
    Cancelled(String),
}

/// The login name of the user.
fn login() -> Option<String> {
    std::env::var("USER").ok().filter(|name| !name.is_empty())
}

fn decision(run: Uuid, gate: &NodeInfo) -> serde_json::Value {
    json!({
        "run_id": run,
        "gate": gate.name,
        "state": gate.state,
        "decided_by": gate.decided_by,
        "reason": gate.reason,
        "decided_at": gate.decided_at.map(instant),
        "error": gate.error,
    })
}

fn told(run: Uuid, gate: &NodeInfo) -> String {
    let by = gate.decided_by.as_ref().map(|who| format!(", decided by `{}`", shown(who)));
    let why = gate.reason.as_ref().map(|why| format!(": {}", shown(why)));
    let (by, why) = (by.unwrap_or_default(), why.unwrap_or_default());
    format!("gate `{}` of graph `{run}` is {}{by}{why}\n", shown(&gate.name), gate.state)
}
