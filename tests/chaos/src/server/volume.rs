//! A small disk that scenarios fill.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use runledger_tests::tools::Missing;
use tokio::process::Command;

/// Bytes per write.
const PIECE: usize = 64 << 10;

/// A mounted tmpfs. The server's watcher unmounts it.
#[derive(Clone, Debug)]
pub struct Volume {
    dir: PathBuf,
}

impl Volume {
    /// Mounts a tmpfs of this many megabytes for the server's account.
    pub(super) async fn mount(dir: &Path, megabytes: u64, account: Option<(u32, u32)>) -> Result<Self> {
        let lacking = |why: &str| Missing {
            what: format!("small disk to fill ({why})"),
            remedy: "run as root where mounting a tmpfs is allowed",
        };
        let Some((uid, gid)) = account else { bail!(lacking("only root may mount one")) };
        fs::create_dir_all(dir)?;
        let options = format!("size={megabytes}m,mode=0700,uid={uid},gid={gid}");
        let mut command = Command::new("mount");
        let output = command.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(dir).output().await?;
        if !output.status.success() {
            bail!(lacking(String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(Self { dir: dir.to_owned() })
    }

    /// Fills the volume to the last byte.
    ///
    /// # Errors
    /// A write failed for another reason than a full volume.
    pub fn fill(&self) -> Result<()> {
        let mut file = File::options().create(true).append(true).open(self.ballast())?;
        let mut piece = vec![0; PIECE];
        while !piece.is_empty() {
            match file.write(&piece) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => piece.truncate(piece.len() / 2),
                Err(error) => return Err(error).context("write the ballast"),
            }
        }
        Ok(())
    }

    /// Deletes what filled the volume.
    ///
    /// # Errors
    /// The file cannot be deleted.
    pub fn free(&self) -> Result<()> {
        Ok(fs::remove_file(self.ballast())?)
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn ballast(&self) -> PathBuf {
        self.dir.join("ballast")
    }
}
