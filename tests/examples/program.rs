//! A built example as a child process.

use std::path::PathBuf;
use std::process::{Command, Output};

use runledger_tests::Fixture;

/// Returns the program of an example, which cargo builds with the tests. `crashes` is a cargo
/// example, because it needs test dependencies.
pub fn path(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap().parent().unwrap();
    let folder = if name == "crashes" { built.join("examples") } else { built.to_owned() };
    folder.join(name)
}

/// Returns the command for an example, on the fixture's database.
pub fn example(name: &str, fixture: &Fixture) -> Command {
    let path = path(name);
    assert!(path.is_file(), "{} is not built; run `cargo test --package runledger-examples`", path.display());
    let mut command = Command::new(path);
    command.env("DATABASE_URL", fixture.database.url()).env_remove("RUST_LOG");
    command
}

pub fn run(command: &mut Command) -> Ended {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { status, stdout: text(stdout), stderr: text(stderr) }
}

#[derive(Debug)]
pub struct Ended {
    pub status: std::process::ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Returns the output.
    ///
    /// # Panics
    /// If the program failed.
    pub fn output(self) -> String {
        assert!(self.status.success(), "{self:?}");
        self.stdout
    }
}
