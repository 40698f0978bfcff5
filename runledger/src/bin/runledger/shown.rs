//! Formats output. No control character from the database reaches a terminal.

use std::error::Error;
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Formats text from the database on one line. Escapes characters that control a terminal, change
/// the text direction or break lines.
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

/// Whether a character is a control, changes the text direction, or breaks lines.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// Joins an error and its causes to one sentence.
pub(crate) fn sentence(error: &(dyn Error + 'static)) -> String {
    let mut sentence = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        // Some messages already end with the message of their cause.
        if !sentence.ends_with(&message) {
            let _ = write!(sentence, ": {message}");
        }
        source = cause.source();
    }
    shown(sentence)
}

/// Formats one JSON value on a line. Hidden characters occur only inside JSON strings, where an
/// escape can replace them.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Box<dyn Error>> {
    Ok(plain_json(&serde_json::to_string(value)?) + "\n")
}

/// Escapes the hidden characters in JSON.
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

/// The last second of the year 9999, the last year of RFC 3339.
const LAST: Duration = Duration::from_secs(253_402_300_799);

/// Formats an instant in UTC by RFC 3339, to the microsecond, for programs.
pub(crate) fn instant(time: SystemTime) -> String {
    humantime::format_rfc3339_micros(within(time)).to_string()
}

/// Formats an instant in UTC to the second, for people. `-` for none.
pub(crate) fn when(time: Option<SystemTime>) -> String {
    let said = |time| humantime::format_rfc3339_seconds(within(time)).to_string().replace('T', " ");
    time.map_or_else(|| "-".to_owned(), said)
}

/// The nearest instant from 1970 to 9999. humantime panics outside these years.
fn within(time: SystemTime) -> SystemTime {
    time.clamp(UNIX_EPOCH, UNIX_EPOCH + LAST)
}

/// Formats a duration for people: to the millisecond below a minute, then to the second.
pub(crate) fn long(duration: Option<Duration>) -> String {
    let Some(duration) = duration else { return "-".to_owned() };
    let rounded = match duration.as_secs() {
        seconds @ 60.. => Duration::from_secs(seconds),
        seconds => Duration::new(seconds, duration.subsec_millis() * 1_000_000),
    };
    humantime::format_duration(rounded).to_string()
}

/// Formats rows under titles, each column as wide as its widest cell.
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
    fn text_and_json_escape_terminal_control_characters() {
        assert_eq!(shown("a\u{1b}[31m\n\u{9b}1m\u{202e}b"), "a\\u{1b}[31m\\n\\u{9b}1m\\u{202e}b");
        let said = json(&"a\u{1b}\u{7f}\u{9b}\u{2028}ä").unwrap();
        assert_eq!(said, "\"a\\u001b\\u007f\\u009b\\u2028ä\"\n");
        assert_eq!(serde_json::from_str::<String>(&said).unwrap(), "a\u{1b}\u{7f}\u{9b}\u{2028}ä");
    }

    #[test]
    fn instant_is_formatted_as_date_and_time() {
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
    fn instant_out_of_range_is_clamped_to_nearest_date() {
        assert_eq!(instant(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000000Z");
        assert_eq!(when(Some(UNIX_EPOCH + Duration::from_secs(1 << 39))), "9999-12-31 23:59:59Z");
        assert_eq!(when(None), "-");
    }

    #[test]
    fn duration_is_shown_with_readable_precision() {
        for (micros, text) in [
            (0, "0s"),
            (7_900, "7ms"),
            (1_500_900, "1s 500ms"),
            (61_900_000, "1m 1s"),
            (5_400_000_000, "1h 30m"),
        ] {
            assert_eq!(long(Some(Duration::from_micros(micros))), text);
        }
    }

    #[test]
    fn column_is_as_wide_as_its_widest_cell() {
        let rows = [["äöü".to_owned(), "b".to_owned()], ["c".to_owned(), String::new()]];
        assert_eq!(table(["A", "B"], &rows), "A    B\näöü  b\nc\n");
    }
}
