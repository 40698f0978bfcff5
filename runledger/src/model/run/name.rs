//! Names of jobs, queues, steps and tenants. Only listed characters are allowed, so no name needs
//! quotes anywhere.

use thiserror::Error;

/// The maximum length of the name of a job or queue, in bytes.
pub const MAX_NAME: usize = 48;
/// The maximum length of a tenant, idempotency key or step key, in bytes.
pub const MAX_KEY: usize = 256;

/// The maximum length of a step's whole key, with its branches, in bytes. The compensation of a
/// step has a longer key, and PostgreSQL indexes at most 2,704 bytes.
pub const MAX_STEP_KEY: usize = 1024;

/// An invalid name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what} `{name}` {problem}; {rule}")]
pub struct NameError {
    what: &'static str,
    name: String,
    problem: &'static str,
    rule: &'static str,
}

const NAME_RULE: &str = "use 1 to 48 of a-z, 0-9, `_`, `.` and `-`, beginning with a letter or `_`";
const RESERVED: &str = "runledger.";
const RESERVED_RULE: &str =
    "choose another: names that begin with `runledger.` are those of the engine's own jobs";
const TEXT_RULE: &str = "no text in PostgreSQL has one";
const KEY_RULE: &str = "use 1 to 256 bytes of text without control characters";

/// Checks the name of a job or queue.
///
/// # Errors
/// [`NameError`] with the broken rule.
pub fn check_name(what: &'static str, name: &str) -> Result<(), NameError> {
    let problem = if name.is_empty() {
        "is empty"
    } else if name.len() > MAX_NAME {
        "is longer than 48 bytes"
    } else if !name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_') {
        "does not begin with a lower-case letter"
    } else if !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_.-".contains(&b)) {
        "has a character that is not allowed"
    } else {
        return Ok(());
    };
    Err(NameError { what, name: shown(name), problem, rule: NAME_RULE })
}

/// Checks the name of a user's job, which must not be one of the engine's.
///
/// # Errors
/// [`NameError`] with the broken rule.
pub fn check_job_name(name: &str) -> Result<(), NameError> {
    check_name("job", name)?;
    if is_reserved(name) {
        return Err(NameError {
            what: "job",
            name: shown(name),
            problem: "is reserved",
            rule: RESERVED_RULE,
        });
    }
    Ok(())
}

/// Whether the name belongs to the engine's own jobs.
pub fn is_reserved(name: &str) -> bool {
    name.starts_with(RESERVED)
}

/// Checks a tenant, an idempotency key or a step's key.
///
/// # Errors
/// [`NameError`] with the broken rule.
pub fn check_key(what: &'static str, key: &str) -> Result<(), NameError> {
    let problem = if key.trim().is_empty() {
        "is blank"
    } else if key.len() > MAX_KEY {
        "is longer than 256 bytes"
    } else if key.chars().any(char::is_control) {
        "has a control character"
    } else {
        return Ok(());
    };
    Err(NameError { what, name: shown(key), problem, rule: KEY_RULE })
}

/// Checks the text of a search.
///
/// # Errors
/// [`NameError`] if the text has a NUL character, which PostgreSQL cannot store.
pub fn check_text(what: &'static str, text: &str) -> Result<(), NameError> {
    if !text.contains('\0') {
        return Ok(());
    }
    Err(NameError { what, name: shown(text), problem: "has a NUL character", rule: TEXT_RULE })
}

/// The known name nearest to `name`, if the difference is small enough for a typo.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.len() / 3).clamp(1, 3);
    known
        .into_iter()
        .filter_map(|candidate| Some((distance_within(limit, name, candidate)?, candidate)))
        .min()
        .map(|(_, candidate)| candidate)
}

/// The end of a message about an unknown name: a question if a similar name exists, otherwise
/// empty.
#[must_use]
pub fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    match nearest(name, known) {
        Some(near) => format!("; did you mean `{near}`?"),
        None => String::new(),
    }
}

/// The Levenshtein distance in bytes, because names are ASCII. `None` above the limit. Computes
/// only the cells within the limit of the diagonal, because a graph may have 10,000 long names.
fn distance_within(limit: usize, a: &str, b: &str) -> Option<usize> {
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    let beyond = limit + 1;
    let mut row: Vec<usize> = (0..=b.len()).map(|distance| distance.min(beyond)).collect();
    for (place, x) in (1_usize..).zip(a.bytes()) {
        let (from, to) = (place.saturating_sub(limit).max(1), (place + limit).min(b.len()));
        let mut left = if from == 1 { place.min(beyond) } else { beyond };
        let mut diagonal = std::mem::replace(&mut row[from - 1], left);
        for (above, y) in row[from..=to].iter_mut().zip(b.as_bytes()[from - 1..].iter()) {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = *above;
            left = substituted.min(left + 1).min(diagonal + 1).min(beyond);
            *above = left;
        }
    }
    Some(row[b.len()]).filter(|distance| *distance <= limit)
}

fn shown(name: &str) -> String {
    name.chars().take(64).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_well_formed_unreserved_job_names_pass() {
        for good in ["charge", "billing.charge-2", "_x", &"a".repeat(48)] {
            assert_eq!(check_job_name(good), Ok(()));
        }
        assert_eq!(check_name("job", "runledger.gate"), Ok(()));
        let said = check_job_name("runledger.gate").unwrap_err().to_string();
        assert!(said.starts_with("job `runledger.gate` is reserved; choose another"), "{said}");
        for bad in ["", "Charge", "1st", "x\"; drop", "naïve", "a b", &"a".repeat(49)] {
            assert!(check_name("job", bad).is_err(), "{bad:?} passed");
        }
    }

    #[test]
    fn key_accepts_nonblank_text_without_control_characters_up_to_limit() {
        for good in ["order-1", "Größe 42", &"k".repeat(256)] {
            assert_eq!(check_key("idempotency key", good), Ok(()));
        }
        for bad in ["", "  ", "a\0b", "line\nline", &"k".repeat(257)] {
            assert!(check_key("idempotency key", bad).is_err(), "{bad:?} passed");
        }
    }

    #[test]
    fn distance_is_levenshtein_and_none_beyond_limit() {
        fn plain(a: &[u8], b: &[u8]) -> usize {
            match (a, b) {
                ([], rest) | (rest, []) => rest.len(),
                ([x, a @ ..], [y, b @ ..]) if x == y => plain(a, b),
                ([_, a_rest @ ..], [_, b_rest @ ..]) => {
                    1 + plain(a_rest, b).min(plain(a, b_rest)).min(plain(a_rest, b_rest))
                }
            }
        }
        let words: Vec<String> = (0..=5_u32)
            .flat_map(|n| {
                (0..1_u32 << n)
                    .map(move |bits| (0..n).map(|at| if bits >> at & 1 == 0 { 'a' } else { 'b' }).collect())
            })
            .collect();
        for (a, b) in words.iter().flat_map(|a| words.iter().map(move |b| (a, b))) {
            let distance = plain(a.as_bytes(), b.as_bytes());
            for limit in 0..=4 {
                let within = Some(distance).filter(|distance| *distance <= limit);
                assert_eq!(distance_within(limit, a, b), within, "{a} {b} {limit}");
            }
        }
    }

    #[test]
    fn nearest_name_is_suggested_only_for_typo() {
        assert_eq!(nearest("chrage", ["charge", "refund"]), Some("charge"));
        assert_eq!(nearest("publish", ["charge", "refund"]), None);
    }

    #[test]
    fn closest_name_is_suggested_within_limit_growing_with_length() {
        assert_eq!(nearest("chargee", ["charged", "charge", "charges"]), Some("charge"));
        for (name, known, is_near) in [
            ("ab", "ac", true),
            ("abcde", "abcxx", false),
            ("abcdef", "abcdxx", true),
            ("abcdefghijkl", "abcdefghixxx", true),
            ("abcdefghijklmnop", "abcdefghijklxxxx", false),
        ] {
            assert_eq!(nearest(name, [known]).is_some(), is_near, "{name} {known}");
        }
        assert_eq!(hint("chrage", ["charge"]), "; did you mean `charge`?");
        assert_eq!(hint("publish", ["charge"]), "");
    }

    #[test]
    fn refused_name_is_shown_escaped_and_shortened() {
        let said = check_name("job", "a\nb").unwrap_err().to_string();
        assert!(said.starts_with("job `a\\nb` has a character that is not allowed; use 1 to 48"), "{said}");
        let said = check_key("node", &"k".repeat(257)).unwrap_err().to_string();
        assert!(said.starts_with(&format!("node `{}` is longer", "k".repeat(64))), "{said}");
    }

    #[test]
    fn search_text_allows_newline_and_refuses_nul() {
        assert_eq!(check_text("text", "a\nb"), Ok(()));
        assert!(check_text("text", "a\0b").is_err());
    }
}
