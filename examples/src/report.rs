//! The report of a survey.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::files::{Content, FileFacts, Listing, digest_of};

/// How many rows of each kind the report shows.
const ROWS: usize = 8;

/// How many problems the report keeps.
const MOST_PROBLEMS: usize = 1000;

/// The result of a survey.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The sums over all readable files.
    pub total: Sum,
    /// The sums per file extension, most lines first.
    pub by_ending: Vec<(String, Sum)>,
    /// The largest files, with their bytes.
    pub largest: Vec<(String, u64)>,
    /// The files and folders that could not be read, with the reason.
    pub problems: Vec<String>,
    /// The SHA-256 over all paths and digests, in hexadecimal.
    pub digest: String,
}

/// Counts over some files.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Sum {
    /// The number of files.
    pub files: u64,
    /// The number of lines.
    pub lines: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl Report {
    /// Merges the facts about single files.
    #[must_use]
    pub fn merge(listing: &Listing, facts: &[FileFacts]) -> Self {
        let mut report = Self { problems: listing.problems.clone(), ..Self::default() };
        let mut by_ending: BTreeMap<&str, Sum> = BTreeMap::new();
        let mut digests = String::new();
        for FileFacts { file, content } in facts {
            match content {
                Ok(content) => {
                    report.total.add(content);
                    by_ending.entry(ending(file)).or_default().add(content);
                    report.largest.push((file.clone(), content.bytes));
                    digests += &format!("{} {file}\n", content.digest);
                }
                Err(problem) => report.problems.push(format!("{file}: {problem}")),
            }
        }
        report.by_ending = by_ending.into_iter().map(|(ending, sum)| (ending.to_owned(), sum)).collect();
        report.by_ending.sort_by_key(|(_, sum)| Reverse((sum.lines, sum.bytes)));
        report.largest.sort_by_key(|(_, bytes)| Reverse(*bytes));
        report.largest.truncate(ROWS);
        report.problems.truncate(MOST_PROBLEMS);
        report.digest = digest_of(digests.as_bytes());
        report
    }
}

impl Sum {
    fn add(&mut self, content: &Content) {
        self.files += 1;
        self.lines += content.lines;
        self.bytes += content.bytes;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {:<12} {:>9} {:>11} {:>13}", "ending", "files", "lines", "bytes")?;
        let rest = self.by_ending.len().saturating_sub(ROWS);
        for (ending, sum) in self.by_ending.iter().take(ROWS) {
            row(f, ending, *sum)?;
        }
        if rest > 0 {
            writeln!(f, "  … and {rest} more endings")?;
        }
        row(f, "all", self.total)?;
        writeln!(f, "\n  largest")?;
        for (file, bytes) in self.largest.iter().take(ROWS) {
            writeln!(f, "  {:>12}  {file}", grouped(*bytes))?;
        }
        if !self.problems.is_empty() {
            writeln!(f, "\n  could not be read: {}", self.problems.len())?;
        }
        for problem in self.problems.iter().take(ROWS) {
            writeln!(f, "    {problem}")?;
        }
        write!(f, "\n  digest {}", self.digest)
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, sum: Sum) -> fmt::Result {
    let (files, lines, bytes) = (grouped(sum.files), grouped(sum.lines), grouped(sum.bytes));
    writeln!(f, "  {name:<12} {files:>9} {lines:>11} {bytes:>13}")
}

/// Formats a number with separated thousands: `1 234 567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// The file extension, if the name has one of at most 10 bytes.
fn ending(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    match name.rsplit_once('.') {
        Some((before, after)) if !before.is_empty() && !after.is_empty() && after.len() <= 10 => after,
        Some(_) | None => "(none)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped_with_spaces() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1 000", "1 234 567"]);
    }

    #[test]
    fn file_ending_is_extension_or_none() {
        assert_eq!(
            ["a/b.rs", "Makefile", ".gitignore", "a.b/c"].map(ending),
            ["rs", "(none)", "(none)", "(none)"]
        );
    }
}
