//! The stored form of a log line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The message and the fields.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Line {
    /// The message.
    pub message: String,
    /// The fields, as text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("n_bytes", &self.message.len()).finish_non_exhaustive()
    }
}
