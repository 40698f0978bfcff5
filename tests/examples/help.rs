//! `--help` of every example.

use std::process::Command;

use crate::program::path;

#[test]
fn help_flag_prints_usage_and_succeeds_without_database() {
    let sources = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap();
    let mut n_examples = 0;
    for source in sources {
        let source = source.unwrap().path();
        let name = source.file_stem().unwrap().to_str().unwrap();
        for flag in ["--help", "-h"] {
            // This database does not exist: `--help` must not connect.
            let mut command = Command::new(path(name));
            let output = command
                .arg(flag)
                .env("DATABASE_URL", "postgres://nobody@localhost:1/nowhere")
                .output()
                .unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success() && said.starts_with("usage: cargo "), "{name} {flag}: {said}");
        }
        n_examples += 1;
    }
    assert!(n_examples >= 10, "{n_examples}");
}
