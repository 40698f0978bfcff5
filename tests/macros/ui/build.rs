//! Tells the tests whether this is the compiler whose messages the files of cases/ hold: each version words and
//! draws its own errors a little differently. On any other, their test is shown as ignored, with the reason.

use std::env;
use std::process::Command;

/// The version with which the messages were written. Who raises it writes them anew and reads them.
const PINNED: &str = "rustc 1.95.";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(pinned_rustc)");
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().map(|output| output.stdout);
    if version.is_ok_and(|version| version.starts_with(PINNED.as_bytes())) {
        println!("cargo::rustc-cfg=pinned_rustc");
    }
}
