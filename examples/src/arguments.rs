//! The command line of the quickstart.

use std::path::{Path, PathBuf};

/// The usage text of the quickstart.
pub const USAGE: &str = "usage: cargo quickstart [FOLDER] [--crash-after N] [--fresh]

  FOLDER           the folder to survey; this repository by default
  --crash-after N  kill this process (SIGKILL) as soon as it has recorded N steps
  --fresh          forget an unfinished survey of the folder and begin a new one";

/// The arguments of the quickstart.
#[derive(Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The folder, absolute and without links.
    pub folder: PathBuf,
    /// The process kills itself after this many recorded steps.
    pub crash_after: Option<u64>,
    /// Whether to cancel an unfinished survey and start a new one.
    pub fresh: bool,
}

impl Arguments {
    /// Parses the arguments of this process.
    ///
    /// # Errors
    /// A message that says what is wrong, with the usage text.
    pub fn of_process() -> Result<Self, String> {
        Self::parse(std::env::args_os().skip(1))
    }

    fn parse(words: impl Iterator<Item = std::ffi::OsString>) -> Result<Self, String> {
        let mut words = words;
        let (mut folder, mut crash_after, mut fresh) = (None, None, false);
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("--crash-after") => {
                    let number = words.next().unwrap_or_default();
                    let number = number.to_str().and_then(|number| number.parse().ok());
                    crash_after = Some(number.ok_or_else(|| {
                        format!(
                            "`--crash-after` needs a number of steps, such as `--crash-after 60`\n\n{USAGE}"
                        )
                    })?);
                }
                Some("--fresh") => fresh = true,
                Some(option) if option.starts_with('-') => {
                    return Err(format!("there is no option `{option}`\n\n{USAGE}"));
                }
                _ if folder.is_some() => return Err(format!("only one folder can be surveyed\n\n{USAGE}")),
                _ => folder = Some(PathBuf::from(word)),
            }
        }
        let folder = folder.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
        Ok(Self { folder: checked(&folder)?, crash_after, fresh })
    }
}

fn checked(folder: &Path) -> Result<PathBuf, String> {
    let shown = folder.display();
    let found = folder
        .canonicalize()
        .map_err(|error| format!("the folder `{shown}` cannot be surveyed: {error}; name one that exists"))?;
    if found.is_dir() {
        return Ok(found);
    }
    Err(format!("`{shown}` is not a folder; name the folder that it is in"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Arguments, String> {
        Arguments::parse(words.iter().map(Into::into))
    }

    #[test]
    fn invalid_command_line_is_refused_with_its_fault() {
        for (words, said) in [
            (&["--crash-after"][..], "needs a number of steps"),
            (&["--crash-after", "soon"], "needs a number of steps"),
            (&["--crash-afetr", "5"], "no option `--crash-afetr`"),
            (&["/", "/"], "only one folder"),
            (&["/no/such/folder"], "`/no/such/folder` cannot be surveyed"),
            (&["/etc/passwd"], "`/etc/passwd` is not a folder"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(said), "{words:?} gave: {error}");
        }
    }

    #[test]
    fn default_folder_is_this_repository() {
        let arguments = parse(&["--crash-after", "7"]).unwrap();
        assert!(arguments.folder.join("examples/src/arguments.rs").is_file());
        assert_eq!((arguments.crash_after, arguments.fresh), (Some(7), false));
    }
}
