//! Adds the outputs of a node's dependencies to its own arguments.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::model::payload::{PayloadError, PayloadKind, Place, Sealer, Stored};
use crate::model::replay::recorded::place_of_error;
use crate::model::run::failure::{Failure, FailureKind};

/// The outcome of a dependency. A parameter takes it if the edge comes from
/// `node.on_any_outcome()`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<T> {
    /// The node completed with this output.
    Completed(T),
    /// The node failed.
    Failed(Failure),
    /// The node was cancelled, or could never run.
    Cancelled(Failure),
}

impl<T> Outcome<T> {
    /// The output.
    ///
    /// # Errors
    /// The failure, if the node did not complete.
    pub fn into_result(self) -> Result<T, Failure> {
        match self {
            Self::Completed(output) => Ok(output),
            Self::Failed(failure) | Self::Cancelled(failure) => Err(failure),
        }
    }

    /// The output, if the node completed.
    pub fn completed(self) -> Option<T> {
        self.into_result().ok()
    }
}

/// A dependency, as `json_build_array` encodes it.
type Row = (Uuid, bool, Vec<String>, String, Option<Box<RawValue>>, Option<Box<RawValue>>);

/// The stored outcome of one dependency.
#[derive(Clone, Debug)]
pub struct DependencyOutput {
    run_id: Uuid,
    /// Whether the parameters take an [`Outcome`].
    is_outcome: bool,
    parameters: Vec<String>,
    state: String,
    output: Option<Stored>,
    error: Option<Stored>,
}

/// Reads the stored outcomes of a node's dependencies.
///
/// # Errors
/// The text is not an array of such rows.
pub fn read(text: &str) -> Result<Vec<DependencyOutput>, serde_json::Error> {
    let rows: Vec<Row> = serde_json::from_str(text)?;
    let stored = |raw: Box<RawValue>| Stored::read(raw.get().to_owned());
    Ok(rows
        .into_iter()
        .map(|(run_id, is_outcome, parameters, state, output, error)| DependencyOutput {
            run_id,
            is_outcome,
            parameters,
            state,
            output: output.map(stored),
            error: error.map(stored),
        })
        .collect())
}

/// The parameter for one item of a list that several dependencies fill.
#[must_use]
pub fn item(parameter: &str, at: usize) -> String {
    format!("{parameter}[{at}]")
}

/// A parameter of an edge: a whole argument, or one item of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter<'p> {
    Whole(&'p str),
    Item(&'p str, usize),
}

impl<'p> Parameter<'p> {
    /// Reads `name` or `name[index]`. `None` for anything else, such as `name[]` and `name[00]`.
    #[must_use]
    pub fn parse(parameter: &'p str) -> Option<Self> {
        let read = Self::stored(parameter);
        let is_a_name = !read.name().is_empty() && !read.name().contains(['[', ']']);
        let is_canonical = match read {
            Self::Whole(_) => true,
            Self::Item(list, at) => item(list, at) == parameter,
        };
        (is_a_name && is_canonical).then_some(read)
    }

    /// Reads a stored parameter. Graphs from before 0.1.0 may have numbers such as `00`.
    #[must_use]
    pub fn stored(parameter: &'p str) -> Self {
        let item = parameter.strip_suffix(']').and_then(|it| it.rsplit_once('['));
        match item.map(|(list, at)| (list, at.parse())) {
            Some((list, Ok(at))) => Self::Item(list, at),
            _ => Self::Whole(parameter),
        }
    }

    /// The parameter of the job.
    #[must_use]
    pub fn name(self) -> &'p str {
        match self {
            Self::Whole(name) | Self::Item(name, _) => name,
        }
    }
}

/// The first character of a condition among the parameters of an edge. The name of the deciding
/// node follows. No parameter name begins with this character.
pub const CONDITION: char = '?';

/// Why a node must not run: a condition is false, or is not a boolean. `None` if the node may run.
///
/// # Errors
/// [`PayloadError`] if an output cannot be decrypted.
pub fn failed_condition(
    given: &[DependencyOutput],
    sealer: &Sealer,
) -> Result<Option<Failure>, PayloadError> {
    for given in given {
        for name in given.parameters.iter().filter_map(|parameter| parameter.strip_prefix(CONDITION)) {
            match given.text(sealer)?.trim() {
                "true" => {}
                "false" => {
                    let message = format!(
                        "skipped: the node `{name}` gave `false`, and this one is to run if it gave `true`"
                    );
                    return Ok(Some(Failure::new(FailureKind::Skipped, message)));
                }
                _ => {
                    let message = format!(
                        "the condition of this node is the output of node `{name}`, and that is neither `true` nor `false`"
                    );
                    return Ok(Some(Failure::new(FailureKind::Decode, message)));
                }
            }
        }
    }
    Ok(None)
}

/// The value of a parameter: from one dependency, or a list of one item per dependency.
enum Argument {
    One(String),
    Items(BTreeMap<usize, String>),
}

/// The input of a node: its own arguments, and the outputs of its dependencies.
///
/// # Errors
/// [`PayloadError`] if an output cannot be decrypted.
pub fn bind(input: String, given: Vec<DependencyOutput>, sealer: &Sealer) -> Result<String, PayloadError> {
    if given.is_empty() {
        return Ok(input);
    }
    let mut arguments: BTreeMap<String, Argument> = BTreeMap::new();
    for given in given {
        let mut parameters =
            given.parameters.iter().filter(|parameter| !parameter.starts_with(CONDITION)).peekable();
        if parameters.peek().is_none() {
            continue;
        }
        let text = given.text(sealer)?;
        for parameter in parameters {
            match Parameter::stored(parameter) {
                Parameter::Item(list, at) => {
                    let items = arguments.entry(list.to_owned()).or_insert(Argument::Items(BTreeMap::new()));
                    if let Argument::Items(items) = items {
                        items.insert(at, text.clone());
                    }
                }
                Parameter::Whole(parameter) => {
                    arguments.insert(parameter.to_owned(), Argument::One(text.clone()));
                }
            }
        }
    }
    // Every input is an object. Its last brace follows the added arguments.
    let own = input.trim_end().strip_suffix('}').unwrap_or("{").trim_end();
    let mut filled = own.to_owned();
    for (parameter, argument) in arguments {
        if !filled.ends_with('{') {
            filled.push(',');
        }
        filled.push_str(&serde_json::Value::from(parameter).to_string());
        filled.push(':');
        match argument {
            Argument::One(text) => filled.push_str(&text),
            Argument::Items(items) => {
                filled.push('[');
                filled.push_str(&items.into_values().collect::<Vec<_>>().join(","));
                filled.push(']');
            }
        }
    }
    filled.push('}');
    Ok(filled)
}

impl DependencyOutput {
    /// The JSON text of the argument.
    fn text(&self, sealer: &Sealer) -> Result<String, PayloadError> {
        let place = Place::new(self.run_id, PayloadKind::Output, "");
        let output = match &self.output {
            Some(output) => sealer.open(&place, output.clone())?,
            // The query returns SQL `null` for an output of JSON `null`.
            None => "null".to_owned(),
        };
        if !self.is_outcome {
            return Ok(output);
        }
        if self.state == "completed" {
            return Ok(format!("{{\"completed\":{output}}}"));
        }
        let failure = self.error.as_ref().map(|error| {
            let failure = sealer.show_failure(&place_of_error(self.run_id, ""), error);
            // A failure contains only strings, so it always has a JSON form.
            serde_json::to_string(&failure).unwrap_or_default()
        });
        Ok(format!("{{\"{}\":{}}}", self.state, failure.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(input: &str, given: &str) -> Result<String, String> {
        let given = read(given).map_err(|error| error.to_string())?;
        bind(input.to_owned(), given, &Sealer::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn dependency_outputs_are_merged_into_own_arguments() {
        let id = Uuid::nil();
        let given = format!(
            "[[\"{id}\", false, [\"eu\", \"again\"], \"completed\", {{\"n\": 1.0}}, null], [\"{id}\", false, [\"us\"], \"completed\", null, null]]"
        );
        let text = filled("{\"day\":\"monday\"}", &given);
        assert_eq!(
            text.as_deref(),
            Ok("{\"day\":\"monday\",\"again\":{\"n\": 1.0},\"eu\":{\"n\": 1.0},\"us\":null}")
        );
        assert_eq!(filled("{}", "[]").as_deref(), Ok("{}"));
    }

    #[test]
    fn list_items_follow_their_index_and_not_row_order() {
        let id = Uuid::nil();
        let given = format!(
            "[[\"{id}\", false, [\"{}\"], \"completed\", 10, null], [\"{id}\", false, [\"{}\"], \"completed\", 2, null]]",
            item("parts", 10),
            item("parts", 2)
        );
        assert_eq!(filled("{}", &given).as_deref(), Ok("{\"parts\":[2,10]}"));
    }

    #[test]
    fn parameter_is_name_or_one_list_item() {
        assert_eq!(Parameter::parse("parts"), Some(Parameter::Whole("parts")));
        assert_eq!(Parameter::parse("parts[0]"), Some(Parameter::Item("parts", 0)));
        assert_eq!(Parameter::parse("parts[12]"), Some(Parameter::Item("parts", 12)));
        for wrong in [
            "",
            "[0]",
            "parts[]",
            "parts[x]",
            "parts[00]",
            "parts[+1]",
            "parts[-1]",
            "parts[0",
            "parts0]",
            "a[0][1]",
        ] {
            assert_eq!(Parameter::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn items_with_leading_zeros_from_older_graphs_are_read() {
        let id = Uuid::nil();
        let given = format!(
            "[[\"{id}\", false, [\"parts[01]\"], \"completed\", 10, null], [\"{id}\", false, [\"parts[00]\"], \"completed\", 2, null]]"
        );
        assert_eq!(filled("{}", &given).as_deref(), Ok("{\"parts\":[2,10]}"));
    }

    #[test]
    fn condition_decides_and_is_not_passed_as_argument() {
        let unmet = |output: &str| {
            let given =
                format!("[[\"{}\", false, [\"?approved\"], \"completed\", {output}, null]]", Uuid::nil());
            assert_eq!(filled("{}", &given).as_deref(), Ok("{}"));
            let given = read(&given).map_err(|error| error.to_string());
            given.and_then(|given| {
                failed_condition(&given, &Sealer::default()).map_err(|error| error.to_string())
            })
        };
        assert_eq!(unmet("true"), Ok(None));
        let kind = |output: &str| unmet(output).map(|failure| failure.map(|failure| failure.kind));
        assert_eq!(kind("false"), Ok(Some(FailureKind::Skipped)));
        assert_eq!(kind("1"), Ok(Some(FailureKind::Decode)));
        assert_eq!(kind("null"), Ok(Some(FailureKind::Decode)));
    }

    #[test]
    fn outcome_argument_shows_how_node_ended() {
        let id = Uuid::nil();
        let failure = "{\"kind\":\"error\",\"message\":\"no\"}";
        let given = format!(
            "[[\"{id}\", true, [\"a\"], \"completed\", 1, null], [\"{id}\", true, [\"b\"], \"failed\", null, {failure}]]"
        );
        let text = filled("{}", &given).unwrap_or_default();
        let outcomes: Result<BTreeMap<String, Outcome<u32>>, _> = serde_json::from_str(&text);
        let expected = BTreeMap::from([
            ("a".to_owned(), Outcome::Completed(1)),
            ("b".to_owned(), Outcome::Failed(Failure::new(FailureKind::Error, "no"))),
        ]);
        assert_eq!(outcomes.ok(), Some(expected));
    }

    #[test]
    fn only_completed_outcome_yields_output() {
        let failure = Failure::new(FailureKind::Error, "no");
        assert_eq!(Outcome::Completed(1).completed(), Some(1));
        assert_eq!(Outcome::<u32>::Failed(failure.clone()).completed(), None);
        assert_eq!(Outcome::<u32>::Cancelled(failure.clone()).into_result(), Err(failure));
    }
}
