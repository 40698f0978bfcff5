//! The options that `faults` and `soak` share.

use std::time::Duration;

/// Command-line options.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Arguments {
    /// Inject faults for N seconds in each scenario
    #[arg(long, global = true, value_name = "N")]
    seconds: Option<u64>,
    /// Repeat the random choices of a run
    #[arg(long, global = true, value_name = "N")]
    seed: Option<u64>,
    /// Make N calls per second
    #[arg(long, global = true, value_name = "N")]
    pub rate: Option<u64>,
    /// Start N workers
    #[arg(long, global = true, value_name = "N")]
    pub workers: Option<usize>,
    /// Succeed although the tools of some scenarios are not installed
    #[arg(long, global = true)]
    pub allow_missing: bool,
    /// Keep histories and logs
    #[arg(long, global = true)]
    pub keep: bool,
}

impl Arguments {
    /// Returns how long to inject faults, if given.
    #[must_use]
    pub fn seconds(&self) -> Option<Duration> {
        self.seconds.map(Duration::from_secs)
    }

    /// Returns the seed from `--seed`, else from `RUNLEDGER_TEST_SEED`, else a random one.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed.or_else(runledger_tests::seed::given).unwrap_or_else(|| fastrand::u64(..))
    }
}
