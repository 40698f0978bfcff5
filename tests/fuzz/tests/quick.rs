//! The properties of the fuzz targets over the corpus, over inputs near it, and over random bytes.
//! Takes a second or two, with the same inputs in every run.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs;
use std::path::Path;

use fuzzed::TARGETS;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngSeed, TestRunner};

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// An entry of the corpus with some bytes replaced and the end of another entry appended.
fn near(corpus: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<Index>(), any::<u8>()), 0..4);
    (select(corpus.clone()), changes, select(corpus), any::<Index>()).prop_map(
        |(mut input, changes, other, cut)| {
            for (place, byte) in changes {
                if !input.is_empty() {
                    let place = place.index(input.len());
                    input[place] = byte;
                }
            }
            input.extend_from_slice(&other[cut.index(other.len() + 1)..]);
            input
        },
    )
}

fn holds(target: &str, cases: u32) {
    let (_, check) = TARGETS.into_iter().find(|(name, _)| *name == target).unwrap();
    let corpus = corpus(target);
    corpus.iter().for_each(|input| check(input));
    let config =
        Config { cases, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Config::default() };
    let inputs = prop_oneof![3 => near(corpus), 1 => vec(any::<u8>(), 0..200)];
    let result = TestRunner::new(config).run(&inputs, |input| {
        check(&input);
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn durations_are_parsed_to_milliseconds_or_refused() {
    holds("durations", 500);
}

#[test]
fn accepted_names_and_keys_are_within_limits() {
    holds("names", 150);
}

#[test]
fn macro_options_always_expand_to_valid_rust() {
    holds("options", 300);
}

#[test]
fn stored_payload_decodes_to_same_value() {
    holds("payload", 5_000);
}

#[test]
fn replay_ends_and_delivers_previously_seen_results() {
    holds("records", 1_000);
}

#[test]
fn sealed_payload_opens_unchanged_only_at_its_place() {
    holds("sealed", 2_000);
}

#[test]
fn every_target_has_corpus_and_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (target, _) in TARGETS {
        assert!(!corpus(target).is_empty(), "{target}");
        assert!(folder.join("targets/fuzz_targets").join(format!("{target}.rs")).exists(), "{target}");
    }
}
