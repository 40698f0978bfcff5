//! Golden files: expected texts to compare with. `RUNLEDGER_UPDATE_GOLDEN=1` rewrites them, so that
//! a person can review the difference.

use std::path::Path;
use std::{env, fs};

/// Compares `is` with the golden file of this name. Writes the file if `RUNLEDGER_UPDATE_GOLDEN` is
/// set.
///
/// # Panics
/// If they differ. Names the first line that differs.
#[expect(clippy::panic, reason = "an assertion of tests")]
pub fn check(name: &str, is: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if env::var_os("RUNLEDGER_UPDATE_GOLDEN").is_some() {
        fs::write(&path, is)
            .unwrap_or_else(|error| panic!("`{}` cannot be written: {error}", path.display()));
        return;
    }
    let was = fs::read_to_string(&path).unwrap_or_default();
    if was == is {
        return;
    }
    let n_equal = was.lines().zip(is.lines()).take_while(|(was, is)| was == is).count();
    panic!(
        "`{}` differs at line {}: it was `{}` and is `{}`; if that is meant, run again with RUNLEDGER_UPDATE_GOLDEN=1 and read the difference",
        path.display(),
        n_equal + 1,
        was.lines().nth(n_equal).unwrap_or_default(),
        is.lines().nth(n_equal).unwrap_or_default(),
    );
}
