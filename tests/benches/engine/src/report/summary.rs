//! The README's table: one row per headline figure, with its ratios.

use std::fmt::Write;

use super::plan::{Figure, PLAN, whos};
use super::results::{Entry, Head};
use super::table::{again, made, median, name, ratio, shown};
use crate::Res;

const BEGIN: &str = "<!-- benchmarks -->";
const END: &str = "<!-- /benchmarks -->";

/// Replaces the table between the markers.
pub fn insert(readme: &str, head: &Head, entries: &[Entry]) -> Res<String> {
    let missing = || format!("the README needs the lines `{BEGIN}` and `{END}`, between which the table is");
    let (before, rest) = readme.split_once(BEGIN).ok_or_else(missing)?;
    let (_, after) = rest.split_once(END).ok_or_else(missing)?;
    Ok(format!("{before}{BEGIN}\n{}{END}{after}", table(head, entries)))
}

fn table(head: &Head, entries: &[Entry]) -> String {
    let mut text = format!(
        "{}\n\nA ratio is Runledger's value divided by the other's. The limit is the bare SQL of the same work.\n\n\
         | figure | Runledger | limit | best peer |\n|---|---|---|---|\n",
        made(head)
    );
    for figure in PLAN.iter().filter(|figure| figure.headline) {
        let Some(own) = median(entries, figure.name, "runledger", figure.value) else { continue };
        let beside = |shown_name: &str, who: &str, value: f64| {
            let mut remarks = vec![shown_name.to_owned(), ratio(entries, figure, who)];
            remarks.retain(|remark| !remark.is_empty());
            let times = if value == 0.0 { "" } else { " ×" };
            format!("{} ({}{times})", shown(value), remarks.join(", "))
        };
        let limit = median(entries, figure.name, "limit", figure.value);
        let best = best_peer(figure, entries);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {}{} | {} {} | {} | {} |",
            figure.heading(head.mode, entries),
            again(entries, figure.name).map_or_else(String::new, |again| format!(" ({again})")),
            shown(own),
            figure.unit,
            limit.map_or_else(String::new, |limit| beside("", "limit", limit)),
            best.map_or_else(String::new, |(who, value)| beside(
                &name(entries, figure.name, who),
                who,
                value
            )),
        );
    }
    text + "\nAll figures, targets and plots: [benchmarks](docs/benchmarks/README.md).\n"
}

fn best_peer(figure: &Figure, entries: &[Entry]) -> Option<(&'static str, f64)> {
    let peers = whos(figure).filter(|who| *who != "runledger" && !who.starts_with("limit"));
    let measured = peers.filter_map(|who| Some((who, median(entries, figure.name, who, figure.value)?)));
    if figure.less {
        measured.min_by(|one, other| one.1.total_cmp(&other.1))
    } else {
        measured.max_by(|one, other| one.1.total_cmp(&other.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Build;
    use crate::report::plan::{Mode, figure};
    use crate::report::results::tests::measured;

    fn head() -> Head {
        let machine = "2 cores".to_owned();
        let build = Build { commit: "c0ffee".to_owned(), dirty: false, programs: String::new() };
        let date = "2026-01-01".to_owned();
        Head { mode: Mode::Full, rounds: 3, date, machine, build: Some(build), hold: None }
    }

    #[test]
    fn summary_replaces_only_table_between_markers() {
        let entries = [
            measured(1, "drain", "limit", 100.0),
            measured(1, "drain", "runledger", 70.0),
            measured(1, "drain", "graphile_worker", 35.0),
        ];
        let readme = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = insert(&readme, &head(), &entries).unwrap();
        assert!(new.starts_with(&format!(
            "before\n{BEGIN}\nMeasured on 2026-01-01 of commit `c0ffee`, in 3 rounds, on 2 cores."
        )));
        assert!(new.ends_with(&format!("{END}\nafter\n")) && !new.contains("old"), "{new}");
        assert!(new.contains("| 70 jobs/s | 100 (0.7 ×) | 35 (`graphile_worker` "), "{new}");
        assert_eq!(insert(&new, &head(), &entries).unwrap(), new);
        assert!(insert("no markers", &head(), &entries).is_err());
    }

    #[test]
    fn remeasured_figure_states_date_and_commit() {
        let mut own = measured(1, "drain", "runledger", 1.0);
        own.again = Some("2026-02-03".to_owned());
        own.line = own.line.map(|line| line.of_commit("beef".to_owned()));
        let entries = [own, measured(1, "enqueue-8", "runledger", 1.0)];
        let new = insert(&format!("{BEGIN}\n{END}"), &head(), &entries).unwrap();
        let rows = |words: &str| new.lines().filter(|line| line.contains(words)).count();
        assert_eq!(rows("one worker process (measured alone on 2026-02-03 of commit `beef`) |"), 1);
        assert_eq!(rows("measured alone"), 1);
    }

    #[test]
    fn summary_shows_no_ratio_to_zero_value() {
        let entries = [measured(1, "drain", "runledger", 1.0), measured(1, "drain", "underway", 0.0)];
        let new = insert(&format!("{BEGIN}\n{END}"), &head(), &entries).unwrap();
        assert!(new.contains("| 0 (`underway` ") && !new.contains("inf"), "{new}");
    }

    #[test]
    fn best_peer_has_least_value_where_less_is_better() {
        let of = |name: &str| {
            let lines = [
                measured(1, name, "runledger", 1.0),
                measured(1, name, "graphile_worker", 3.0),
                measured(1, name, "dbos", 2.0),
            ];
            best_peer(figure(name).unwrap(), &lines).map(|(who, _)| who)
        };
        assert_eq!(of("latency-idle"), Some("dbos"));
        assert_eq!(of("drain"), Some("graphile_worker"));
    }
}
