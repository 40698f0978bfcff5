//! The compiler's messages for misuse. `TRYBUILD=overwrite cargo test --test ui` rewrites them.

#[test]
#[cfg_attr(not(pinned_rustc), ignore = "the messages are those of another rustc; see `PINNED` in build.rs")]
fn every_misuse_gives_expected_compiler_message() {
    trybuild::TestCases::new().compile_fail("cases/*.rs");
}
