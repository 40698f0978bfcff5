//! Parses `--name value` pairs and refuses the parameters that the measurement does not read.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::Res;

/// The parameters of a measurement.
#[derive(Debug, Default)]
pub struct Arguments {
    given: BTreeMap<String, u64>,
    used: RefCell<BTreeMap<String, u64>>,
}

impl Arguments {
    /// Parses `--name value` pairs of numbers.
    pub fn parse(arguments: &[String]) -> Res<Self> {
        let mut given = BTreeMap::new();
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { return Err(format!("`{}` has no value", pair[0]).into()) };
            let name = name.strip_prefix("--").ok_or_else(|| format!("`{name}` should begin with `--`"))?;
            let value = value.parse().map_err(|_| format!("`--{name} {value}`: not a whole number"))?;
            given.insert(name.to_owned(), value);
        }
        Ok(Self { given, used: RefCell::default() })
    }

    /// Returns a parameter or its default, and marks it as used.
    pub fn get(&self, name: &str, default: u64) -> u64 {
        let value = self.given.get(name).copied().unwrap_or(default);
        self.used.borrow_mut().insert(name.to_owned(), value);
        value
    }

    /// Like [`get`](Self::get), as a `usize`.
    pub fn count(&self, name: &str, default: u64) -> usize {
        usize::try_from(self.get(name, default)).unwrap_or(usize::MAX)
    }

    /// Returns the parameters that the measurement read, with their values.
    pub fn used(&self) -> BTreeMap<String, u64> {
        self.used.borrow().clone()
    }

    /// Refuses parameters that the figure does not read: after a typo it would measure something
    /// else.
    pub fn check_all_used(&self) -> Res<()> {
        let known: BTreeSet<String> = self.used.borrow().keys().cloned().collect();
        match self.given.keys().find(|name| !known.contains(*name)) {
            Some(name) => Err(format!("the figure has no `--{name}`; it has {known:?}").into()),
            None => Ok(()),
        }
    }
}
