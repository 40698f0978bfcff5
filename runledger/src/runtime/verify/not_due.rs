//! Nodes that wait for other nodes. If those provide arguments, `verify` cannot replay the code yet. It checks only
//! whether the program can run the node later.

use serde::Deserialize;

use crate::api::definition::{Definition, Param};
use crate::model::failure::{Failure, FailureKind};
use crate::model::given::{CONDITION, Parameter};
use crate::model::graph::{GATE, GRAPH, MAP};
use crate::model::json::Fields;
use crate::model::verification::Verdict;
use crate::model::version::stored_name;

/// Whether the program needs no code for this name: a gate, or a graph with unfinished nodes.
pub(super) fn has_no_code(job: &str) -> bool {
    job == GATE || job == GRAPH
}

/// The stored job name of the items of a map node that has not started.
pub(super) fn item_job(job: &str, input: &str, has_begun: bool) -> Option<String> {
    #[derive(Deserialize)]
    struct Items {
        job: String,
        version: u32,
    }
    if job != MAP || has_begun {
        return None;
    }
    let Items { job, version } = serde_json::from_str(input).ok()?;
    Some(stored_name(&job, version).into_owned())
}

/// Whether other nodes provide arguments, and not only conditions.
pub(super) fn has_missing_arguments(fed: &[String]) -> bool {
    fed.iter().any(|parameter| parameter_of(parameter).is_some())
}

/// Checks whether a node's own arguments and the parameters from other nodes are complete.
pub(super) fn verdict(definition: &Definition, input: &str, fed: &[String]) -> Verdict {
    let own = match Fields::parse(input) {
        Ok(own) => own,
        Err(error) => {
            let failure = Failure::new(FailureKind::Decode, error.to_string());
            return Verdict::Undecodable { failure };
        }
    };
    let is_given =
        |name: &str| own.has(name) || fed.iter().any(|parameter| parameter_of(parameter) == Some(name));
    let missing = definition.params.iter().find(|param| param.is_required() && !is_given(param.name()));
    match missing.map(Param::name) {
        None => Verdict::Replays,
        Some(name) => {
            let message = format!("missing argument `{name}`: neither the call nor another node gives it");
            Verdict::Undecodable { failure: Failure::new(FailureKind::Decode, message) }
        }
    }
}

/// The parameter that an edge fills: the list, if the edge fills one item of it. `None` for a condition.
fn parameter_of(fed: &str) -> Option<&str> {
    (!fed.starts_with(CONDITION)).then(|| Parameter::stored(fed).name())
}
