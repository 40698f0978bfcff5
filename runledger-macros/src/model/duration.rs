//! Parses durations such as `30s`, and ranges of durations such as `1s..5m`.

use super::options::Backoff;
use crate::suggest::{did_you_mean, nearest};

/// A century, far below the limits of 64-bit microseconds and of Postgres timestamps.
const MAX_MS: u64 = 100 * 365 * DAY_MS;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

const UNITS: &[(&str, u64)] =
    &[("ms", 1), ("s", 1000), ("m", 60 * 1000), ("h", 60 * 60 * 1000), ("d", DAY_MS)];

const UNIT_SYNONYMS: &[(&str, &str)] = &[
    ("millis", "ms"),
    ("milliseconds", "ms"),
    ("msec", "ms"),
    ("sec", "s"),
    ("secs", "s"),
    ("second", "s"),
    ("seconds", "s"),
    ("min", "m"),
    ("mins", "m"),
    ("minute", "m"),
    ("minutes", "m"),
    ("hr", "h"),
    ("hour", "h"),
    ("hours", "h"),
    ("day", "d"),
    ("days", "d"),
];

/// Milliseconds of `30s`, or an error that says what is wrong with `text`.
pub(super) fn milliseconds(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!("`{text}` is not a duration; {EXPECTED}"));
    }
    let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(wrong_unit(text, unit));
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(*scale)) {
        Some(0) => Err(format!("duration `{text}` is zero; write at least `1ms`")),
        Some(ms) if ms <= MAX_MS => Ok(ms),
        _ => Err(format!("duration `{text}` is longer than 100 years")),
    }
}

/// Both ends of `1s..5m`.
pub(super) fn range(text: &str) -> Result<Backoff, String> {
    let Some((first, cap)) = text.split_once("..") else {
        return Err(format!(
            "`{text}` is not a range; write the first and the longest delay, such as `1s..5m`"
        ));
    };
    let backoff = Backoff { first_ms: milliseconds(first)?, cap_ms: milliseconds(cap)? };
    if backoff.first_ms > backoff.cap_ms {
        return Err(format!(
            "the first delay `{first}` is longer than the longest `{cap}`; write the \
                shorter one first"
        ));
    }
    Ok(backoff)
}

const EXPECTED: &str = "write a whole number and a unit (ms, s, m, h, d), such as `30s`";

fn wrong_unit(text: &str, unit: &str) -> String {
    if unit.is_empty() {
        return format!("duration `{text}` has no unit; {EXPECTED}");
    }
    if unit.starts_with(['.', ',']) {
        return format!("duration `{text}` is not whole; take a smaller unit, such as `1500ms`");
    }
    let meant = did_you_mean(nearest(unit.trim(), &[], UNIT_SYNONYMS));
    format!("unknown unit `{unit}` in duration `{text}`{meant} {EXPECTED}")
}

#[cfg(test)]
mod tests {
    use super::{milliseconds, range};

    #[test]
    fn each_unit_converts_to_milliseconds() {
        for (text, ms) in [
            ("1ms", 1),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("007s", 7_000),
            ("36500d", 3_153_600_000_000),
        ] {
            assert_eq!(milliseconds(text), Ok(ms), "{text}");
        }
    }

    #[test]
    fn invalid_duration_is_refused_with_its_fault() {
        for (text, fault) in [
            ("", "is not a duration"),
            ("s", "is not a duration"),
            ("-1s", "is not a duration"),
            ("+1s", "is not a duration"),
            (" 1s", "is not a duration"),
            ("30", "has no unit"),
            ("1.5s", "is not whole"),
            ("30S", "unknown unit `S`"),
            ("30 s", "unknown unit ` s`"),
            ("30sec", "did you mean `s`?"),
            ("5min", "did you mean `m`?"),
            ("1h30m", "unknown unit `h30m`"),
            ("1\u{b5}s", "unknown unit"),
            ("0s", "is zero"),
            ("36501d", "longer than 100 years"),
            ("99999999999999999999s", "longer than 100 years"),
            ("18446744073709551615d", "longer than 100 years"),
        ] {
            let refused = milliseconds(text);
            assert!(matches!(&refused, Err(message) if message.contains(fault)), "{text}: {refused:?}");
        }
    }

    #[test]
    fn range_keeps_both_ends() {
        let both = range("1s..5m").map(|backoff| (backoff.first_ms, backoff.cap_ms));
        assert_eq!(both, Ok((1000, 300_000)));
        let equal = range("1s..1000ms").map(|backoff| (backoff.first_ms, backoff.cap_ms));
        assert_eq!(equal, Ok((1000, 1000)));
    }

    #[test]
    fn invalid_range_is_refused_with_its_fault() {
        for (text, fault) in [
            ("30s", "is not a range"),
            ("5m..1s", "the first delay `5m` is longer than the longest `1s`"),
            ("1s..", "`` is not a duration"),
            ("..5m", "`` is not a duration"),
            ("1s..=5m", "`=5m` is not a duration"),
            ("1s...5m", "`.5m` is not a duration"),
            ("0s..5m", "is zero"),
        ] {
            let refused = range(text).map(|_| ());
            assert!(matches!(&refused, Err(message) if message.contains(fault)), "{text}: {refused:?}");
        }
    }
}
