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
