//! Functions and closures inside a body, and whether only steps call them.

use std::collections::HashSet;

use proc_macro2::Ident;

/// The functions and closures found so far.
#[derive(Default)]
pub(super) struct Owners {
    all: Vec<Owner>,
    /// The owner that the walk is in.
    present: Option<usize>,
    /// Each name that is used outside the bodies of steps, with the owner that uses it.
    uses: Vec<(Use, Option<usize>)>,
    /// Every name used in the bodies of steps.
    in_steps: HashSet<String>,
}

struct Owner {
    name: String,
    kind: Kind,
}

/// How a function or closure is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// By its name alone.
    Closure,
    /// By its name, or by its type and its name.
    Function,
    /// With a value before it, or by its type and its name.
    Method,
}

/// A use of a name.
pub(super) struct Use {
    pub name: String,
    pub is_call: bool,
    pub before: Before,
}

/// The syntax before a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    Nothing,
    Type,
    Module,
    Value,
}

impl Owners {
    pub(super) fn present(&self) -> Option<usize> {
        self.present
    }

    /// Starts an owner, and returns the enclosing one.
    pub(super) fn enter(&mut self, name: String, kind: Kind) -> Option<usize> {
        self.all.push(Owner { name, kind });
        self.present.replace(self.all.len() - 1)
    }

    pub(super) fn leave(&mut self, outer: Option<usize>) {
        self.present = outer;
    }

    pub(super) fn note(&mut self, used: Use) {
        self.uses.push((used, self.present));
    }

    pub(super) fn used_in_a_step(&mut self, names: impl IntoIterator<Item = Ident>) {
        self.in_steps.extend(names.into_iter().map(|name| name.to_string()));
    }

    /// For each owner, whether the bodies of steps use it and no other code calls it. An owner that
    /// only such owners call also counts.
    pub(super) fn only_in_steps(&self) -> Vec<bool> {
        let mut is_of_steps = vec![false; self.all.len()];
        loop {
            let of_steps = |owner: Option<usize>| owner.is_some_and(|owner| is_of_steps[owner]);
            let next = (0..self.all.len()).find(|place| {
                let mut uses = self.uses.iter().filter(|(used, _)| self.all[*place].is(used));
                !is_of_steps[*place]
                    && (self.in_steps.contains(&self.all[*place].name)
                        || uses.clone().any(|(_, owner)| of_steps(*owner)))
                    && uses.all(|(used, owner)| !used.is_call || of_steps(*owner) || *owner == Some(*place))
            });
            match next {
                Some(place) => is_of_steps[place] = true,
                None => return is_of_steps,
            }
        }
    }
}

impl Owner {
    fn is(&self, used: &Use) -> bool {
        let may_be = match self.kind {
            Kind::Closure => used.before == Before::Nothing,
            Kind::Function => matches!(used.before, Before::Nothing | Before::Type),
            Kind::Method => matches!(used.before, Before::Value | Before::Type),
        };
        may_be && self.name == used.name
    }
}
