//! `cargo quickstart` compiles the same packages as a user's program, and no test packages.

use std::process::Command;

use super::source::root;

/// 141 when this was written. A dozen more would noticeably slow the first build.
const MOST_CRATES: usize = 150;

/// Returns the packages that `cargo quickstart` compiles, as `runledger v0.1.0
/// (/folder)|default,dev,worker`.
fn compiled() -> Vec<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "tree",
        "--locked",
        "--offline",
        "-p",
        "runledger-examples",
        "-e",
        "normal",
        "--prefix",
        "none",
    ]);
    let output = cargo.args(["--no-dedupe", "-f", "{p}|{f}"]).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut packages: Vec<String> =
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    packages.sort();
    packages.dedup();
    packages
}

#[test]
fn quickstart_compiles_no_test_crate_and_no_fault_points() {
    let packages = compiled();
    let tests: Vec<_> = packages.iter().filter(|package| package.starts_with("runledger-tests")).collect();
    assert!(tests.is_empty(), "{tests:?}");
    let engine = packages.iter().find(|package| package.starts_with("runledger v")).unwrap();
    assert_eq!(engine.split('|').next_back(), Some("default,dev,worker"), "{engine}");
    assert!(packages.len() <= MOST_CRATES, "{} crates", packages.len());
}

/// Cargo builds an example with the dev-dependencies, but a program without them.
#[test]
fn quickstart_alias_runs_program_of_examples_package() {
    let config = std::fs::read_to_string(root().join(".cargo/config.toml")).unwrap();
    let alias = config.lines().find(|line| line.starts_with("quickstart = ")).unwrap();
    assert!(alias.contains("--package runledger-examples --bin quickstart"), "{alias}");
}
