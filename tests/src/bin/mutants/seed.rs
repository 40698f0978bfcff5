//! Reuses the dependencies that the workspace has built. The copy then builds only the workspace.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::Path;

use anyhow::Result;

/// A path in the `.d` file of a registry dependency. No mutant changes such a file.
const REGISTRY: &str = "/registry/src/";

/// Links the artifacts of dependencies from one target folder to a new one. Skips the workspace's
/// own artifacts.
pub fn take_over(built: &Path, fresh: &Path) -> Result<()> {
    if fresh.exists() || !built.join("deps").exists() {
        return Ok(());
    }
    for folder in [".fingerprint", "build"] {
        copy_all(&built.join(folder), &fresh.join(folder))?;
    }
    let artifacts = artifacts(&built.join("deps"))?;
    let mut of_registry: HashSet<&str> = HashSet::new();
    for name in artifacts.iter().filter(|name| name.ends_with(".d")) {
        if fs::read_to_string(built.join("deps").join(name))?.contains(REGISTRY) {
            of_registry.insert(unit(name));
        }
    }
    fs::create_dir_all(fresh.join("deps"))?;
    for name in artifacts.iter().filter(|name| of_registry.contains(unit(name))) {
        fs::hard_link(built.join("deps").join(name), fresh.join("deps").join(name))?;
    }
    Ok(())
}

fn artifacts(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

/// Returns `name-hash` for `libname-hash.rlib` and for `name-hash.d`.
fn unit(artifact: &str) -> &str {
    match artifact.split_once('.') {
        Some((stem, "d")) => stem,
        Some((stem, _)) => stem.strip_prefix("lib").unwrap_or(stem),
        None => artifact,
    }
}

/// Keeps modification times, because cargo compares them. Copies instead of links, because cargo
/// changes these files.
fn copy_all(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let copy = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &copy)?;
        } else {
            fs::copy(entry.path(), &copy)?;
            File::options().write(true).open(&copy)?.set_modified(entry.metadata()?.modified()?)?;
        }
    }
    Ok(())
}

#[test]
fn artifact_unit_name_strips_prefix_and_suffix() {
    for artifact in ["libtokio-09b2.rlib", "libtokio-09b2.rmeta", "tokio-09b2.d", "libtokio-09b2.so"] {
        assert_eq!(unit(artifact), "tokio-09b2");
    }
    assert_eq!((unit("liblibc-1.rlib"), unit("libc-1.d")), ("libc-1", "libc-1"));
}
