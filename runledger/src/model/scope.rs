//! Scopes: the branches of a workflow, in each of which keys and ordinals are counted.

use super::json::fingerprint;

/// Of an ordinal, the bits that count within a scope: four million steps. Those above say which scope.
pub(super) const LOCAL_BITS: u32 = 22;
/// The bits that say which scope: what is left of a positive 64-bit number.
const SCOPE_BITS: u32 = 63 - LOCAL_BITS;

/// A branch of a workflow, or the workflow itself: where keys and ordinals are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    pub(super) path: String,
    /// What the ordinals of its steps begin with.
    pub(super) base: u64,
}

impl Scope {
    /// The workflow itself.
    #[must_use]
    pub const fn root() -> Self {
        Self { path: String::new(), base: 0 }
    }

    /// Its path: `left/inner#2/`, and empty for the workflow itself.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The scope at a path such as `left/inner#2/`. Its number comes from the path, so it is the same in every attempt.
    pub(super) fn at(path: String) -> Self {
        let number = fingerprint(&path).cast_unsigned() >> (u64::BITS - SCOPE_BITS);
        Self { path, base: number.max(1) << LOCAL_BITS }
    }

    /// The place of the decision about a change of the code: branches that are polled in another order decide about several in another order.
    pub(super) fn of_patch(name: &str) -> Self {
        Self { path: String::new(), ..Self::at(format!("patched[{name}]")) }
    }

    /// The place of the step that takes back what another did: every such step has a scope of its own, since the code may be gone that began the others.
    pub(super) fn of_undo(key: &str) -> Self {
        Self { path: String::new(), ..Self::at(format!("undo[{key}]")) }
    }

    /// The place of the step that says what a saga takes back: a branch may come to it before or after others have claimed theirs.
    pub(super) fn of_saga(first: &str) -> Self {
        Self { path: String::new(), ..Self::at(format!("saga.undo[{first}]")) }
    }
}

/// The place of an ordinal within its scope.
pub(super) const fn local(ordinal: u64) -> u64 {
    ordinal & ((1 << LOCAL_BITS) - 1)
}

/// Whether two steps are of one scope.
pub(super) const fn is_beside(ordinal: u64, place: u64) -> bool {
    ordinal >> LOCAL_BITS == place >> LOCAL_BITS
}

/// Whether a step has the place of another in its scope, or one behind it there.
pub(super) const fn is_from(ordinal: u64, place: u64) -> bool {
    is_beside(ordinal, place) && ordinal >= place
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::replay::Replay;

    /// The numbers are pinned: they stand in the records of runs.
    #[test]
    fn the_places_of_steps_are_the_same_in_every_version() {
        let scopes = [
            Scope::root(),
            Scope::at("left/inner#2/".to_owned()),
            Scope::of_patch("mail"),
            Scope::of_undo("charge"),
            Scope::of_saga("charge"),
        ];
        let places = [
            0,
            8_653_391_942_123_520_000,
            5_984_726_880_006_176_768,
            3_936_846_890_385_014_784,
            4_718_430_957_625_933_824,
        ];
        assert_eq!(scopes.each_ref().map(|scope| scope.base), places);
        assert_eq!(scopes.each_ref().map(Scope::path), ["", "left/inner#2/", "", "", ""]);
    }

    #[test]
    fn steps_of_the_engine_have_their_names_and_places_in_whatever_branch_they_are_claimed() {
        let mut replay = Replay::default();
        let claims = [
            replay.patched("mail").map(|(_, claim)| claim.unwrap()),
            replay.claim_undo("left/charge"),
            replay.claim_saga("left/charge"),
        ]
        .map(Result::unwrap);
        let keys = claims.each_ref().map(|claim| claim.key.as_str());
        assert_eq!(keys, ["patched[mail]", "undo[left/charge]", "saga.undo[left/charge]"]);
        assert_eq!(claims.map(|claim| local(claim.ordinal)), [0; 3]);
    }

    #[test]
    fn a_place_is_behind_others_of_its_own_scope_alone() {
        let base = Scope::at("left/".to_owned()).base;
        assert_eq!([0, 3].map(|place| local(base | place)), [0, 3]);
        assert_eq!([base, base | 5, 5].map(|place| is_beside(place, base | 3)), [true, true, false]);
        assert_eq!(
            [base | 2, base | 3, base | 4, 4].map(|place| is_from(place, base | 3)),
            [false, true, true, false]
        );
    }
}
