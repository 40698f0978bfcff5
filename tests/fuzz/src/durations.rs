//! Durations in attributes, and durations that a program passes at run time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use runledger::AnyCall;
use runledger::model::run::backoff::Backoff;
use runledger::model::timestamp::{FURTHEST, Timestamp};

use crate::bytes::Bytes;
use crate::macros::{errors, forget_places, job, literal, numbers};

/// Interprets the bytes as the text of a duration, and as durations and instants.
pub fn durations(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        a_text_is_its_milliseconds_or_refused(text);
        a_range_is_its_ends_or_refused(text);
        forget_places();
    }
    let mut bytes = Bytes::new(data);
    let (first, second) = (duration(&mut bytes), duration(&mut bytes));
    delays_stay_within_reach(first, second, bytes.byte());
    instants_do_not_overflow(Timestamp::from_unix_micros(bytes.wide().cast_signed()), first);
    calls_take_any_duration(first, second);
}

fn duration(bytes: &mut Bytes<'_>) -> Duration {
    match bytes.below(4) {
        0 => Duration::from_millis(bytes.wide() & 0xffff),
        1 => Duration::from_nanos(bytes.wide()),
        2 => FURTHEST.saturating_sub(Duration::from_nanos(1)) + Duration::from_nanos(bytes.byte().into()),
        _ => Duration::new(bytes.wide(), 999_999_999),
    }
}

/// The value of a text such as `30s`, computed in 128 bits.
fn milliseconds(text: &str) -> Option<u64> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let (digits, scale) = units.iter().find_map(|(unit, scale)| {
        let digits = text.strip_suffix(unit)?;
        (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some((digits, scale))
    })?;
    let digits = digits.trim_start_matches('0');
    // Such a number exceeds a century in any unit.
    let number: u128 = if digits.len() > 20 { u128::from(u64::MAX) } else { digits.parse().ok()? };
    u64::try_from(number * scale).ok().filter(|ms| (1..=FURTHEST.as_millis()).contains(&u128::from(*ms)))
}

fn a_text_is_its_milliseconds_or_refused(text: &str) {
    let Some(expansion) = job(&format!("timeout = {}", literal(text))) else { return };
    let wanted = milliseconds(text);
    assert_eq!(errors(&expansion).is_empty(), wanted.is_some(), "{text:?}");
    if let Some(ms) = wanted {
        assert_eq!(numbers(&expansion, "timeout_ms"), Some(vec![ms]), "{text:?}");
    }
}

fn a_range_is_its_ends_or_refused(text: &str) {
    let Some(expansion) = job(&format!("backoff = {}", literal(text))) else { return };
    let ends =
        text.split_once("..").and_then(|(first, cap)| Some((milliseconds(first)?, milliseconds(cap)?)));
    let wanted = ends.filter(|(first, cap)| first <= cap);
    assert_eq!(errors(&expansion).is_empty(), wanted.is_some(), "{text:?}");
    if let Some((first, cap)) = wanted {
        assert_eq!(numbers(&expansion, "backoff_ms"), Some(vec![first, cap]), "{text:?}");
    }
}

fn delays_stay_within_reach(first: Duration, cap: Duration, random: u8) {
    let backoff = Backoff::new(first, cap);
    let unit_random = f64::from(random) / 256.0;
    // The delay is computed in `f64`, whose precision at a century is half a microsecond.
    let rounding = Duration::from_micros(1);
    let mut before = Duration::ZERO;
    for failures in (0..45).chain([u32::MAX]) {
        let delay = backoff.delay(failures, unit_random);
        assert!(delay + rounding >= first.min(FURTHEST), "{backoff:?} gives {delay:?}");
        assert!(delay <= FURTHEST && delay + rounding >= before, "{backoff:?} gives {delay:?}");
        before = delay;
    }
}

fn instants_do_not_overflow(instant: Timestamp, distance: Duration) {
    let later = instant.plus(distance);
    assert!(later >= instant && instant.minus(distance) <= instant);
    assert!(later.since(instant) <= distance);
    assert_eq!(instant.since(later), Duration::ZERO);
    let time = SystemTime::from(instant);
    assert_eq!(Timestamp::from(time), instant);
    if distance < FURTHEST {
        assert_eq!(Timestamp::from(UNIX_EPOCH + distance), Timestamp::from_unix_micros(0).plus(distance));
    }
}

fn calls_take_any_duration(first: Duration, second: Duration) {
    let call = AnyCall::by_name("charge", &()).delay(first).timeout(second).backoff(second, first);
    let call =
        UNIX_EPOCH.checked_add(first).map_or_else(|| AnyCall::by_name("charge", &()), |at| call.start_at(at));
    assert!(!format!("{call:?}").is_empty());
}
