//! The seed of a random test.

/// Set this variable to repeat the random choices of a test: `RUNLEDGER_TEST_SEED=7 cargo test …`.
pub const VARIABLE: &str = "RUNLEDGER_TEST_SEED";

/// Returns the number in [`VARIABLE`], or a random one, and prints it: cargo shows the output of
/// failed tests.
///
/// # Panics
/// If the variable is not a whole number.
#[must_use]
#[expect(clippy::print_stdout, reason = "a random failure that cannot be repeated is worth little")]
pub fn seed() -> u64 {
    let seed = given().unwrap_or_else(|| fastrand::u64(..));
    println!("{VARIABLE}={seed} repeats the random choices of this test");
    seed
}

/// Returns the number in [`VARIABLE`], if it is set.
///
/// # Panics
/// If the variable is not a whole number.
#[must_use]
#[expect(clippy::panic, reason = "another seed than the one that was asked for would show nothing")]
pub fn given() -> Option<u64> {
    let text = std::env::var(VARIABLE).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("`{VARIABLE}` is `{text}`: not a whole number below 2^64")))
}
