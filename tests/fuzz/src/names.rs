//! Names and keys: an accepted one fits the limits of columns and indexes, and the macros accept
//! the same names as the engine.

use std::collections::HashSet;

use runledger::model::replay::Replay;
use runledger::model::run::name::{MAX_KEY, MAX_NAME, check_key, check_name, nearest};
use runledger::model::run::request::keyed_run_id;

use crate::macros::{errors, forget_places, job, literal};

/// The longest step key: a name, a key in brackets, and its occurrence.
const LONGEST_STEP_KEY: usize = MAX_NAME + MAX_KEY + "[]#4294967295".len();

/// Interprets each line as a name and as a key.
pub fn names(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lines: Vec<&str> = text.split('\n').collect();
    for line in lines.iter().take(8) {
        a_name_is_of_the_allow_list(line);
        a_key_is_text_that_a_column_holds(line);
    }
    a_name_and_a_key_make_one_step(&lines);
    a_key_makes_one_run(&lines);
    forget_places();
}

fn a_name_is_of_the_allow_list(name: &str) {
    let is_allowed = (1..=48).contains(&name.len())
        && name.bytes().all(|byte| b"abcdefghijklmnopqrstuvwxyz0123456789_.-".contains(&byte))
        && !b"0123456789.-".contains(&name.as_bytes()[0]);
    let checked = check_name("job", name);
    assert_eq!(checked.is_ok(), is_allowed, "{name:?}: {checked:?}");
    if let Err(error) = checked {
        is_shown_in_a_line(&error.to_string());
    }
    for option in ["name", "queue"] {
        let Some(expansion) = job(&format!("{option} = {}", literal(name))) else { continue };
        assert_eq!(errors(&expansion).is_empty(), is_allowed, "the macros and the engine differ on {name:?}");
    }
    let known = ["charge", "refund", name];
    assert!(nearest(name, known).is_some_and(|near| known.contains(&near)) || name.len() > 256);
}

fn a_key_is_text_that_a_column_holds(key: &str) {
    match check_key("step key", key) {
        Ok(()) => assert!(
            (1..=MAX_KEY).contains(&key.len())
                && !key.chars().any(|c| c < ' ' || c == '\u{7f}')
                && key.chars().any(|c| !c.is_whitespace()),
            "{key:?} passes"
        ),
        Err(error) => {
            is_shown_in_a_line(&error.to_string());
            let is_plain = key.bytes().all(|byte| byte.is_ascii_graphic());
            assert!(!is_plain || key.is_empty() || key.len() > MAX_KEY, "{key:?}: {error}");
        }
    }
}

/// Refusals are logged, so a user's text must not flood or break the log.
fn is_shown_in_a_line(error: &str) {
    assert!(error.len() < 1000 && !error.chars().any(char::is_control), "{error:?}");
}

fn a_name_and_a_key_make_one_step(lines: &[&str]) {
    let mut replay = Replay::default();
    let mut keys = HashSet::new();
    for pair in lines.windows(2).take(16) {
        if check_name("step", pair[0]).is_err() {
            continue;
        }
        for key in [None, Some(pair[1])] {
            if key.is_some_and(|key| check_key("step key", key).is_err()) {
                continue;
            }
            let claim = replay.claim(pair[0], key, 0);
            let claim = claim.unwrap_or_else(|divergence| unreachable!("nothing is recorded: {divergence}"));
            assert!(claim.key.as_str().len() <= LONGEST_STEP_KEY);
            assert!(keys.insert(claim.key.clone()), "`{}` is the key of two steps", claim.key);
        }
    }
}

fn a_key_makes_one_run(lines: &[&str]) {
    let mut seen = HashSet::new();
    let mut ids = HashSet::new();
    for triple in lines.windows(3).take(16) {
        if seen.insert(triple) {
            assert!(ids.insert(keyed_run_id(triple[0], triple[1], triple[2])), "{triple:?}");
        }
    }
}
