//! Checks nodes that wait for other nodes. If those nodes provide arguments, `verify` cannot replay
//! the code yet. It checks only whether the program can run the node later.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::definition::{Definition, Param};
use crate::model::graph::dependency_inputs::{CONDITION, Parameter};
use crate::model::graph::{GATE, GRAPH, MAP};
use crate::model::json::Fields;
use crate::model::replay::verification::Verdict;
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::version::stored_name;

/// Whether the program needs no code for this name: a gate, or a graph with unfinished nodes.
pub(super) fn has_no_code(job: &str) -> bool {
    job == GATE || job == GRAPH
}

/// The items of a map node that has not started.
#[derive(Debug, Deserialize)]
pub(super) struct Items {
    job: String,
    version: u32,
    parameter: String,
    /// `None` if other nodes provide them.
    items: Option<Vec<Box<RawValue>>>,
}

impl Items {
    /// Reads the items. `None` if the job is not a map node, or its input cannot be read.
    pub(super) fn of(job: &str, input: &str, fed: Option<&[String]>) -> Option<Self> {
        if job != MAP {
            return None;
        }
        let items: Self = serde_json::from_str(input).ok()?;
        let are_fed = fed.is_some_and(has_missing_arguments);
        Some(if are_fed { Self { items: None, ..items } } else { items })
    }

    /// Whether the list is known to be empty.
    pub(super) fn is_empty(&self) -> bool {
        self.items.as_ref().is_some_and(Vec::is_empty)
    }

    /// The stored name of the items' job.
    pub(super) fn job(&self) -> Cow<'_, str> {
        stored_name(&self.job, self.version)
    }

    /// Checks whether the job takes an item.
    pub(super) fn verdict(&self, definition: &Definition) -> Verdict {
        verdict(definition, "{}", std::slice::from_ref(&self.parameter))
    }

    /// The input of each item.
    pub(super) fn inputs(&self) -> impl Iterator<Item = String> {
        self.items.iter().flatten().map(|item| format!("{{{}:{item}}}", Value::from(self.parameter.as_str())))
    }
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

/// The parameter that an edge fills: the list, if the edge fills one item of it. `None` for a
/// condition.
fn parameter_of(fed: &str) -> Option<&str> {
    (!fed.starts_with(CONDITION)).then(|| Parameter::stored(fed).name())
}
