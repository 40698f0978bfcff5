//! The jobs of this program: those that registered themselves, and those added by hand.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::client_error::ClientError;
use super::definition::{Definition, Registration};
use crate::model::name::check_name;

impl Definition {
    /// The name and the aliases.
    pub(crate) fn names(&'static self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    /// The name that it had first, and keeps for its idempotency keys.
    pub(crate) fn oldest_name(&self) -> &'static str {
        self.aliases.first().copied().unwrap_or(self.name)
    }
}

/// The jobs that registered themselves through `inventory`, in no order.
pub(crate) fn registered() -> impl Iterator<Item = &'static Definition> {
    inventory::iter::<Registration>.into_iter().map(|registration| registration.0)
}

/// Definitions by every name that their runs may have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry {
    by_name: BTreeMap<&'static str, &'static Definition>,
}

impl Registry {
    /// Collects definitions. The same one twice is no harm.
    ///
    /// # Errors
    /// An invalid name, two jobs of one name (with both places), or no job at all.
    pub(crate) fn collect(
        definitions: impl IntoIterator<Item = &'static Definition>,
    ) -> Result<Self, ClientError> {
        let mut registry = Self::default();
        for definition in definitions {
            for name in definition.names() {
                registry.add(name, definition)?;
            }
        }
        if registry.by_name.is_empty() {
            return Err(ClientError::Setup(EMPTY.to_owned()));
        }
        Ok(registry)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'static Definition> {
        self.by_name.get(name).copied()
    }

    /// Every name, aliases included, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.by_name.keys().copied()
    }

    /// Every definition, sorted by name.
    pub(crate) fn definitions(&self) -> impl Iterator<Item = &'static Definition> {
        self.by_name
            .iter()
            .filter(|(name, definition)| **name == definition.name)
            .map(|(_, definition)| *definition)
    }

    fn add(&mut self, name: &'static str, definition: &'static Definition) -> Result<(), ClientError> {
        check_name("job", name)?;
        match self.by_name.entry(name) {
            Entry::Vacant(vacant) => {
                vacant.insert(definition);
                Ok(())
            }
            // Not by address: the compiler may keep several copies of one constant.
            Entry::Occupied(other) if other.get().location == definition.location => Ok(()),
            Entry::Occupied(other) => {
                let (one, two) = (other.get().location, definition.location);
                Err(ClientError::Setup(format!(
                    "two jobs are called `{name}`: one at {one}, one at {two}; runs are stored by name, so give one of them another: \
                     `#[job(name = \"…\")]`"
                )))
            }
        }
    }
}

const EMPTY: &str = "no jobs are registered in this binary: the crate that defines them is not linked, since nothing in the program names it; add \
                     `use my_jobs as _;` to main.rs, or pass them with `App::with(jobs![…])`";
