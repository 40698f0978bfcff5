//! Tells the tests whether the compiler is the one whose messages are in `cases/`. Each version
//! words and draws its own errors slightly differently. With any other version the test is ignored,
//! with the reason.

use std::env;
use std::process::Command;

/// The version that wrote the messages. When you raise it, rewrite the messages and review them.
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
