//! The command line of a report.

use std::path::PathBuf;

use super::plan::{Mode, PLAN};
use super::results::{Head, Results, Wanted, wanted};
use crate::Res;

/// The default number of rounds of a full report.
const ROUNDS: usize = 3;

#[derive(Debug, clap::Args)]
pub struct Settings {
    /// Measure small sizes once, in about an hour
    #[arg(long)]
    quick: bool,
    /// Measure tiny sizes once, only to see that everything runs
    #[arg(long, conflicts_with = "quick")]
    smoke: bool,
    /// Number of rounds [default: 3; 1 with `--quick` or `--smoke`]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Measure these figures, or families of figures, again
    #[arg(long, value_name = "FIGURE", num_args = 1.., value_parser = known)]
    pub only: Vec<String>,
    /// Folder for the page, the plots and the results
    #[arg(long, value_name = "PATH", default_value = "docs/benchmarks")]
    pub folder: PathBuf,
    /// File whose benchmark table to rewrite
    #[arg(long, value_name = "PATH", default_value = "README.md")]
    pub readme: PathBuf,
    /// Hold snapshots for this many seconds
    #[arg(long, value_name = "SECONDS")]
    pub hold: Option<u64>,
    /// Discard existing results and start over
    #[arg(long)]
    anew: bool,
    /// Program that measures the peers [default: found where cargo builds it]
    #[arg(long, value_name = "PATH")]
    pub peers: Option<PathBuf>,
}

fn known(figure: &str) -> Result<String, String> {
    let figure = figure.to_owned();
    if wanted(1, std::slice::from_ref(&figure)).is_empty() {
        let names: Vec<&str> = PLAN.iter().map(|figure| figure.name).collect();
        return Err(format!("there are {}", names.join(", ")));
    }
    Ok(figure)
}

impl Settings {
    /// Finds the program that measures the peers, unless it was named.
    pub fn find_peers(&mut self) -> Res<()> {
        let own = PathBuf::from("tests/benches/peers/target/release/runledger-peers");
        let beside = std::env::current_exe()?.with_file_name("runledger-peers");
        let built = || [own, beside].into_iter().find(|program| program.exists());
        self.peers = self.peers.take().or_else(built);
        Ok(())
    }

    pub fn mode(&self) -> Mode {
        match (self.smoke, self.quick) {
            (true, _) => Mode::Smoke,
            (_, true) => Mode::Quick,
            _ => Mode::Full,
        }
    }

    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.mode() == Mode::Full { ROUNDS } else { 1 })
    }

    /// Returns the results to add to, and what to measure.
    ///
    /// - `--only` measures figures again into the existing results, with the sizes of those
    ///   results.
    /// - A whole report continues an interrupted one of the same mode, rounds, hold and machine.
    ///   Otherwise it starts over.
    /// - A whole report fails if the interrupted one used another build: half of it would describe
    ///   other programs.
    pub fn results(&self, head: Head) -> Res<(Results, Vec<Wanted>)> {
        let path = self.folder.join("results.jsonl");
        let is_same = |old: &Head| {
            (old.mode, old.rounds, old.hold, &old.machine)
                == (head.mode, head.rounds, head.hold, &head.machine)
        };
        match Results::read(&path).filter(|_| !self.anew) {
            Some(mut old) if !self.only.is_empty() => {
                let differs = old.head.machine != head.machine
                    || (self.mode() != Mode::Full && self.mode() != old.head.mode);
                if differs {
                    return Err(
                        "the results there are of another machine, or of a report of another size: leave the size out, or name another `--folder`"
                            .into(),
                    );
                }
                let again = wanted(self.rounds.unwrap_or(old.head.rounds), &self.only);
                old.forget(&again)?;
                Ok((old, again))
            }
            Some(mut old) if is_same(&old.head) && !old.missing(&[]).is_empty() => {
                if old.head.build != head.build {
                    return Err(
                        "the results there are of another build, and are not complete: `--anew` begins anew"
                            .into(),
                    );
                }
                old.forget(&[])?;
                let missing = old.missing(&[]);
                Ok((old, missing))
            }
            _ => {
                let results = Results::begin(&path, head)?;
                let missing = results.missing(&self.only);
                Ok((results, missing))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::results::tests::measured;

    #[derive(clap::Parser)]
    struct Report {
        #[command(flatten)]
        settings: Settings,
    }

    fn settings(words: &str) -> Res<Settings> {
        let words = std::iter::once("report").chain(words.split_whitespace());
        Ok(<Report as clap::Parser>::try_parse_from(words)?.settings)
    }

    fn head(mode: Mode) -> Head {
        Head {
            mode,
            rounds: 1,
            date: "2026-01-01".to_owned(),
            machine: "m".to_owned(),
            build: None,
            hold: None,
        }
    }

    #[test]
    fn figure_option_accepts_several_names_before_next_option() {
        let settings = settings("--only drain bulk --rounds 2").unwrap();
        assert_eq!((settings.only, settings.rounds), (vec!["drain".to_owned(), "bulk".to_owned()], Some(2)));
    }

    #[test]
    fn misspelt_setting_is_refused_with_valid_choices() {
        let refused = |words| settings(words).unwrap_err().to_string();
        assert!(refused("--only drains").contains("there are enqueue-1, "));
        assert!(refused("--rounds --quick").contains("--rounds <N>"));
        assert!(refused("--quicker").contains("--quick"));
    }

    #[test]
    fn complete_report_starts_over_and_single_figure_report_does_not() {
        let folder = std::env::temp_dir().join(format!("runledger-bench-settings-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let whole = settings(&format!("--quick --folder {}", folder.display())).unwrap();
        let (mut results, all) = whole.results(head(Mode::Quick)).unwrap();
        for wanted in &all {
            results.add(measured(wanted.round, wanted.figure, wanted.who, 1.0)).unwrap();
        }
        let one = settings(&format!("--only drain --folder {}", folder.display())).unwrap();
        let (kept, again) = one.results(head(Mode::Full)).unwrap();
        assert_eq!(kept.head.mode, Mode::Quick);
        assert!(again.iter().all(|wanted| wanted.figure == "drain"));
        assert_eq!(kept.entries.len() + again.len(), all.len());
        let (_, missing) = whole.results(head(Mode::Quick)).unwrap();
        assert_eq!(missing.len(), again.len());
        assert_eq!(whole.results(Head { machine: "n".to_owned(), ..head(Mode::Quick) }).unwrap().1, all);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn interrupted_report_does_not_resume_with_another_build() {
        let folder = std::env::temp_dir().join(format!("runledger-bench-other-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let build = |programs: &str| {
            let programs = programs.to_owned();
            Some(crate::build::Build { commit: "c".to_owned(), dirty: true, programs })
        };
        let [one, other] = ["1", "2"].map(|programs| Head { build: build(programs), ..head(Mode::Quick) });
        let whole = settings(&format!("--quick --folder {}", folder.display())).unwrap();
        let (mut results, all) = whole.results(one.clone()).unwrap();
        results.add(measured(1, all[0].figure, all[0].who, 1.0)).unwrap();
        assert_eq!(whole.results(one).unwrap().1, all[1..]);
        assert!(whole.results(other.clone()).unwrap_err().to_string().contains("--anew"));
        let anew = settings(&format!("--quick --anew --folder {}", folder.display())).unwrap();
        assert_eq!(anew.results(other).unwrap().1, all);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
