//! Names, `--name value` pairs and `--flags`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Flags, which have no value.
const FLAGS: [&str; 2] = ["allow-missing", "keep"];

/// Pairs, whose value is a whole number.
const NUMBERS: [&str; 4] = ["seconds", "seed", "rate", "workers"];

/// What a command was called with.
#[derive(Debug, Default)]
pub struct Arguments {
    /// What stands by itself.
    pub names: Vec<String>,
    numbers: BTreeMap<String, u64>,
    flags: Vec<String>,
}

impl Arguments {
    /// Reads the arguments after the command.
    ///
    /// # Errors
    /// Where one is unknown or lacks its value: a misspelt one would run something else.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut parsed = Self::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let Some(option) = argument.strip_prefix("--") else {
                parsed.names.push(argument);
                continue;
            };
            if FLAGS.contains(&option) {
                parsed.flags.push(option.to_owned());
            } else if NUMBERS.contains(&option) {
                let value = arguments.next().with_context(|| format!("`--{option}` has no value"))?;
                let number =
                    value.parse().with_context(|| format!("`--{option} {value}`: not a whole number"))?;
                parsed.numbers.insert(option.to_owned(), number);
            } else {
                bail!(
                    "there is no `--{option}`; there are --{} and --{}",
                    NUMBERS.join(" N, --"),
                    FLAGS.join(", --")
                );
            }
        }
        Ok(parsed)
    }

    /// A number, if it was given.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        self.numbers.get(name).copied()
    }

    /// For how long, if it was said.
    #[must_use]
    pub fn seconds(&self) -> Option<Duration> {
        self.number("seconds").map(Duration::from_secs)
    }

    /// The seed, from `--seed`, or else `RUNLEDGER_TEST_SEED`, or else random.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.number("seed").or_else(runledger_tests::seed::given).unwrap_or_else(|| fastrand::u64(..))
    }

    /// Whether a flag was given.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|given| given == flag)
    }
}

#[test]
fn names_pairs_and_flags_may_be_mixed_and_nothing_unknown_goes_by() -> Result<()> {
    let parse = |line: &str| Arguments::parse(line.split_whitespace().map(str::to_owned));
    let arguments = parse("kill-nine --seconds 120 --keep zombies --seed 7")?;
    assert_eq!(arguments.names, ["kill-nine", "zombies"]);
    assert_eq!((arguments.seconds(), arguments.seed()), (Some(Duration::from_secs(120)), 7));
    assert!(arguments.has("keep") && !arguments.has("allow-missing"));
    for wrong in ["--second 5", "--seconds", "--seconds x"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
    Ok(())
}
