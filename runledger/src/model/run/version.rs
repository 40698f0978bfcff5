//! Versions of a job's code, as part of the stored name of its runs. A worker claims only names
//! whose code it has.

use std::borrow::Cow;

/// The default version. Its runs are stored under the bare name.
pub const FIRST: u32 = 1;

/// The stored name of a version's runs: `checkout` for the first, `checkout@2` for the second. No
/// job name contains an `@`.
#[must_use]
pub fn stored_name(name: &str, version: u32) -> Cow<'_, str> {
    if version == FIRST { Cow::Borrowed(name) } else { Cow::Owned(format!("{name}@{version}")) }
}

/// The name and the version in a stored name.
#[must_use]
pub fn parts(stored: &str) -> (&str, u32) {
    let parts = stored.rsplit_once('@').and_then(|(name, version)| Some((name, version.parse().ok()?)));
    parts.unwrap_or((stored, FIRST))
}

/// Lists versions for a message: `version 2`, `versions 1, 3`.
pub(crate) fn listed(versions: &[u32]) -> String {
    let numbers: Vec<String> = versions.iter().map(u32::to_string).collect();
    let word = if versions.len() == 1 { "version" } else { "versions" };
    format!("{word} {}", numbers.join(", "))
}

/// The other versions of the same job among `served`.
pub(crate) fn others<'n>(stored: &str, served: impl Iterator<Item = &'n str>) -> Vec<u32> {
    let (name, version) = parts(stored);
    let same = served.map(parts).filter(|(other, its)| *other == name && *its != version);
    let mut versions: Vec<u32> = same.map(|(_, its)| its).collect();
    versions.sort_unstable();
    versions.dedup();
    versions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_job_name_round_trips_with_bare_first_version() {
        for (name, version, stored) in [
            ("checkout", 1, "checkout"),
            ("checkout", 2, "checkout@2"),
            ("a.b-c", u32::MAX, "a.b-c@4294967295"),
        ] {
            assert_eq!(stored_name(name, version), stored);
            assert_eq!(parts(stored), (name, version));
        }
    }

    #[test]
    fn invalid_version_suffix_is_part_of_name() {
        for stored in ["checkout@", "checkout@x", "checkout@-1", "checkout@4294967296"] {
            assert_eq!(parts(stored), (stored, FIRST));
        }
    }

    #[test]
    fn other_versions_belong_to_same_job() {
        let served = ["checkout@3", "checkout", "checkout@3", "checkouts@9", "refund@2"];
        assert_eq!(others("checkout@2", served.into_iter()), [1, 3]);
        assert_eq!(others("checkout", served.into_iter()), [3]);
        assert_eq!(listed(&[1, 3]), "versions 1, 3");
        assert_eq!(listed(&[3]), "version 3");
    }
}
