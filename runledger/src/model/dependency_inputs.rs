//! What a node of a graph is given by those that it needs: their outputs, put among its own arguments.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::failure::{Failure, FailureKind};
use super::payload::{PayloadError, PayloadKind, Place, Sealer, Stored};
use super::recorded::place_of_error;

/// How a node ended, for one that takes any end: `node.on_any_outcome()` gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<T> {
    /// It gave this.
    Completed(T),
    /// It failed with this.
    Failed(Failure),
    /// It was cancelled, or never could run, for this reason.
    Cancelled(Failure),
}

impl<T> Outcome<T> {
    /// What it gave.
    ///
    /// # Errors
    /// Why it gave nothing.
    pub fn into_result(self) -> Result<T, Failure> {
        match self {
            Self::Completed(output) => Ok(output),
            Self::Failed(failure) | Self::Cancelled(failure) => Err(failure),
        }
    }

    /// What it gave, if it completed.
    pub fn completed(self) -> Option<T> {
        self.into_result().ok()
    }
}

/// A prerequisite as `json_build_array` gives it.
type Row = (Uuid, bool, Vec<String>, String, Option<Box<RawValue>>, Option<Box<RawValue>>);

/// What one prerequisite gives, as it is stored.
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

/// Reads what the prerequisites of a node give.
///
/// # Errors
/// Where the text is not an array of such rows.
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

/// The parameter that is one item of a list that several prerequisites give.
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

    /// Reads a parameter that is stored. Graphs from before 0.1.0 may have numbers such as `00`.
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

/// Begins what stands among the parameters of an edge for a condition; the name of the node that decides comes after it. No parameter begins so.
pub const CONDITION: char = '?';

/// Why a node is not to run: a condition under which it stands did not hold, or it was none. None where it is to run.
///
/// # Errors
/// [`PayloadError`], where an output does not open.
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
                        "the node `{name}` is to decide whether this one runs, and gave neither `true` nor `false`"
                    );
                    return Ok(Some(Failure::new(FailureKind::Decode, message)));
                }
            }
        }
    }
    Ok(None)
}

/// What a parameter is given: by one prerequisite, or an item each by several.
enum Argument {
    One(String),
    Items(BTreeMap<usize, String>),
}

/// The input of a node: its own arguments, and what its prerequisites give.
///
/// # Errors
/// [`PayloadError`], where an output does not open.
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
    // An object, as every input is: its last brace goes behind what is added.
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
    /// The JSON text that a parameter is given.
    fn text(&self, sealer: &Sealer) -> Result<String, PayloadError> {
        let place = Place::new(self.run_id, PayloadKind::Output, "");
        let output = match &self.output {
            Some(output) => sealer.open(&place, output.clone())?,
            // An output of `null` arrives as none.
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
            // A failure is strings, which always have a JSON form.
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
    fn what_others_gave_stands_among_the_own_arguments() {
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
    fn items_stand_in_their_order_and_not_in_that_of_the_rows() {
        let id = Uuid::nil();
        let given = format!(
            "[[\"{id}\", false, [\"{}\"], \"completed\", 10, null], [\"{id}\", false, [\"{}\"], \"completed\", 2, null]]",
            item("parts", 10),
            item("parts", 2)
        );
        assert_eq!(filled("{}", &given).as_deref(), Ok("{\"parts\":[2,10]}"));
    }

    #[test]
    fn a_parameter_is_a_name_or_one_item_of_a_list() {
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
    fn items_of_graphs_from_before_are_read_with_their_leading_zeros() {
        let id = Uuid::nil();
        let given = format!(
            "[[\"{id}\", false, [\"parts[01]\"], \"completed\", 10, null], [\"{id}\", false, [\"parts[00]\"], \"completed\", 2, null]]"
        );
        assert_eq!(filled("{}", &given).as_deref(), Ok("{\"parts\":[2,10]}"));
    }

    #[test]
    fn a_condition_decides_and_is_no_argument() {
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
    fn an_outcome_says_how_a_node_ended() {
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
    fn an_output_is_taken_from_the_outcome_of_a_node_that_completed() {
        let failure = Failure::new(FailureKind::Error, "no");
        assert_eq!(Outcome::Completed(1).completed(), Some(1));
        assert_eq!(Outcome::<u32>::Failed(failure.clone()).completed(), None);
        assert_eq!(Outcome::<u32>::Cancelled(failure.clone()).into_result(), Err(failure));
    }
}
