//! The record of one run as a file: everything that replay needs, readable, and in a stable order.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use crate::model::replay::Recorded;
use crate::model::run::failure::Failure;
use crate::model::run::name::check_name;
use crate::model::run::version::{FIRST, parts};

/// The format that this program writes. It reads no other.
const FORMAT: u32 = 1;

/// The record of one run. Stored as a file, it lets a test check whether the present code still
/// follows it.
///
/// It contains the input of the run and the outputs of its steps, which may be data of your users.
/// An export is never encrypted, even if the database has a codec. `Debug` omits the data.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct History {
    /// The version of the format.
    format: u32,
    /// The id of the run.
    pub run_id: Uuid,
    /// The name of the job.
    pub job: String,
    /// The version of the job's code that the run was pinned to.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub version: u32,
    /// The tenant; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// The graph that the run is a node of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph_id: Option<Uuid>,
    /// The state of the run, as in `runledger.run_state`.
    pub state: String,
    /// The number of attempts.
    pub attempt: u32,
    /// Whether the fingerprints of steps are keyed, because payloads are encrypted. Without the
    /// key, replay does not compare the inputs of steps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keyed: bool,
    /// The input as JSON text.
    #[serde(with = "as_json")]
    pub input: String,
    /// The steps, in the order in which the code claimed them.
    pub steps: Vec<HistoryStep>,
}

/// One recorded step. `Debug` omits its output.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct HistoryStep {
    /// The key of the step.
    pub key: String,
    /// The place in the order of claims, from 0.
    pub ordinal: u64,
    /// The fingerprint of the input.
    pub fingerprint: i64,
    /// The output as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "as_json_if_any")]
    pub output: Option<String>,
    /// The failure, if the step has no output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The number of results that the code had received when it claimed the step.
    pub seen_len: u32,
    /// The last of these results, if they are not a plain sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Vec<u64>>,
    /// The compensating call as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "as_json_if_any")]
    pub compensation: Option<String>,
}

/// An error of reading or writing a history.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// The file cannot be read or written.
    #[error("the file of a history cannot be read or written")]
    File(#[from] std::io::Error),
    /// The text is not the JSON of a history.
    #[error("this is not the JSON of a history")]
    Json(#[from] serde_json::Error),
    /// The history has another format.
    #[error(
        "this history has format {found}, and this program reads format {FORMAT}; export it again with this version"
    )]
    Format {
        /// The format of the history.
        found: u32,
    },
    /// No run can leave such a history.
    #[error("no run can have left this history: {0}; export it again, and leave its steps as they are")]
    Malformed(String),
}

impl History {
    pub(crate) fn new(
        run_id: Uuid,
        stored_name: &str,
        tenant: String,
        state: String,
        attempt: u32,
        input: String,
        steps: Vec<Recorded>,
    ) -> Self {
        let (job, version) = parts(stored_name);
        let job = job.to_owned();
        let mut steps: Vec<HistoryStep> = steps.into_iter().map(HistoryStep::from).collect();
        steps.sort_by_key(|step| step.ordinal);
        Self {
            format: FORMAT,
            run_id,
            job,
            version,
            tenant,
            graph_id: None,
            state,
            attempt,
            keyed: false,
            input,
            steps,
        }
    }

    /// Sets the graph of the run.
    pub(crate) fn in_graph(self, graph_id: Option<Uuid>) -> Self {
        Self { graph_id, ..self }
    }

    /// Sets whether the fingerprints are keyed.
    pub(crate) fn keyed(self, keyed: bool) -> Self {
        Self { keyed, ..self }
    }

    /// Reads a history from JSON.
    ///
    /// # Errors
    /// [`HistoryError`] if the text is not a history of this format, or contradicts itself.
    pub fn from_json(text: &str) -> Result<Self, HistoryError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let Head { format } = serde_json::from_str(text)?;
        if format != FORMAT {
            return Err(HistoryError::Format { found: format });
        }
        let history: Self = serde_json::from_str(text)?;
        history.check().map_err(HistoryError::Malformed)?;
        Ok(history)
    }

    /// Writes the history as JSON: one field per line, and steps in order. Equal histories give
    /// equal texts.
    ///
    /// # Errors
    /// [`HistoryError::Json`] if an input or output was changed and is no longer JSON.
    pub fn to_json(&self) -> Result<String, HistoryError> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Reads a history from a file.
    ///
    /// # Errors
    /// Same as [`from_json`](Self::from_json), or the file cannot be read.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, HistoryError> {
        Self::from_json(&std::fs::read_to_string(path)?)
    }

    /// Writes the history to a file.
    ///
    /// # Errors
    /// Same as [`to_json`](Self::to_json), or the file cannot be written.
    pub fn to_file(&self, path: impl AsRef<Path>) -> Result<(), HistoryError> {
        Ok(std::fs::write(path, self.to_json()?)?)
    }

    /// The steps in the form that a replay takes.
    #[cfg(feature = "testing")]
    pub(crate) fn recorded(&self) -> Vec<Recorded> {
        self.steps.iter().map(HistoryStep::recorded).collect()
    }

    /// Describes the first inconsistency, if any.
    fn check(&self) -> Result<(), String> {
        check_name("job", &self.job).map_err(|error| error.to_string())?;
        let (mut keys, mut ordinals) = (BTreeSet::new(), BTreeSet::new());
        for step in &self.steps {
            let key = &step.key;
            if !keys.insert(key) {
                return Err(format!("step `{key}` is there twice"));
            }
            if !ordinals.insert(step.ordinal) {
                return Err(format!("step `{key}` has the place of another ({})", step.ordinal));
            }
            if step.output.is_some() == step.failure.is_some() {
                return Err(format!("step `{key}` needs an `output` or a `failure`, and not both"));
            }
            if step.seen_len as usize > self.steps.len() {
                return Err(format!(
                    "step `{key}` has seen {} results, more than there are steps",
                    step.seen_len
                ));
            }
            let pairs = step.seen.as_ref().map_or(0, Vec::len);
            if pairs % 2 != 0 || pairs / 2 > step.seen_len as usize {
                return Err(format!("`seen` of step `{key}` is not a list of pairs, one a result at most"));
            }
        }
        Ok(())
    }
}

#[cfg(feature = "testing")]
impl HistoryStep {
    fn recorded(&self) -> Recorded {
        let result = match (&self.output, &self.failure) {
            (_, Some(failure)) => Err(failure.clone()),
            (output, None) => Ok(output.clone().unwrap_or_else(|| "null".to_owned())),
        };
        Recorded {
            key: self.key.clone(),
            ordinal: self.ordinal,
            fingerprint: self.fingerprint,
            result,
            seen_len: self.seen_len,
            seen: self.seen.clone(),
            compensation: self.compensation.clone(),
        }
    }
}

impl From<Recorded> for HistoryStep {
    fn from(step: Recorded) -> Self {
        let Recorded { key, ordinal, fingerprint, result, seen_len, seen, compensation } = step;
        let (output, failure) = match result {
            Ok(output) => (Some(output), None),
            Err(failure) => (None, Some(failure)),
        };
        Self { key, ordinal, fingerprint, output, failure, seen_len, seen, compensation }
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History")
            .field("run_id", &self.run_id)
            .field("job", &self.job)
            .field("version", &self.version)
            .field("state", &self.state)
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for HistoryStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HistoryStep")
            .field("key", &self.key)
            .field("ordinal", &self.ordinal)
            .field("fingerprint", &self.fingerprint)
            .field("seen_len", &self.seen_len)
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}

fn first() -> u32 {
    FIRST
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives it so")]
fn is_first(version: &u32) -> bool {
    *version == FIRST
}

/// JSON text as embedded JSON, so people can read the file. Numbers keep all digits.
mod as_json {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error};
    use serde_json::value::RawValue;

    pub(super) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(text).map_err(S::Error::custom)?;
        raw.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
        Ok(Box::<RawValue>::deserialize(deserializer)?.get().to_owned())
    }
}

/// The same for a field that may be absent. An output of `null` counts as present.
mod as_json_if_any {
    use serde::{Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde gives it so")]
    pub(super) fn serialize<S: Serializer>(text: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
        super::as_json::serialize(text.as_deref().unwrap_or("null"), serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<String>, D::Error> {
        super::as_json::deserialize(deserializer).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> History {
        let step = |key: &str, ordinal, result| Recorded {
            key: key.to_owned(),
            ordinal,
            fingerprint: i64::MIN,
            result,
            seen_len: u32::try_from(ordinal).unwrap(),
            seen: (ordinal == 1).then(|| vec![0, 1]),
            compensation: None,
        };
        let failed = Err(Failure::new(crate::model::run::failure::FailureKind::Error, "no"));
        let steps =
            vec![step("b", 1, failed), step("a", 0, Ok("null".into())), step("c", 2, Ok("1.10e400".into()))];
        History::new(
            Uuid::nil(),
            "checkout@2",
            String::new(),
            "blocked".into(),
            1,
            "{\"n\": 1.10}".into(),
            steps,
        )
    }

    #[test]
    fn history_round_trips_through_json_with_exact_digits_and_order() {
        let history = history();
        let text = history.to_json().unwrap();
        assert_eq!(History::from_json(&text).unwrap(), history);
        assert_eq!(History::from_json(&text).unwrap().to_json().unwrap(), text);
        assert!(text.contains("\"input\": {\"n\": 1.10}") && text.contains("\"output\": 1.10e400"), "{text}");
        let keys: Vec<_> = history.steps.iter().map(|step| step.key.as_str()).collect();
        assert_eq!(keys, ["a", "b", "c"]);
    }

    type Change = fn(&mut History);

    #[test]
    fn impossible_history_is_refused_with_reason() {
        let changes: [(Change, &str); 6] = [
            (|history| history.steps[1].key = "a".into(), "step `a` is there twice"),
            (|history| history.steps[1].ordinal = 0, "has the place of another (0)"),
            (|history| history.steps[0].output = None, "step `a` needs an `output` or a `failure`"),
            (|history| history.steps[0].seen_len = 9, "has seen 9 results, more than there are steps"),
            (|history| history.steps[1].seen = Some(vec![1]), "is not a list of pairs"),
            (|history| history.job = "Checkout!".into(), "Checkout!"),
        ];
        for (change, words) in changes {
            let mut history = history();
            change(&mut history);
            let error = History::from_json(&history.to_json().unwrap()).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let newer = history().to_json().unwrap().replace("\"format\": 1", "\"format\": 2, \"more\": 1");
        assert!(matches!(History::from_json(&newer), Err(HistoryError::Format { found: 2 })));
        assert!(matches!(History::from_json("{}"), Err(HistoryError::Json(_))));
    }

    #[test]
    fn history_is_written_to_file_and_read_back() {
        let path = std::env::temp_dir().join(format!("{}.json", Uuid::new_v4()));
        history().to_file(&path).unwrap();
        let read = History::from_file(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap(), history());
        assert!(matches!(History::from_file(&path), Err(HistoryError::File(_))));
    }

    #[test]
    fn history_records_its_graph_and_whether_fingerprints_are_keyed() {
        let history = history().in_graph(Some(Uuid::from_u128(7))).keyed(true);
        let read = History::from_json(&history.to_json().unwrap()).unwrap();
        assert_eq!((read.graph_id, read.keyed), (Some(Uuid::from_u128(7)), true));
    }

    #[test]
    fn default_fields_are_omitted_from_history() {
        let plain = History { version: FIRST, ..history() };
        let text = plain.to_json().unwrap();
        for field in ["version", "tenant", "graph_id", "keyed"] {
            assert!(!text.contains(field), "{field} is in {text}");
        }
        assert_eq!(History::from_json(&text).unwrap(), plain);
    }

    #[test]
    fn step_may_have_seen_each_result_once_including_its_own() {
        let mut history = history();
        history.steps.truncate(2);
        (history.steps[1].seen_len, history.steps[1].seen) = (2, Some(vec![0, 2, 1, 2]));
        assert_eq!(History::from_json(&history.to_json().unwrap()).unwrap(), history);
        history.steps[1].seen = Some(vec![0, 2, 1, 2, 1, 2]);
        let error = History::from_json(&history.to_json().unwrap()).unwrap_err().to_string();
        assert!(error.contains("one a result at most"), "{error}");
    }

    #[cfg(feature = "testing")]
    #[test]
    fn history_converts_back_to_its_steps() {
        let history = history();
        let steps: Vec<HistoryStep> = history.recorded().into_iter().map(HistoryStep::from).collect();
        assert_eq!(steps, history.steps);
    }
}
