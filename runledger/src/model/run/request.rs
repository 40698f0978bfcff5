//! The canonical form of a request, which identifies a repeated keyed submission, and the id of its
//! run.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::run::backoff::Backoff;
use crate::model::run::name::MAX_KEY;
use crate::model::timestamp::{FURTHEST, Timestamp};
use crate::model::unreadable::Unreadable;

/// A key that at most one live run has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActiveKey {
    /// The oldest name of the job, so programs from before and after a rename agree. For a graph,
    /// `runledger.graph:` and its name.
    pub job: String,
    /// The key.
    pub key: String,
}

/// The metadata of a run: values by name.
pub type Metadata = BTreeMap<String, serde_json::Value>;

/// The maximum size of a run's metadata as JSON text, in bytes: 16 KiB.
pub const MAX_METADATA: usize = 16 << 10;

/// The part of a run's identity that the caller set, if any. A child or a step cannot have one.
pub(crate) fn identity_said(
    tenant: Option<&str>,
    active_key: Option<&str>,
    idempotency_key: Option<&str>,
) -> Option<&'static str> {
    [
        ("tenant", tenant.is_some()),
        ("active_key", active_key.is_some()),
        ("idempotency_key", idempotency_key.is_some()),
    ]
    .into_iter()
    .find_map(|(part, is_said)| is_said.then_some(part))
}

/// The options of a request, without the input. Contains only values that the caller set, so a
/// default that changes with a deploy does not turn a retry into a conflict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestOptions {
    /// The queue, if it replaces the job's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The priority, if it replaces the job's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i16>,
    /// The maximum number of attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// The timeout of an attempt, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The time from the start instant of the run to its end, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Whether the deadline comes from the job and not from the caller.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_own_deadline: bool,
    /// The first and the largest retry delay, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_ms: Option<(u64, u64)>,
    /// The delay before the start, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_us: Option<i64>,
    /// The earliest start, in microseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at_us: Option<i64>,
    /// The key that no other live run may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_key: Option<ActiveKey>,
    /// The resource whose permit the run needs. `runledger.resource_of` reads the field by this
    /// name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The metadata of the run.
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// The fields of this object that an older version may ignore: see [`RequestOptions::read`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub may_ignore: Vec<String>,
}

impl RequestOptions {
    /// Reads options written by a client of any version.
    ///
    /// A field that this version does not know makes the options unreadable. The run is blocked, so
    /// the worker never silently breaks a promise of a newer client. Only the writer knows whether
    /// a field is optional: a later version that adds such a field (a label, a hint) lists it in
    /// `may_ignore`. Every version from this one on then executes the run without the field. A
    /// writer never lists a field that changes when, where, how often or whether the run executes.
    ///
    /// # Errors
    /// [`Unreadable`], with the path of the field.
    pub fn read(text: &str) -> Result<Self, Unreadable> {
        let options: Self = match serde_json::from_str(text) {
            Ok(options) => options,
            Err(error) => Self::read_by_field(text, &error)?,
        };
        if options.resource.as_ref().is_some_and(|resource| resource.len() > MAX_KEY) {
            let problem = format!("it is longer than {MAX_KEY} bytes");
            return Err(Unreadable::new("options.resource", &problem));
        }
        Ok(options)
    }

    /// The slow path: reads field by field, omits ignorable fields, and names the first unreadable
    /// one.
    fn read_by_field(text: &str, error: &serde_json::Error) -> Result<Self, Unreadable> {
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(text).map_err(|_| Unreadable::new("options", error))?;
        let ignorable: Vec<String> = match fields.get("may_ignore") {
            Some(names) => serde_json::from_value(names.clone())
                .map_err(|error| Unreadable::new("options.may_ignore", &error))?,
            None => Vec::new(),
        };
        let mut known = serde_json::Map::new();
        for (name, value) in fields {
            let path = format!("options.{name}");
            let alone = serde_json::Map::from_iter([(name.clone(), value.clone())]);
            match serde_json::from_value::<Self>(alone.into()) {
                Ok(_) => drop(known.insert(name, value)),
                Err(_) if !Self::FIELDS.contains(&name.as_str()) => {
                    if !ignorable.contains(&name) {
                        return Err(Unreadable::unknown(path));
                    }
                }
                Err(error) => return Err(Unreadable::new(path, &error)),
            }
        }
        serde_json::from_value(known.into()).map_err(|error| Unreadable::new("options", &error))
    }

    /// The fields that this version knows.
    const FIELDS: [&str; 13] = [
        "queue",
        "priority",
        "max_attempts",
        "timeout_ms",
        "deadline_ms",
        "is_own_deadline",
        "backoff_ms",
        "delay_us",
        "start_at_us",
        "active_key",
        "resource",
        "metadata",
        "may_ignore",
    ];

    /// Sets the delay of the start after the enqueue.
    pub fn set_delay(&mut self, delay: Duration) {
        self.delay_us = Some(i64::try_from(delay.as_micros()).unwrap_or(i64::MAX));
    }

    /// Sets the earliest start.
    pub fn set_start_at(&mut self, instant: SystemTime) {
        self.start_at_us = Some(Timestamp::from(instant).unix_micros().max(0));
    }

    /// Sets the maximum number of attempts, at least 1.
    pub fn set_max_attempts(&mut self, attempts: u32) {
        self.max_attempts = Some(attempts.max(1));
    }

    /// Sets the timeout of an attempt.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout_ms = Some(millis(timeout));
    }

    /// Sets the deadline, at most 100 years.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline_ms = Some(millis(deadline.min(FURTHEST)));
    }

    /// The retry delays, if the caller set them.
    #[must_use]
    pub fn backoff(&self) -> Option<Backoff> {
        self.backoff_ms
            .map(|(first, cap)| Backoff::new(Duration::from_millis(first), Duration::from_millis(cap)))
    }

    /// The earliest start, if the caller set it.
    #[must_use]
    pub fn start_at(&self) -> Option<Timestamp> {
        self.start_at_us.map(Timestamp::from_unix_micros)
    }

    /// The options that the caller set. A deadline from the job is not part of them: it may change
    /// tomorrow, and the request is the same.
    #[must_use]
    pub fn said(&self) -> Cow<'_, Self> {
        if self.is_own_deadline {
            Cow::Owned(Self { deadline_ms: None, is_own_deadline: false, ..self.clone() })
        } else {
            Cow::Borrowed(self)
        }
    }

    /// Whether one statement writes a run with these options. Otherwise its transaction has more
    /// statements.
    #[must_use]
    pub fn are_of_one_statement(&self) -> bool {
        self.deadline_ms.is_none() && self.active_key.is_none()
    }

    fn said_active_key(&self) -> Option<&str> {
        self.active_key.as_ref().map(|active| active.key.as_str())
    }

    fn said_deadline_ms(&self) -> Option<u64> {
        self.deadline_ms.filter(|_| !self.is_own_deadline)
    }

    /// The name of the first part in which two requests differ.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<&'static str> {
        self.first_difference_beyond(other, &[])
    }

    /// The name of the first part in which two requests differ, except the parts in `beyond`.
    #[must_use]
    pub fn first_difference_beyond(&self, other: &Self, beyond: &[&str]) -> Option<&'static str> {
        [
            ("queue", self.queue != other.queue),
            ("priority", self.priority != other.priority),
            ("max_attempts", self.max_attempts != other.max_attempts),
            ("timeout", self.timeout_ms != other.timeout_ms),
            ("deadline", self.said_deadline_ms() != other.said_deadline_ms()),
            ("backoff", self.backoff_ms != other.backoff_ms),
            ("delay", self.delay_us != other.delay_us),
            ("start_at", self.start_at_us != other.start_at_us),
            ("active_key", self.said_active_key() != other.said_active_key()),
            ("resource", self.resource != other.resource),
            ("metadata", self.metadata != other.metadata),
        ]
        .into_iter()
        .find_map(|(part, differs)| (differs && !beyond.contains(&part)).then_some(part))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The id of a keyed run, derived from tenant, job and key. So the primary key alone makes it
/// unique, and a distributed Postgres needs no global index. The job has its oldest name, so
/// programs from before and after a rename agree.
#[must_use]
pub fn keyed_run_id(tenant: &str, job: &str, key: &str) -> Uuid {
    // Each part follows its length, so two different triples never give the same text.
    let name = format!("{}:{tenant}{}:{job}{}:{key}", tenant.len(), job.len(), key.len());
    Uuid::new_v5(&KEYED_RUNS, name.as_bytes())
}

/// The id of a child run, derived from its parent and the key of the starting step in its
/// [slice](key_in_slice). So a repeated start gives the same child.
#[must_use]
pub fn child_run_id(parent: Uuid, step_key: &str) -> Uuid {
    Uuid::new_v5(&parent, step_key.as_bytes())
}

/// The key of a step across all slices of its run. Each slice has its own record.
#[must_use]
pub fn key_in_slice(slice: u32, step_key: &str) -> Cow<'_, str> {
    if slice == 0 { step_key.into() } else { format!("{slice}:{step_key}").into() }
}

/// The maximum number of ancestors of a child. It stops a workflow that starts itself endlessly
/// before it fills the database.
pub const MAX_DEPTH: i16 = 100;

/// The id of a revived run, derived from the original, so a run can be revived only once.
#[must_use]
pub fn revived_run_id(origin: Uuid) -> Uuid {
    // No step has this key, because names have no spaces.
    Uuid::new_v5(&origin, b" revive")
}

/// The id of a recovered graph, derived from the original and the key, so it is recovered once per
/// key.
#[must_use]
pub fn recovered_run_id(origin: Uuid, key: &str) -> Uuid {
    // No node has this name, because it contains a control character.
    Uuid::new_v5(&origin, format!("recover\0{key}").as_bytes())
}

/// The namespace of keyed runs: a random constant.
const KEYED_RUNS: Uuid = Uuid::from_u128(0x6b1f_03a2_94c7_4d0e_8f5d_2c71_e9a6_b348);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyed_run_id_depends_on_every_part() {
        let id = keyed_run_id("", "charge", "1");
        assert_eq!(id, keyed_run_id("", "charge", "1"));
        for other in [
            keyed_run_id("a", "charge", "1"),
            keyed_run_id("", "refund", "1"),
            keyed_run_id("", "charge1", ""),
        ] {
            assert_ne!(id, other);
        }
        assert_ne!(keyed_run_id("a", "bc", "d"), keyed_run_id("ab", "c", "d"));
    }

    #[test]
    fn unknown_option_field_is_refused_unless_listed_as_ignorable() {
        let unknown = RequestOptions::read(r#"{"priority":3,"not_before":"noon"}"#).unwrap_err();
        assert_eq!(unknown, Unreadable::unknown("options.not_before"));
        let options = RequestOptions::read(r#"{"priority":3,"label":"a","may_ignore":["label"]}"#).unwrap();
        assert_eq!(options.priority, Some(3));
        let other = RequestOptions::read(r#"{"label":"a","not_before":1,"may_ignore":["label"]}"#);
        assert_eq!(other.unwrap_err().path, "options.not_before");
    }

    #[test]
    fn option_field_of_wrong_type_is_named() {
        for (text, path) in [
            (r#"{"priority":"high"}"#, "options.priority"),
            (r#"{"queue":"q","metadata":3}"#, "options.metadata"),
            (r#"{"backoff_ms":[1]}"#, "options.backoff_ms"),
            (r#"{"may_ignore":"label"}"#, "options.may_ignore"),
            ("[1]", "options"),
            ("{", "options"),
        ] {
            assert_eq!(RequestOptions::read(text).unwrap_err().path, path, "{text}");
        }
    }

    #[test]
    fn known_option_fields_equal_serialized_fields() {
        let all = RequestOptions {
            queue: Some(String::new()),
            priority: Some(0),
            max_attempts: Some(1),
            timeout_ms: Some(1),
            deadline_ms: Some(1),
            is_own_deadline: true,
            backoff_ms: Some((1, 1)),
            delay_us: Some(1),
            start_at_us: Some(1),
            active_key: Some(ActiveKey { job: String::new(), key: String::new() }),
            resource: Some(String::new()),
            metadata: Metadata::from([("a".to_owned(), 1.into())]),
            may_ignore: vec![String::new()],
        };
        let written = serde_json::to_value(all).unwrap();
        let mut fields: Vec<&str> = written.as_object().unwrap().keys().map(String::as_str).collect();
        let mut known = RequestOptions::FIELDS;
        fields.sort_unstable();
        known.sort_unstable();
        assert_eq!(fields, known);
    }

    type Change = fn(&mut RequestOptions);

    #[test]
    fn first_difference_between_requests_is_named() {
        let active_key = |job: &str, key: &str| Some(ActiveKey { job: job.to_owned(), key: key.to_owned() });
        let request = RequestOptions {
            priority: Some(1),
            timeout_ms: Some(5),
            active_key: active_key("charge", "a"),
            ..RequestOptions::default()
        };
        assert_eq!(request.first_difference(&request), None);
        // In the order of the comparison.
        let changes: [(Change, &str); 11] = [
            (|other| other.queue = Some("q".to_owned()), "queue"),
            (|other| other.priority = None, "priority"),
            (|other| other.max_attempts = Some(1), "max_attempts"),
            (|other| other.timeout_ms = None, "timeout"),
            (|other| other.deadline_ms = Some(1), "deadline"),
            (|other| other.backoff_ms = Some((1, 1)), "backoff"),
            (|other| other.delay_us = Some(1), "delay"),
            (|other| other.start_at_us = Some(1), "start_at"),
            (|other| other.active_key = None, "active_key"),
            (|other| other.resource = Some("r".to_owned()), "resource"),
            (|other| drop(other.metadata.insert("a".to_owned(), 1.into())), "metadata"),
        ];
        let mut all = request.clone();
        for (change, part) in changes.into_iter().rev() {
            let mut other = request.clone();
            change(&mut other);
            assert_eq!(request.first_difference(&other), Some(part));
            assert_eq!(request.first_difference_beyond(&other, &[part]), None);
            change(&mut all);
            assert_eq!(request.first_difference(&all), Some(part));
        }
        assert_eq!(request.first_difference_beyond(&all, &["queue", "priority"]), Some("max_attempts"));
        let renamed = RequestOptions { active_key: active_key("billing", "a"), ..request.clone() };
        assert_eq!(request.first_difference(&renamed), None, "the key is the same");
        let other_key = RequestOptions { active_key: active_key("charge", "b"), ..request.clone() };
        assert_eq!(request.first_difference(&other_key), Some("active_key"));
        let own = RequestOptions { deadline_ms: Some(9), is_own_deadline: true, ..RequestOptions::default() };
        assert_eq!(own.first_difference(&RequestOptions::default()), None, "a default is no part of it");
        let said = RequestOptions { deadline_ms: Some(9), ..RequestOptions::default() };
        assert_eq!(own.first_difference(&said), Some("deadline"));
    }

    /// The ids are pinned: programs of every version derive them.
    #[test]
    fn derived_run_ids_match_pinned_values() {
        let origin = Uuid::from_u128(7);
        let ids = [
            keyed_run_id("acme", "charge", "order-7"),
            child_run_id(origin, &key_in_slice(0, "charge")),
            child_run_id(origin, &key_in_slice(2, "charge")),
            revived_run_id(origin),
            recovered_run_id(origin, "again"),
        ];
        assert_eq!(
            ids.map(|id| id.to_string()),
            [
                "ed729b22-a032-576e-aea1-f63fbb92728e",
                "ed851289-c101-5a84-8e43-261643e08940",
                "77dd60d4-b01b-5b7a-a69a-aa19c856556f",
                "6e944e06-7213-570f-be6a-155a6df506ac",
                "31255b07-0747-5f76-a6c7-c61daa5b8359",
            ]
        );
    }

    #[test]
    fn first_identifying_option_given_is_named() {
        assert_eq!(identity_said(None, None, None), None);
        assert_eq!(identity_said(Some(""), None, Some("a")), Some("tenant"));
        assert_eq!(identity_said(None, Some("a"), Some("a")), Some("active_key"));
        assert_eq!(identity_said(None, None, Some("a")), Some("idempotency_key"));
    }

    #[test]
    fn ignorable_option_field_of_wrong_type_is_refused() {
        let refused = RequestOptions::read(r#"{"priority":"high","may_ignore":["priority"]}"#).unwrap_err();
        assert_eq!(refused.path, "options.priority");
        assert!(refused.problem.contains("expected i16"), "{refused}");
    }

    #[test]
    fn options_keep_set_values_clamped_to_database_range() {
        let mut options = RequestOptions::default();
        assert_eq!((options.backoff(), options.start_at()), (None, None));
        let instant = SystemTime::UNIX_EPOCH + Duration::from_micros(7);
        options.set_delay(Duration::from_micros(3));
        options.set_start_at(instant);
        options.set_max_attempts(0);
        options.set_timeout(Duration::from_millis(4));
        options.set_deadline(Duration::from_millis(5));
        options.backoff_ms = Some((6, 7));
        assert_eq!((options.delay_us, options.max_attempts), (Some(3), Some(1)));
        assert_eq!((options.timeout_ms, options.deadline_ms), (Some(4), Some(5)));
        assert_eq!(options.start_at(), Some(Timestamp::from(instant)));
        assert_eq!(options.backoff(), Some(Backoff::new(Duration::from_millis(6), Duration::from_millis(7))));
        options.set_delay(Duration::MAX);
        options.set_start_at(SystemTime::UNIX_EPOCH - Duration::from_secs(1));
        options.set_timeout(Duration::MAX);
        options.set_deadline(Duration::MAX);
        assert_eq!((options.delay_us, options.start_at_us), (Some(i64::MAX), Some(0)));
        assert_eq!((options.timeout_ms, options.deadline_ms), (Some(u64::MAX), Some(millis(FURTHEST))));
    }

    #[test]
    fn job_default_deadline_is_omitted_from_explicit_options() {
        let said = RequestOptions { priority: Some(1), deadline_ms: Some(9), ..RequestOptions::default() };
        assert_eq!(*said.said(), said);
        let own = RequestOptions { is_own_deadline: true, ..said };
        let without = RequestOptions { priority: Some(1), ..RequestOptions::default() };
        assert_eq!(own.said().into_owned(), without);
    }

    #[test]
    fn run_with_deadline_or_active_key_needs_several_statements() {
        let plain = RequestOptions { priority: Some(1), ..RequestOptions::default() };
        let with_deadline = RequestOptions { deadline_ms: Some(9), ..plain.clone() };
        let active_key = Some(ActiveKey { job: "charge".to_owned(), key: "a".to_owned() });
        let with_key = RequestOptions { active_key, ..plain.clone() };
        let alone = [plain, with_deadline, with_key].map(|options| options.are_of_one_statement());
        assert_eq!(alone, [true, false, false]);
    }
}
