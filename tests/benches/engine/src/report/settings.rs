//! What was asked for on the command line.

use std::path::PathBuf;

use super::plan::{Mode, PLAN};
use super::results::{Head, Results, Wanted, wanted};
use crate::Res;

/// How often everything is measured, where nobody says.
const ROUNDS: usize = 3;

/// How a report is made.
#[derive(Debug)]
pub struct Settings {
    mode: Mode,
    rounds: Option<usize>,
    /// The figures, or families of figures, that are measured again. All where none is named.
    pub only: Vec<String>,
    /// Where it is written.
    pub folder: PathBuf,
    /// Where the short table is.
    pub readme: PathBuf,
    /// For how many seconds a snapshot is held, where that is not the plan's.
    pub hold: Option<u64>,
    /// Whether results that are there are left behind.
    anew: bool,
    /// The program that measures the peers, if it is built.
    pub peers: Option<PathBuf>,
}

impl Settings {
    /// Reads the words behind `report`.
    pub fn parse(arguments: &[String]) -> Res<Self> {
        let beside = std::env::current_exe()?.with_file_name("runledger-peers");
        let own = PathBuf::from("tests/benches/peers/target/release/runledger-peers");
        let mut settings = Self {
            mode: Mode::Full,
            rounds: None,
            only: Vec::new(),
            folder: "docs/benchmarks".into(),
            readme: "README.md".into(),
            hold: None,
            anew: false,
            peers: [own, beside].into_iter().find(|program| program.exists()),
        };
        let mut words = arguments.iter().peekable();
        while let Some(word) = words.next() {
            let mut value = || words.next_if(|next| !next.starts_with("--")).cloned();
            let mut needed = || value().ok_or_else(|| format!("`{word}` needs a value"));
            match word.as_str() {
                "--quick" => settings.mode = Mode::Quick,
                "--smoke" => settings.mode = Mode::Smoke,
                "--rounds" => settings.rounds = Some(needed()?.parse()?),
                "--folder" => settings.folder = needed()?.into(),
                "--readme" => settings.readme = needed()?.into(),
                "--hold" => settings.hold = Some(needed()?.parse()?),
                "--anew" => settings.anew = true,
                "--peers" => settings.peers = Some(needed()?.into()),
                "--only" => {
                    settings.only.push(needed()?);
                    settings.only.extend(std::iter::from_fn(value));
                }
                other => {
                    return Err(format!(
                        "`{other}`: there are --quick, --smoke, --rounds N, --only FIGURE…, --hold SECONDS, --anew, --folder PATH, --readme PATH and --peers PATH"
                    )
                    .into());
                }
            }
        }
        for name in &settings.only {
            if wanted(1, std::slice::from_ref(name)).is_empty() {
                let names: Vec<&str> = PLAN.iter().map(|figure| figure.name).collect();
                return Err(format!("there is no figure `{name}`; there are {}", names.join(", ")).into());
            }
        }
        Ok(settings)
    }

    /// How large a report is asked for.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// In how many rounds.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.mode == Mode::Full { ROUNDS } else { 1 })
    }

    /// The results to add to, and what to measure. Single figures are measured again into the results that there are, with their sizes. A whole
    /// report goes on where it was interrupted, if it was the same on the same machine; otherwise it begins anew. It does not go on with another
    /// build: half of it would be about other programs.
    pub fn results(&self, head: Head) -> Res<(Results, Vec<Wanted>)> {
        let path = self.folder.join("results.jsonl");
        let is_same = |old: &Head| {
            (old.mode, old.rounds, old.hold, &old.machine)
                == (head.mode, head.rounds, head.hold, &head.machine)
        };
        match Results::read(&path).filter(|_| !self.anew) {
            Some(mut old) if !self.only.is_empty() => {
                let differs = old.head.machine != head.machine
                    || (self.mode != Mode::Full && self.mode != old.head.mode);
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

    fn settings(words: &str) -> Res<Settings> {
        Settings::parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
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
    fn several_figures_can_be_named_before_the_next_setting() {
        let settings = settings("--only drain bulk --rounds 2").unwrap();
        assert_eq!((settings.only, settings.rounds), (vec!["drain".to_owned(), "bulk".to_owned()], Some(2)));
    }

    #[test]
    fn what_is_misspelt_is_refused_with_what_there_is() {
        let refused = |words| settings(words).unwrap_err().to_string();
        assert!(refused("--only drains").contains("there are enqueue-1, "));
        assert_eq!(refused("--rounds --quick"), "`--rounds` needs a value");
        assert!(refused("--fast").contains("there are --quick"));
    }

    #[test]
    fn a_complete_report_begins_anew_and_single_figures_do_not() {
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
    fn a_report_that_was_interrupted_does_not_go_on_with_another_build() {
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
