//! The targets, and whether a report meets them.

use super::plan::{Figure, Value, figure};
use super::results::Entry;
use super::table::{median, shown, times};

/// A target for a figure.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// A bound on the figure's value.
    AtLeast(f64),
    AtMost(f64),
    /// A bound on another number of the same lines, with its label.
    BesideAtMost(&'static str, Value, f64),
    /// At least this multiple of another contender's value. Only for figures where more is better.
    OfWho(&'static str, f64),
    /// At least this multiple of the engine's own value of another figure.
    OfFigure(&'static str, f64),
}

impl Target {
    pub fn text(&self, of: &Figure) -> String {
        match *self {
            Self::AtLeast(least) => format!("≥ {} {}", shown(least), of.unit),
            Self::AtMost(most) => format!("≤ {} {}", shown(most), of.unit),
            Self::BesideAtMost(what, _, most) => format!("{what} ≤ {}", shown(most)),
            Self::OfWho(who, least) => format!("≥ {} of {who}", share(least)),
            Self::OfFigure(other, least) => format!("≥ {} of {other}", share(least)),
        }
    }

    /// Whether the target is met. `None` if a value is missing.
    pub fn met(&self, of: &Figure, entries: &[Entry]) -> Option<bool> {
        let own = |figure: &Figure, value| median(entries, figure.name, "runledger", value);
        match *self {
            Self::AtLeast(least) => Some(own(of, of.value)? >= least),
            Self::AtMost(most) => Some(own(of, of.value)? <= most),
            Self::BesideAtMost(_, value, most) => Some(own(of, value)? <= most),
            Self::OfWho(who, least) => {
                Some(times(entries, (of.name, "runledger"), (of.name, who), of.value)? >= least)
            }
            Self::OfFigure(other, least) => {
                let other = figure(other)?;
                let ours = |figure: &'static str| (figure, "runledger");
                Some(times(entries, ours(of.name), ours(other.name), of.value)? >= least)
            }
        }
    }
}

/// Formats a whole ratio as a multiple, others as a fraction.
fn share(ratio: f64) -> String {
    if ratio.fract() == 0.0 { format!("{ratio:.0} ×") } else { shown(ratio) }
}

/// Formats the targets of a figure, each with its verdict.
pub fn sentence(of: &Figure, entries: &[Entry]) -> Option<String> {
    let each = of.targets.iter().map(|target| {
        let verdict = match target.met(of, entries) {
            Some(true) => "met",
            Some(false) => "**not met**",
            None => "not measured",
        };
        format!("{}: {verdict}", target.text(of))
    });
    let all: Vec<String> = each.collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::results::tests::measured;

    #[test]
    fn target_is_met_at_bound_and_unknown_without_both_values() {
        let drain = figure("drain").unwrap();
        let target = Target::OfWho("limit", 0.5);
        let own = measured(1, "drain", "runledger", 50.0);
        assert_eq!(target.met(drain, std::slice::from_ref(&own)), None);
        assert_eq!(target.met(drain, &[own.clone(), measured(1, "drain", "limit", 100.0)]), Some(true));
        assert_eq!(target.met(drain, &[own, measured(1, "drain", "limit", 101.0)]), Some(false));
    }

    #[test]
    fn target_may_refer_to_another_figure() {
        let flat = figure("backlog-1m").unwrap();
        let lines =
            [measured(1, "backlog-20k", "runledger", 100.0), measured(1, "backlog-1m", "runledger", 84.0)];
        assert_eq!(sentence(flat, &lines).unwrap(), "≥ 0.85 of backlog-20k: **not met**");
    }

    #[test]
    fn upper_bound_target_treats_less_as_better() {
        let idle = figure("latency-idle").unwrap();
        let lines = [measured(1, "latency-idle", "runledger", 1.2)];
        assert_eq!(sentence(idle, &lines).unwrap(), "≤ 1.5 ms: met; p99 ≤ 10: **not met**");
    }
}
