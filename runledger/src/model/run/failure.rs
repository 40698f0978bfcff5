//! Recorded failures: the error and its chain, readable long after the process is gone.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::panic::caught;

/// Why an attempt or a step has no output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureKind {
    /// The function returned an error.
    Error,
    /// The function panicked.
    Panic,
    /// The function exceeded its `timeout`.
    Timeout,
    /// The stored arguments, or a recorded output, do not fit the types of the code.
    Decode,
    /// The output cannot be stored.
    Encode,
    /// The run was cancelled.
    Cancelled,
    /// The worker's process died during the attempt.
    Crash,
    /// The recorded steps and the code disagree.
    Diverged,
    /// The program does not provide a value that the job needs.
    Setup,
    /// A payload cannot be encrypted or decrypted, because the codec or one of its keys is missing.
    Sealed,
    /// The graph skipped the node: its own condition was false, or it depends on the success of a
    /// skipped node.
    Skipped,
}

/// The maximum number of recorded causes. Longer chains keep the outermost and the innermost
/// causes, because the last one is the origin.
const MAX_CAUSES: usize = 32;
const INNERMOST: usize = 8;

/// Replaces the omitted causes.
const LEFT_OUT: &str = "… (the causes in between are left out)";

/// A recorded failure: its kind, its message, and the messages of its causes, outermost first.
///
/// Each message keeps its first 8 KiB by default (see [`Limits::error`](crate::Limits::error)). A
/// chain of more than 32 causes keeps the outermost and the innermost ones. So an error that
/// contains a whole response does not slow down every read of the run. A cut text says so.
///
/// Payloads are part of a failure only if the job's own error message contains them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of the failure.
    pub kind: FailureKind,
    /// The outermost message.
    pub message: String,
    /// The messages of the causes, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// The place of a panic: `file:line:column`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
}

/// The text of an error. Its `Display` may panic, and the failure must still be recorded.
fn text_of(error: &(dyn std::error::Error + 'static)) -> String {
    let unshown = |said| format!("an error whose text cannot be shown: its `Display` {said}");
    caught(|| error.to_string(), unshown).unwrap_or_else(|unshown| unshown)
}

impl Failure {
    /// Creates a failure with a message and no causes.
    #[must_use]
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), causes: Vec::new(), location: None }
    }

    /// Creates a failure from an error and its chain of sources.
    #[must_use]
    pub fn from_chain(kind: FailureKind, error: &(dyn std::error::Error + 'static)) -> Self {
        Self::from_chain_of(kind, error, |_| None)
    }

    /// The texts of an error and of its causes, separated by colons.
    pub(crate) fn text_of_chain(error: &(dyn std::error::Error + 'static)) -> String {
        let failure = Self::from_chain(FailureKind::Error, error);
        std::iter::once(failure.message).chain(failure.causes).collect::<Vec<_>>().join(": ")
    }

    /// Like [`from_chain`](Self::from_chain), for errors whose text includes a failure: `parts`
    /// splits such an error into its own text and the failure.
    pub(crate) fn from_chain_of(
        kind: FailureKind,
        error: &(dyn std::error::Error + 'static),
        parts: impl for<'e> Fn(&'e (dyn std::error::Error + 'static)) -> Option<(String, &'e Self)>,
    ) -> Self {
        let mut messages: Vec<String> = Vec::new();
        let mut source = Some(error);
        while let Some(cause) = source {
            if let Some(failure) = cause.downcast_ref::<Self>() {
                messages.extend(failure.messages());
                break;
            }
            if let Some((said, failure)) = parts(cause) {
                // The wrapper's text may end with the text of this error.
                let wrapped = messages.pop_if(|last| last.ends_with(&cause.to_string()));
                let before = wrapped.as_deref().and_then(|last| last.strip_suffix(&cause.to_string()));
                messages.push(format!("{}{said}", before.unwrap_or_default()));
                messages.extend(failure.messages());
                break;
            }
            // Wrappers that only classify an error repeat its message, alone or at the end of their
            // own.
            let message = text_of(cause);
            if messages.last().is_none_or(|last| !last.ends_with(&message)) {
                messages.push(message);
            }
            source = cause.source();
        }
        let mut messages = messages.into_iter();
        let message = messages.next().unwrap_or_default();
        Self { kind, message, causes: messages.collect(), location: None }
    }

    /// The own message and those of the causes.
    fn messages(&self) -> impl Iterator<Item = String> {
        let place = self.location.as_ref().map(|location| format!(" (at {location})"));
        let n_messages = 1 + self.causes.len();
        std::iter::once(&self.message).chain(&self.causes).enumerate().map(move |(at, message)| {
            match place.as_ref().filter(|_| at + 1 == n_messages) {
                Some(place) => format!("{message}{place}"),
                None => message.clone(),
            }
        })
    }

    /// The form to record: within the limits, and without NUL, which the database refuses in JSON.
    pub(crate) fn storable(&self, max_message: usize) -> Self {
        let storable = |message: &str| storable(message, max_message);
        let mut causes: Vec<String> = self.causes.iter().map(|cause| storable(cause)).collect();
        if causes.len() > MAX_CAUSES {
            let between = MAX_CAUSES - INNERMOST - 1..causes.len() - INNERMOST;
            causes.splice(between, [LEFT_OUT.to_owned()]);
        }
        Self { message: storable(&self.message), causes, location: self.location.clone(), kind: self.kind }
    }
}

/// The largest recorded text of an operator, in bytes: the reason of a cancel, a pause, a disabled
/// job or a decision, and the operator's name. It fits into the message of a failure.
const MAX_WORDS: usize = 4 * 1024;

/// The form to record of an operator's text.
pub(crate) fn words(said: &str) -> String {
    storable(said, MAX_WORDS)
}

fn storable(message: &str, most: usize) -> String {
    let text = message.replace('\0', "\u{fffd}");
    if is_cut(&text, most) {
        return text;
    }
    let kept = &text[..text.floor_char_boundary(most)];
    match text.len() - kept.len() {
        0 => text,
        cut => format!("{kept}… ({cut} bytes more)"),
    }
}

/// Whether [`storable`] has cut the text. A child's failure is stored again as the failure of a
/// step.
fn is_cut(text: &str, most: usize) -> bool {
    let cut = text.strip_suffix(" bytes more)").and_then(|text| text.rsplit_once("… ("));
    let is_number = |text: &str| text.parse::<usize>().is_ok_and(|n| n.to_string() == text);
    cut.is_some_and(|(kept, n_cut)| kept.len() <= most && is_number(n_cut))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for cause in &self.causes {
            write!(f, ": {cause}")?;
        }
        match &self.location {
            Some(location) => write!(f, " (at {location})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

/// How to retry after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Retry {
    /// As the job's policy decides.
    #[default]
    Policy,
    /// After this delay, while the policy has attempts left.
    After(Duration),
    /// Never.
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_MESSAGE: usize = 8 * 1024;

    #[test]
    fn failure_within_limits_is_recorded_unchanged() {
        let failure =
            Failure { causes: vec!["refused".to_owned()], ..Failure::new(FailureKind::Error, "charging") };
        assert_eq!(failure.storable(MAX_MESSAGE), failure);
    }

    #[derive(Debug)]
    struct Unspeakable;

    impl fmt::Display for Unspeakable {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("no words")
        }
    }

    impl std::error::Error for Unspeakable {}

    #[test]
    fn error_with_panicking_display_becomes_failure() {
        let failure = Failure::from_chain(FailureKind::Error, &Unspeakable);
        assert_eq!(failure.message, "an error whose text cannot be shown: its `Display` panicked: no words");
    }

    #[test]
    fn overlong_text_is_cut_between_characters_stating_missing_bytes() {
        let message = "ä".repeat(MAX_MESSAGE);
        let causes = vec![format!("x{message}"); MAX_CAUSES + 2];
        let stored = Failure { causes, ..Failure::new(FailureKind::Error, message) }.storable(MAX_MESSAGE);
        assert!(stored.message.ends_with("ä… (8192 bytes more)"), "{}", &stored.message[MAX_MESSAGE..]);
        assert!(stored.causes[0].ends_with("ä… (8194 bytes more)"));
    }

    #[test]
    fn repeatedly_wrapped_failure_keeps_outermost_and_innermost_causes() {
        let mut failure = Failure::new(FailureKind::Error, "0");
        for n in 1..=100 {
            let causes = failure.messages().collect();
            failure =
                Failure { causes, ..Failure::new(FailureKind::Error, n.to_string()) }.storable(MAX_MESSAGE);
        }
        let mut expected: Vec<String> = (77..100).rev().map(|n| n.to_string()).collect();
        expected.push(LEFT_OUT.to_owned());
        expected.extend((0..8).rev().map(|n| n.to_string()));
        assert_eq!(failure.causes, expected);
        assert_eq!(failure.storable(MAX_MESSAGE), failure);
    }

    #[test]
    fn failure_nested_in_error_chain_keeps_causes_and_location() {
        #[derive(Debug, thiserror::Error)]
        #[error("child")]
        struct Wrapped(#[source] Failure);
        let panicked = Failure {
            causes: vec!["disk".to_owned(), "full".to_owned()],
            location: Some("a.rs:1:2".to_owned()),
            ..Failure::new(FailureKind::Panic, "no")
        };
        let failure = Failure::from_chain(FailureKind::Error, &Wrapped(panicked.clone()));
        assert_eq!(failure.causes, ["no", "disk", "full (at a.rs:1:2)"]);
        assert_eq!(failure.to_string(), format!("child: {panicked}"));
    }

    #[test]
    fn text_resembling_truncated_text_is_still_cut() {
        let text = format!("no… ({} bytes more)", "0".repeat(20_000));
        assert!(words(&text).len() < MAX_WORDS + 50);
    }

    #[test]
    fn storable_conversion_of_failure_is_idempotent() {
        for message in
            ["x".repeat(20_000), "\0".repeat(MAX_MESSAGE), format!("{}\0ä", "x".repeat(MAX_MESSAGE - 1))]
        {
            let causes = vec![message.clone(); MAX_CAUSES + 2];
            let stored =
                Failure { causes, ..Failure::new(FailureKind::Error, message) }.storable(MAX_MESSAGE);
            assert_eq!(stored.storable(MAX_MESSAGE), stored);
        }
    }

    #[test]
    fn nul_in_failure_message_is_replaced() {
        assert_eq!(Failure::new(FailureKind::Error, "a\0b").storable(MAX_MESSAGE).message, "a\u{fffd}b");
    }

    #[test]
    fn failure_with_maximum_cause_count_keeps_all_causes() {
        let causes = (0..MAX_CAUSES).map(|n| n.to_string()).collect();
        let failure = Failure { causes, ..Failure::new(FailureKind::Error, "no") };
        assert_eq!(failure.storable(MAX_MESSAGE), failure);
    }

    #[test]
    fn operator_text_is_cut_at_four_kibibytes_and_nul_replaced() {
        let most = "x".repeat(4096);
        assert_eq!(words(&most), most);
        assert_eq!(words(&format!("{most}y")), format!("{most}… (1 bytes more)"));
        assert_eq!(words("a\0b"), "a\u{fffd}b");
    }
}
