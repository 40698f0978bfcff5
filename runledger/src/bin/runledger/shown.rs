//! How things are shown: nothing of the database reaches a terminal as a control character.

use std::error::Error;
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Text from the database, on one line: what controls a terminal, or turns or breaks its lines, is spelled out.
pub(crate) fn shown(text: impl AsRef<str>) -> String {
    let mut shown = String::with_capacity(text.as_ref().len());
    for c in text.as_ref().chars() {
        match c {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if is_hidden(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
}

/// Controls, those that turn the direction of writing, and those that break lines.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// An error with its causes, as one sentence.
pub(crate) fn sentence(error: &(dyn Error + 'static)) -> String {
    let mut sentence = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        // Some messages have that of their cause at their end.
        if !sentence.ends_with(&message) {
            let _ = write!(sentence, ": {message}");
        }
        source = cause.source();
    }
    shown(sentence)
}

/// One JSON value on a line. Outside its texts JSON has none of the hidden characters, and within them each may be written by its number.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Box<dyn Error>> {
    Ok(plain_json(&serde_json::to_string(value)?) + "\n")
}

/// JSON whose texts hide nothing from a terminal.
pub(crate) fn plain_json(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => plain.push(c),
            c if is_hidden(c) => {
                let _ = write!(plain, "\\u{:04x}", u32::from(c));
            }
            c => plain.push(c),
        }
    }
    plain
}

/// An instant in UTC, by RFC 3339: to the microsecond for programs, to the second for people.
pub(crate) fn instant(time: SystemTime) -> String {
    let (date, seconds, micros) = parts(time);
    format!("{date}T{}.{micros:06}Z", clock(seconds))
}

/// As [`instant`], for people; `-` for none.
pub(crate) fn when(time: Option<SystemTime>) -> String {
    let said = |time| {
        let (date, seconds, _) = parts(time);
        format!("{date} {}Z", clock(seconds))
    };
    time.map_or_else(|| "-".to_owned(), said)
}

fn clock(seconds: u64) -> String {
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The date, the seconds of the day, and the microseconds of the second. What is before 1970 is no instant of a run.
fn parts(time: SystemTime) -> (String, u64, u32) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Howard Hinnant's `civil_from_days`: years begin in March, in eras of 400 years.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (format!("{year:04}-{month:02}-{day:02}"), seconds, since.subsec_micros())
}

/// How long something took, for people.
pub(crate) fn long(duration: Option<Duration>) -> String {
    let Some(duration) = duration else { return "-".to_owned() };
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3600 => format!("{} m {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} m", seconds / 3600, seconds / 60 % 60),
    }
}

/// Rows in columns that are as wide as their widest cell, under their titles.
pub(crate) fn table<const N: usize>(titles: [&str; N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].as_str()).chain([titles[column]]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut table = String::new();
    for row in std::iter::once(&titles.map(str::to_owned)).chain(rows) {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        table.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_controls_the_terminal() {
        assert_eq!(shown("a\u{1b}[31m\n\u{9b}1m\u{202e}b"), "a\\u{1b}[31m\\n\\u{9b}1m\\u{202e}b");
        let said = json(&"a\u{1b}\u{7f}\u{9b}\u{2028}ä").unwrap();
        assert_eq!(said, "\"a\\u001b\\u007f\\u009b\\u2028ä\"\n");
        assert_eq!(serde_json::from_str::<String>(&said).unwrap(), "a\u{1b}\u{7f}\u{9b}\u{2028}ä");
    }

    #[test]
    fn an_instant_is_a_date_and_a_time() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000007Z"),
            (951_782_400, "2000-02-29T00:00:00.000007Z"),
            (1_795_425_515, "2026-11-23T09:18:35.000007Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000007Z"),
        ] {
            assert_eq!(instant(UNIX_EPOCH + Duration::from_micros(seconds * 1_000_000 + 7)), text);
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["äöü".to_owned(), "b".to_owned()], ["c".to_owned(), String::new()]];
        assert_eq!(table(["A", "B"], &rows), "A    B\näöü  b\nc\n");
    }
}
