//! The values that the app provides to bodies, by type.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

/// The provided values, at most one per type.
#[derive(Clone, Default)]
pub(crate) struct Provided {
    values: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

impl Provided {
    /// Adds a value, and replaces an earlier one of the same type.
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: Arc<T>) {
        self.values.insert(TypeId::of::<T>(), value);
    }

    pub(crate) fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.values.get(&TypeId::of::<T>()).cloned()?.downcast().ok()
    }

    pub(crate) fn has(&self, id: TypeId) -> bool {
        self.values.contains_key(&id)
    }
}

impl std::fmt::Debug for Provided {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Provided({})", self.values.len())
    }
}
