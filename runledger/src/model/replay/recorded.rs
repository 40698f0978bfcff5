//! Reads the recorded steps that a claim returns: one JSON array of rows.

use serde_json::value::RawValue;

use crate::model::payload::{PayloadError, PayloadKind, Place, Sealer, Stored};
use crate::model::replay::Recorded;
use crate::model::run::failure::Failure;
use crate::model::unreadable::Unreadable;
use uuid::Uuid;

/// A step, as `json_build_array` encodes it.
type Row = (
    String,
    u64,
    i64,
    Option<Box<RawValue>>,
    Option<Box<RawValue>>,
    u32,
    Option<Vec<u64>>,
    Option<Box<RawValue>>,
);

/// A recorded step in its stored form.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredStep {
    key: String,
    ordinal: u64,
    fingerprint: i64,
    result: Result<Stored, Stored>,
    seen_len: u32,
    seen: Option<Vec<u64>>,
    compensation: Option<Stored>,
}

/// Reads the steps of a run. The replay checks whether the steps are consistent and match the code.
///
/// # Errors
/// [`Unreadable`], with the path of the first unreadable value.
pub fn read(text: &str) -> Result<Vec<StoredStep>, Unreadable> {
    let rows: Vec<Row> = serde_json::from_str(text).map_err(|error| first_wrong(text, &error))?;
    Ok(rows.into_iter().map(stored).collect())
}

/// The slow path: finds the unreadable column and step.
fn first_wrong(text: &str, error: &serde_json::Error) -> Unreadable {
    type Check = fn(&str) -> Result<(), serde_json::Error>;
    fn reads<'t, T: serde::Deserialize<'t>>(text: &'t str) -> Result<(), serde_json::Error> {
        serde_json::from_str::<T>(text).map(drop)
    }
    // In the order of `Row`. The payloads may be any JSON.
    let columns: [(usize, &str, Check); 4] = [
        (1, "ordinal", |text| reads::<u64>(text)),
        (2, "fingerprint", |text| reads::<i64>(text)),
        (5, "seen_len", |text| reads::<u32>(text)),
        (6, "seen", |text| reads::<Option<Vec<u64>>>(text)),
    ];
    let rows: Vec<Vec<Box<RawValue>>> = serde_json::from_str(text).unwrap_or_default();
    for row in &rows {
        let key = row.first().and_then(|key| serde_json::from_str::<String>(key.get()).ok());
        for (at, column, check) in columns {
            if let Some(Err(error)) = row.get(at).map(|value| check(value.get())) {
                let key = key.unwrap_or_default();
                return Unreadable::new(format!("step[{key}].{column}"), &error);
            }
        }
    }
    Unreadable::new("step", error)
}

fn stored((key, ordinal, fingerprint, output, error, seen_len, seen, compensation): Row) -> StoredStep {
    let text = |raw: Box<RawValue>| Stored::read(raw.get().to_owned());
    let result = match error {
        Some(failure) => Err(text(failure)),
        // The query returns SQL `null` for an output of JSON `null`. A check of the table ensures
        // that a row has an output or an error.
        None => Ok(output.map_or_else(|| Stored::read("null".to_owned()), text)),
    };
    StoredStep { key, ordinal, fingerprint, result, seen_len, seen, compensation: compensation.map(text) }
}

impl StoredStep {
    /// The key of the step.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The output or the failure.
    pub fn result(&self) -> &Result<Stored, Stored> {
        &self.result
    }

    /// The compensating call.
    pub fn compensation(&self) -> Option<&Stored> {
        self.compensation.as_ref()
    }

    /// Decrypts the payloads of the step.
    ///
    /// # Errors
    /// [`PayloadError`] of the first payload that cannot be decrypted.
    pub fn open(self, run_id: Uuid, sealer: &Sealer) -> Result<Recorded, PayloadError> {
        let result = match self.result {
            Ok(output) => Ok(sealer.open(&Place::of_step(run_id, &self.key), output)?),
            Err(error) => Err(sealer.open_failure(&place_of_error(run_id, &self.key), &error)?),
        };
        let compensation_place = Place::new(run_id, PayloadKind::Compensation, &self.key);
        let compensation = self
            .compensation
            .map(|compensation| sealer.open(&compensation_place, compensation))
            .transpose()?;
        let Self { key, ordinal, fingerprint, seen_len, seen, .. } = self;
        Ok(Recorded { key, ordinal, fingerprint, result, seen_len, seen, compensation })
    }

    /// Converts the step without decrypting its payloads. This is enough for the order of steps and
    /// for ids of children, which are never encrypted.
    #[must_use]
    pub fn unopened(self) -> Recorded {
        let Self { key, ordinal, fingerprint, result, seen_len, seen, compensation } = self;
        let of_error = |_| Failure::new(crate::model::run::failure::FailureKind::Error, "");
        let result = result.map(|output| output.as_str().to_owned()).map_err(of_error);
        let compensation = compensation.map(|compensation| compensation.as_str().to_owned());
        Recorded { key, ordinal, fingerprint, result, seen_len, seen, compensation }
    }
}

/// The place of the failure of a run or, with a key, of one of its steps.
#[must_use]
pub fn place_of_error(run_id: Uuid, step_key: &str) -> Place<'_> {
    Place::new(run_id, PayloadKind::Error, step_key)
}

/// Decrypts the payloads of several steps.
///
/// # Errors
/// Same as [`StoredStep::open`].
pub fn open(steps: Vec<StoredStep>, run_id: Uuid, sealer: &Sealer) -> Result<Vec<Recorded>, PayloadError> {
    steps.into_iter().map(|step| step.open(run_id, sealer)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::run::failure::FailureKind;

    const ROWS: &str = r#"[["a", 0, -7, {"n": 1.0}, null, 0, null, {"job": "back"}],
        ["b", 1, 7, null, {"kind": "error", "message": "no"}, 1, [0, 1], null],
        ["c", 2, 7, null, null, 2, null, null]]"#;

    #[test]
    fn recorded_steps_are_read_as_stored() {
        let steps = read(ROWS).unwrap();
        assert_eq!(steps.iter().map(StoredStep::key).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(steps[0].result(), &Ok(Stored::read(r#"{"n": 1.0}"#.to_owned())));
        assert_eq!(steps[0].compensation(), Some(&Stored::read(r#"{"job": "back"}"#.to_owned())));
        assert!(steps[1].result().is_err() && steps[1].compensation().is_none());
        let recorded = |key: &str, ordinal, fingerprint, result| Recorded {
            key: key.to_owned(),
            ordinal,
            fingerprint,
            result,
            seen_len: u32::try_from(ordinal).unwrap(),
            seen: None,
            compensation: None,
        };
        let expected = [
            Recorded {
                compensation: Some(r#"{"job": "back"}"#.to_owned()),
                ..recorded("a", 0, -7, Ok(r#"{"n": 1.0}"#.to_owned()))
            },
            Recorded {
                seen: Some(vec![0, 1]),
                ..recorded("b", 1, 7, Err(Failure::new(FailureKind::Error, "no")))
            },
            recorded("c", 2, 7, Ok("null".to_owned())),
        ];
        assert_eq!(open(steps, Uuid::nil(), &Sealer::default()).unwrap(), expected);
    }

    #[test]
    fn unreadable_step_and_column_are_named() {
        for (text, path) in [
            (ROWS.replace("0, -7", "-1, -7"), "step[a].ordinal"),
            (ROWS.replace("-7", "0.5"), "step[a].fingerprint"),
            (ROWS.replace("1, [0, 1]", "4294967296, [0, 1]"), "step[b].seen_len"),
            (ROWS.replace("[0, 1]", "[0, -1]"), "step[b].seen"),
            (ROWS.replace("2, null, null]]", "2, null]]"), "step"),
            ("{".to_owned(), "step"),
        ] {
            assert_eq!(read(&text).unwrap_err().path, path, "{text}");
        }
    }
}
