//! Handles `--help` for every example.
#![expect(clippy::print_stdout, reason = "the help is what was asked for")]

/// Prints `usage` if the command line asks for help. If it returns true, the program should exit.
#[must_use]
pub fn helped(usage: &str) -> bool {
    let asks = std::env::args_os().skip(1).any(|word| word == "--help" || word == "-h");
    if asks {
        println!("{usage}");
    }
    asks
}
