//! Scopes: the branches of a workflow. Each scope counts its own keys and ordinals.

use crate::model::json::fingerprint;

/// The low bits of an ordinal count the steps of a scope, up to four million. The high bits
/// identify the scope.
pub(super) const LOCAL_BITS: u32 = 22;
/// The bits that identify the scope: the rest of a positive 64-bit number.
const SCOPE_BITS: u32 = 63 - LOCAL_BITS;

/// A branch of a workflow, or the workflow itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    pub(super) path: String,
    /// The high bits of the ordinals of its steps.
    pub(super) base: u64,
}

impl Scope {
    /// The workflow itself.
    #[must_use]
    pub const fn root() -> Self {
        Self { path: String::new(), base: 0 }
    }

    /// The path, such as `left/inner#2/`. Empty for the workflow itself.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The scope at a path such as `left/inner#2/`. Its number derives from the path, so it is the
    /// same in every attempt.
    pub(super) fn at(path: String) -> Self {
        let number = fingerprint(&path).cast_unsigned() >> (u64::BITS - SCOPE_BITS);
        Self { path, base: number.max(1) << LOCAL_BITS }
    }

    /// The scope of the decision about a change of the code. It is independent of the branches,
    /// which may decide several changes in another order in each attempt.
    pub(super) fn of_patch(name: &str) -> Self {
        Self { path: String::new(), ..Self::at(format!("patched[{name}]")) }
    }

    /// The scope of a compensation. Each compensation has its own, because the code that started
    /// the others may be gone.
    pub(super) fn of_compensation(key: &str) -> Self {
        Self { path: String::new(), ..Self::at(format!("compensate[{key}]")) }
    }

    /// The scope of the step that records what a saga compensates. A branch may claim it before or
    /// after other branches claim their steps.
    pub(super) fn of_saga(first: &str) -> Self {
        Self { path: String::new(), ..Self::at(format!("saga.compensate[{first}]")) }
    }
}

/// The place of an ordinal within its scope.
pub(super) const fn local(ordinal: u64) -> u64 {
    ordinal & ((1 << LOCAL_BITS) - 1)
}

/// Whether two steps belong to the same scope.
pub(super) const fn is_beside(ordinal: u64, place: u64) -> bool {
    ordinal >> LOCAL_BITS == place >> LOCAL_BITS
}

/// Whether a step is at `place`, or at a later place of the same scope.
pub(super) const fn is_from(ordinal: u64, place: u64) -> bool {
    is_beside(ordinal, place) && ordinal >= place
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::replay::Replay;

    /// The numbers are pinned: records of runs contain them.
    #[test]
    fn base_ordinals_of_scopes_are_pinned() {
        let scopes = [
            Scope::root(),
            Scope::at("left/inner#2/".to_owned()),
            Scope::of_patch("mail"),
            Scope::of_compensation("charge"),
            Scope::of_saga("charge"),
        ];
        let places = [
            0,
            8_653_391_942_123_520_000,
            5_984_726_880_006_176_768,
            8_773_303_768_948_146_176,
            2_914_915_072_994_181_120,
        ];
        assert_eq!(scopes.each_ref().map(|scope| scope.base), places);
        assert_eq!(scopes.each_ref().map(Scope::path), ["", "left/inner#2/", "", "", ""]);
    }

    #[test]
    fn engine_steps_have_fixed_keys_and_local_ordinals() {
        let mut replay = Replay::default();
        let claims = [
            replay.patched("mail").map(|(_, claim)| claim.unwrap()),
            replay.claim_undo("left/charge"),
            replay.claim_saga("left/charge"),
        ]
        .map(Result::unwrap);
        let keys = claims.each_ref().map(|claim| claim.key.as_str());
        assert_eq!(keys, ["patched[mail]", "compensate[left/charge]", "saga.compensate[left/charge]"]);
        assert_eq!(claims.map(|claim| local(claim.ordinal)), [0; 3]);
    }

    #[test]
    fn ordinal_is_compared_only_within_its_scope() {
        let base = Scope::at("left/".to_owned()).base;
        assert_eq!([0, 3].map(|place| local(base | place)), [0, 3]);
        assert_eq!([base, base | 5, 5].map(|place| is_beside(place, base | 3)), [true, true, false]);
        assert_eq!(
            [base | 2, base | 3, base | 4, 4].map(|place| is_from(place, base | 3)),
            [false, true, true, false]
        );
    }
}
