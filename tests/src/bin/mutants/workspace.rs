//! The sources, their copy with a mutant, and the tests that run in either.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use runledger_tests::PATIENCE_VARIABLE;
use rustix::process::{Pid, Signal, kill_process_group};

use super::mutant::{Edit, Mutant, program};
use super::seed;

/// Limit for one test with a mutant. No test takes longer, even on a slow machine.
///
/// A hang says nothing about the checks. A test whose mutant can hang has its own, shorter limit.
const PATIENCE: Duration = Duration::from_secs(180);

/// Limit for one wait inside a test, because a mutant may prevent the awaited event. The tests also
/// pass with this limit in the original sources.
const WAITS: Duration = Duration::from_secs(30);

/// Folders that are not copied: build results, history, and folders without sources.
const LEFT_OUT: &[&str] = &["target", ".git", "node_modules"];

/// The result of a test.
pub enum Tested {
    /// The test passed.
    Green,
    /// An assertion failed. Holds the first line of its message.
    Red(String),
    /// The test returned an error, or ended in another way without a failed assertion.
    Broken(String),
    /// The test did not end within this time.
    Hung(Duration),
}

/// The original sources or their copy.
pub struct Workspace {
    source: PathBuf,
    target: PathBuf,
    /// Whether builds are incremental: they then compile only the functions that a mutant changes.
    is_incremental: bool,
}

/// A mutant in the copy. Dropping this value restores the copy.
pub struct Applied<'a> {
    workspace: &'a Workspace,
    originals: Vec<(&'static str, String)>,
}

impl Workspace {
    /// Returns the original sources.
    pub fn origin() -> Result<Self> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("the tests are no member of a workspace")?
            .to_path_buf();
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| source.join("target"), PathBuf::from);
        Ok(Self { source, target, is_incremental: false })
    }

    /// Updates the copy. An unchanged file keeps its modification time, so cargo does not rebuild
    /// it.
    pub fn copy(&self) -> Result<Self> {
        let root = self.target.join("mutants");
        let copy = Self { source: root.join("source"), target: root.join("target"), is_incremental: true };
        seed::take_over(&self.target.join("debug"), &copy.target.join("debug"))?;
        copy_changed(&self.source, &copy.source)?;
        remove_strangers(&copy.source, &self.source)?;
        Ok(copy)
    }

    /// Checks that the mutant fits the sources: see [`Mutant::check`].
    pub fn check(&self, mutant: &Mutant) -> Result<()> {
        mutant.check(&self.source)
    }

    /// Applies a checked mutant.
    pub fn apply(&self, mutant: &Mutant) -> Result<Applied<'_>> {
        let mut applied = Applied { workspace: self, originals: Vec::new() };
        for Edit { file, old, new } in mutant.edits {
            let path = self.source.join(file);
            let text = fs::read_to_string(&path)?;
            fs::write(&path, text.replacen(old, new, 1))?;
            applied.originals.push((file, text));
        }
        Ok(applied)
    }

    /// Builds the test programs.
    pub fn build(&self, tests: &[&'static str]) -> Result<()> {
        let mut programs: Vec<&str> = tests.iter().map(|test| program(test).0).collect();
        programs.sort_unstable();
        programs.dedup();
        let output = self.cargo(&programs).args(["--no-run", "--quiet"]).output()?;
        if !output.status.success() {
            bail!("`{}` does not build:\n{}", self.source.display(), String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// Runs one test.
    pub fn test(&self, test: &'static str) -> Result<Tested> {
        let (program, test) = program(test);
        let mut child = self
            .cargo(&[program])
            .args(["--quiet", "--", "--include-ignored", "--exact", test])
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let mut out = child.stdout.take().context("cargo has no output")?;
        let reader = thread::spawn(move || {
            let mut text = String::new();
            // Output that is not UTF-8 does not explain a failure.
            let _ = out.read_to_string(&mut text);
            text
        });
        let began = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if began.elapsed() > PATIENCE {
                // Kills cargo and the test. The processes of the test stop when their input ends.
                let group =
                    Pid::from_raw(i32::try_from(child.id())?).context("no process has the number 0")?;
                kill_process_group(group, Signal::KILL)?;
                child.wait()?;
                return Ok(Tested::Hung(PATIENCE));
            }
            thread::sleep(Duration::from_millis(50));
        };
        let text = reader.join().unwrap_or_default();
        ensure!(text.contains("1 test"), "there is no test `{test}`");
        Ok(if status.success() { Tested::Green } else { failed(&text) })
    }

    fn cargo(&self, programs: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command
            .args(["test", "--locked", "--workspace"])
            .args(programs.iter().flat_map(|program| ["--test", program]))
            .current_dir(&self.source)
            .env("CARGO_TARGET_DIR", &self.target)
            .env(PATIENCE_VARIABLE, WAITS.as_secs().to_string());
        if self.is_incremental {
            command.env("CARGO_INCREMENTAL", "1");
        }
        command
    }
}

impl Drop for Applied<'_> {
    fn drop(&mut self) {
        // Newest first, because several edits may change one file.
        for (file, text) in self.originals.iter().rev() {
            // If this fails, the copy differs from its origin. The next call of `copy` repairs it.
            let _ = fs::write(self.workspace.source.join(file), text);
        }
    }
}

/// Explains how a test failed: by the first lines after a panic, or by the error that it returned.
fn failed(output: &str) -> Tested {
    let short = |line: &str| line.chars().take(200).collect::<String>();
    let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let panicked = lines.iter().position(|line| line.contains("panicked at"));
    let error = lines.iter().position(|line| line.starts_with("Error:"));
    match (panicked, error) {
        (Some(at), _) => {
            Tested::Red(short(&lines[at + 1..].iter().take(3).copied().collect::<Vec<_>>().join(" | ")))
        }
        (None, Some(at)) => Tested::Broken(short(lines[at])),
        (None, None) => Tested::Broken("it failed and does not say why".to_owned()),
    }
}

fn copy_changed(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if LEFT_OUT.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy_changed(&path, &copy)?;
        } else if fs::read(&path).ok() != fs::read(&copy).ok() {
            fs::write(&copy, fs::read(&path)?)?;
        }
    }
    Ok(())
}

/// Deletes files that the origin no longer has.
fn remove_strangers(copy: &Path, origin: &Path) -> Result<()> {
    for entry in fs::read_dir(copy)? {
        let entry = entry?;
        let original = origin.join(entry.file_name());
        if !original.exists() {
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        } else if entry.file_type()?.is_dir() {
            remove_strangers(&entry.path(), &original)?;
        }
    }
    Ok(())
}
