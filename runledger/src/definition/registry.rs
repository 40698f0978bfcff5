//! The jobs of this program: the self-registered ones, and those that were added by hand.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::{Definition, Registration};
use crate::connection::client_error::ClientError;
use crate::model::run::name::check_job_name;
use crate::model::run::overrides::JobOverrides;
use crate::model::run::settle::RetryPolicy;
use crate::model::run::version::{FIRST, stored_name};
use crate::store::operator::config::Configs;
use crate::store::operator::overrides::StoredOverrides;

impl Definition {
    /// The name and the aliases.
    pub(crate) fn names(&'static self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    /// The first name of the job. Idempotency keys and step keys keep it, so programs from before
    /// and after a rename agree.
    pub(crate) fn oldest_name(&self) -> &'static str {
        self.aliases.first().copied().unwrap_or(self.name)
    }
}

/// The jobs that registered themselves through `inventory`, in no particular order.
pub(crate) fn registered() -> impl Iterator<Item = &'static Definition> {
    inventory::iter::<Registration>.into_iter().map(|registration| registration.0)
}

/// The code of this program for a job name, and the name of such runs in the database.
///
/// With a version, this is the code of that version, or the oldest code that accepts it. Without
/// one, it is the newest code.
pub(crate) fn named(name: &str, version: Option<u32>) -> Option<(&'static Definition, Cow<'static, str>)> {
    let of_name = || registered().filter(|definition| definition.names().any(|its| its == name));
    let Some(version) = version else {
        let newest = of_name().max_by_key(|definition| definition.version)?;
        return Some((newest, newest.stored_name()));
    };
    let own = of_name().find(|definition| definition.version == version);
    let accepting = || of_name().filter(|definition| definition.accepts.contains(&version));
    let serving = own.or_else(|| accepting().min_by_key(|definition| definition.version))?;
    Some((serving, stored_name(serving.name, version)))
}

/// All names of a job that this program knows, including `name`.
pub(crate) fn names_of(name: &str) -> BTreeSet<String> {
    let of_name = registered().filter(|definition| definition.names().any(|its| its == name));
    let others = of_name.flat_map(Definition::names).map(ToOwned::to_owned);
    others.chain([name.to_owned()]).collect()
}

/// Definitions by every name that their runs may be stored under.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry {
    by_name: BTreeMap<Cow<'static, str>, &'static Definition>,
    /// The overrides that this worker has read, by any name of the job.
    overrides: Arc<RwLock<BTreeMap<String, JobOverrides>>>,
    /// The configurations that this worker has read.
    configs: Arc<RwLock<Arc<Configs>>>,
}

impl Registry {
    /// Collects definitions, and the built-in ones of the engine. Duplicates of one definition are
    /// accepted.
    ///
    /// If one definition has a version and another accepts it, the first serves its runs. If
    /// several accept a version, the oldest of them serves it, because it is the nearest.
    ///
    /// # Errors
    /// An invalid name; two jobs with one name and version (with both places); versions of one job
    /// with different oldest names, whose idempotency keys would not match; or no job at all.
    pub(crate) fn collect(
        definitions: impl IntoIterator<Item = &'static Definition>,
        built_in: impl IntoIterator<Item = &'static Definition>,
    ) -> Result<Self, ClientError> {
        let mut registry = Self::default();
        let mut accepting: Vec<&'static Definition> = Vec::new();
        for definition in definitions {
            for name in definition.names() {
                check_job_name(name)?;
                registry.check_key(name, definition)?;
                registry.add(name, definition)?;
            }
            accepting.extend((!definition.accepts.is_empty()).then_some(definition));
        }
        accepting.sort_by_key(|definition| definition.version);
        for definition in accepting {
            for name in definition.names() {
                for version in definition.accepts {
                    registry.by_name.entry(stored_name(name, *version)).or_insert(definition);
                }
            }
        }
        if registry.by_name.is_empty() {
            return Err(ClientError::Config(EMPTY.to_owned()));
        }
        for definition in built_in {
            registry.add(definition.name, definition)?;
        }
        Ok(registry)
    }

    /// The code that serves the runs with this stored name.
    pub(crate) fn get(&self, stored: &str) -> Option<&'static Definition> {
        self.by_name.get(stored).copied()
    }

    /// Replaces all overrides.
    pub(crate) fn set_overrides(&self, said: Vec<StoredOverrides>) {
        let said = said.into_iter().map(|StoredOverrides { job, overrides, .. }| (job, overrides)).collect();
        *self.overrides.write().unwrap_or_else(PoisonError::into_inner) = said;
    }

    /// Replaces all configurations.
    pub(crate) fn configure(&self, configs: Configs) {
        *self.configs.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(configs);
    }

    /// The current configurations.
    pub(crate) fn configs(&self) -> Arc<Configs> {
        Arc::clone(&self.configs.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The retry policy of a job, for calls that do not set their own.
    pub(crate) fn policy(&self, definition: &'static Definition) -> RetryPolicy {
        let own = definition.retry_policy();
        self.of_overrides(definition, |overrides| overrides.policy(own)).unwrap_or(own)
    }

    /// The timeout of a job's attempts, for calls that do not set their own.
    pub(crate) fn timeout(&self, definition: &'static Definition) -> Option<Duration> {
        self.of_overrides(definition, |overrides| overrides.timeout).flatten().or(definition.timeout)
    }

    /// Whether workers may claim runs with this stored name.
    pub(crate) fn is_enabled(&self, stored: &str) -> bool {
        let is_disabled =
            |definition| self.of_overrides(definition, |overrides| overrides.disabled.is_some());
        self.get(stored).and_then(is_disabled) != Some(true)
    }

    fn of_overrides<T>(
        &self,
        definition: &'static Definition,
        of: impl FnOnce(&JobOverrides) -> T,
    ) -> Option<T> {
        let overrides = self.overrides.read().unwrap_or_else(PoisonError::into_inner);
        if overrides.is_empty() {
            return None;
        }
        definition.names().find_map(|name| overrides.get(name)).map(of)
    }

    /// Every name of the served runs, including aliases and versions, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(AsRef::as_ref)
    }

    /// Every definition, sorted by name.
    pub(crate) fn definitions(&self) -> impl Iterator<Item = &'static Definition> {
        self.by_name
            .iter()
            .filter(|(stored, definition)| **stored == definition.stored_name())
            .map(|(_, definition)| *definition)
    }

    fn add(&mut self, name: &'static str, definition: &'static Definition) -> Result<(), ClientError> {
        match self.by_name.entry(stored_name(name, definition.version)) {
            Entry::Vacant(vacant) => {
                vacant.insert(definition);
                Ok(())
            }
            // Compares locations: the compiler may keep several copies of one constant, so
            // addresses can differ.
            Entry::Occupied(other) if other.get().location == definition.location => Ok(()),
            Entry::Occupied(other) => {
                let (one, two) = (other.get().location, definition.location);
                let (version, remedy) = match definition.version {
                    FIRST => (String::new(), "give one of them another: `#[job(name = \"…\")]`"),
                    version => (format!(" in version {version}"), "give one of them another name or version"),
                };
                Err(ClientError::Config(format!(
                    "two jobs are called `{name}`{version}: one at {one}, one at {two}; runs are stored by name, so {remedy}"
                )))
            }
        }
    }

    /// An idempotency key belongs to a job, and not to one version. All versions must have the same
    /// oldest name, which is part of the run's id.
    fn check_key(&self, name: &str, definition: &'static Definition) -> Result<(), ClientError> {
        let same = |other: &&&'static Definition| other.names().any(|its| its == name);
        let other = self.by_name.values().filter(same).find(|other| {
            other.version != definition.version && other.oldest_name() != definition.oldest_name()
        });
        match other {
            None => Ok(()),
            Some(other) => Err(ClientError::Config(format!(
                "versions {} and {} of `{name}` have different oldest names, `{}` and `{}`, so an idempotency key would make two runs of one: one is at {}, \
                 one at {}; give both the same first alias",
                other.version,
                definition.version,
                other.oldest_name(),
                definition.oldest_name(),
                other.location,
                definition.location
            ))),
        }
    }
}

const EMPTY: &str = "no jobs are registered in this binary: the crate that defines them is not linked, since nothing in the program names it; add \
                     `use my_jobs as _;` to main.rs, or pass them with `App::with(jobs![…])`";
