//! Recorded steps as a claim brings them: one JSON array of rows.

use serde_json::value::RawValue;

use super::failure::Failure;
use super::replay::Recorded;

/// A step as `json_build_array` gives it.
type Row = (String, u64, i64, Option<Box<RawValue>>, Option<Failure>, u32, Option<Vec<u64>>);

/// Reads the steps of a run. Whether they fit together, and fit the code, is for the replay to say.
///
/// # Errors
/// Where the text is not an array of such rows.
pub fn read(text: &str) -> Result<Vec<Recorded>, serde_json::Error> {
    let rows: Vec<Row> = serde_json::from_str(text)?;
    Ok(rows.into_iter().map(recorded).collect())
}

fn recorded((key, ordinal, fingerprint, output, error, seen_len, seen): Row) -> Recorded {
    let result = match error {
        Some(failure) => Err(failure),
        // An output of `null` arrives as none: the check of the table says that one of the two is there.
        None => Ok(output.map_or_else(|| "null".to_owned(), |output| output.get().to_owned())),
    };
    Recorded { key, ordinal, fingerprint, result, seen_len, seen }
}
