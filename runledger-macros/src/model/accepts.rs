//! The option `accepts`: earlier versions to serve, as `"1.."`, `"1..=3"`, or a list.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{Expr, ExprArray};

use super::options::{literal_integer, literal_string, ungrouped};
use crate::problems::Problems;

/// The most versions that one definition accepts, because a worker queries the runs of each.
const MOST: usize = 100;

const EXPECTED: &str = "write `accepts = \"1..\"` for all from 1 to the one before its own, `\"1..=3\"`, or a list such as `[1, 3]`";

/// Reads the value of `accepts` for a definition of this version. Adds errors to `problems`.
pub(super) fn check(value: &Expr, version: u32, problems: &mut Problems) -> Vec<u32> {
    let mut versions: Vec<u32> = Vec::new();
    for (at, first, last) in ranges(value, version, problems) {
        if first > last || last >= version || first == 0 {
            problems.at_span(at, not_before(first, last, version));
        } else if versions.iter().any(|known| (first..=last).contains(known)) {
            problems.at_span(at, format!("version {first} is accepted twice; remove one"));
        } else if usize::try_from(last - first).unwrap_or(usize::MAX) >= MOST.saturating_sub(versions.len()) {
            problems.at_span(
                at,
                format!("more than {MOST} versions are accepted, and a worker asks for the runs of each; leave out those that no run has any more"),
            );
        } else {
            versions.extend(first..=last);
        }
    }
    versions
}

fn not_before(first: u32, last: u32, version: u32) -> String {
    let wrong = if last >= version || first > last { last.max(first) } else { first };
    if version == 1 {
        return format!(
            "version {wrong} is not before version 1, which this is: what is accepted are earlier versions; say which version this is, as in `version = {}`",
            wrong.saturating_add(1)
        );
    }
    format!(
        "version {wrong} is not before version {version}, which this is: what is accepted are earlier versions, from 1 to {}",
        version - 1
    )
}

/// The span, the first and the last version of each range.
fn ranges(value: &Expr, version: u32, problems: &mut Problems) -> Vec<(Span, u32, u32)> {
    if let Some(literal) = literal_string(value) {
        let range = range(&literal.value(), version);
        if range.is_none() {
            problems.at(
                &literal,
                format!("option `accepts`: `{}` is no range of versions; {EXPECTED}", literal.value()),
            );
        }
        return range.map(|(first, last)| (literal.span(), first, last)).into_iter().collect();
    }
    let Expr::Array(ExprArray { elems, .. }) = ungrouped(value) else {
        problems.at(value, format!("option `accepts` is a range or a list of versions; {EXPECTED}"));
        return Vec::new();
    };
    let mut ranges = Vec::new();
    for element in elems {
        let number = literal_integer(element).flatten().and_then(|number| u32::try_from(number).ok());
        match number {
            Some(number) => ranges.push((element.span(), number, number)),
            None => problems.at(element, format!("a version is an integer of at least 1; {EXPECTED}")),
        }
    }
    ranges
}

fn range(text: &str, version: u32) -> Option<(u32, u32)> {
    let (first, last) = text.split_once("..")?;
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let first = number(first)?;
    match last.strip_prefix('=') {
        Some(last) => Some((first, number(last)?)),
        None if last.is_empty() => Some((first, (version - 1).max(first))),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_str;

    use super::*;

    fn read(value: &str, version: u32) -> Result<Vec<u32>, String> {
        let mut problems = Problems::default();
        let versions = check(&parse_str(value).unwrap(), version, &mut problems);
        problems.into_result(Some(versions)).map_err(|error| error.to_string())
    }

    #[test]
    fn range_ends_before_own_version_unless_end_is_given() {
        for (value, version, accepted) in [
            ("\"1..\"", 4, vec![1, 2, 3]),
            ("\"2..\"", 3, vec![2]),
            ("\"1..=2\"", 9, vec![1, 2]),
            ("[3, 1]", 4, vec![3, 1]),
            ("[]", 2, vec![]),
            ("\"7..\"", 107, (7..107).collect()),
        ] {
            assert_eq!(read(value, version), Ok(accepted), "{value}");
        }
    }

    #[test]
    fn invalid_accepts_value_is_refused_with_its_fault() {
        for (value, version, fault) in [
            ("\"1..\"", 1, "version 1 is not before version 1, which this is"),
            ("\"3..\"", 3, "version 3 is not before version 3"),
            ("\"2..=1\"", 5, "version 2 is not before"),
            ("\"0..\"", 3, "version 0 is not before"),
            ("[1, 4]", 4, "version 4 is not before version 4"),
            ("[1, 1]", 4, "version 1 is accepted twice"),
            ("[-1]", 4, "a version is an integer of at least 1"),
            ("[\"1\"]", 4, "a version is an integer of at least 1"),
            ("\"1\"", 4, "`1` is no range of versions"),
            ("\"1..3\"", 4, "`1..3` is no range of versions"),
            ("\"+1..\"", 4, "is no range of versions"),
            ("\"..\"", 4, "is no range of versions"),
            ("1", 4, "is a range or a list of versions"),
            ("\"1..\"", 102, "more than 100 versions"),
            ("\"1..\"", u32::MAX, "more than 100 versions"),
        ] {
            let refused = read(value, version);
            assert!(matches!(&refused, Err(error) if error.contains(fault)), "{value}: {refused:?}");
        }
    }
}
