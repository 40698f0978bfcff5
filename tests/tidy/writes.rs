//! Every write of the engine passes `store/write.rs`, where a test can make it fail. The sources
//! are searched for writes, so that none can be forgotten.

use std::collections::{BTreeMap, BTreeSet};

use runledger::__private::STATEMENTS;
use runledger_tests::check::points::POINTS;

use super::source::{File, files, names, parts};

/// Writes other than by verbs: notifications, session locks, ended sessions, and our one function
/// that writes.
const EFFECTS: [&str; 6] = [
    "pg_notify",
    "pg_terminate_backend",
    "pg_cancel_backend",
    "pg_try_advisory_lock",
    "pg_advisory_lock",
    "server_incarnation",
];

/// Not writes of the engine: those of the embedded server, and the end of a caller's transaction.
const EXCEPTED: [&str; 2] = ["runledger/src/dev/", "runledger/src/connection/tx.rs"];

/// The ways to commit a transaction.
const HOW: [&str; 2] = ["commit", "commit_whole"];

#[test]
fn every_writing_statement_and_no_other_passes_its_fault_point() {
    // A statement and its variant with another ending share a name and a point.
    let point = |name: String| name.trim_end_matches("_APART").to_owned();
    let statements: BTreeMap<_, _> = STATEMENTS.iter().copied().collect();
    let mut passed = BTreeMap::new();
    let mut used = BTreeMap::new();
    for file in program() {
        for name in after(&squeezed(&file), "write(sql::") {
            *passed.entry(point(name)).or_insert(0) += 1;
        }
        for name in after(&squeezed(&file), "sql::") {
            *used.entry(point(name)).or_insert(0) += 1;
        }
    }
    for (name, text) in statements {
        let name = name.to_uppercase();
        let expected = if writes(text) { used.get(&name).copied().unwrap_or(0) } else { 0 };
        assert!(!writes(text) || expected > 0, "nobody sends `{name}`");
        assert_eq!(
            passed.remove(&name).unwrap_or(0),
            expected,
            "`{name}`: what writes is sent by `write(sql::{name}, …)` and by nothing else, what does not write never"
        );
    }
    assert!(passed.is_empty(), "points without a statement: {passed:?}");
}

#[test]
fn every_commit_passes_its_own_fault_point() {
    let mut named = BTreeSet::new();
    for file in program() {
        let code = squeezed(&file);
        for how in HOW {
            let n_commits = code.matches(&format!(".{how}()")).count();
            let n_named = code.matches(&format!("commit(\"\",tx.{how}())")).count();
            file.check(n_commits == n_named, &format!("a commit is `commit(\"name\", tx.{how}())`"));
        }
        for name in commits(&file) {
            file.check(named.insert(name.clone()), &format!("two commits have the name `{name}`"));
        }
    }
    assert!(named.len() > 5, "commits are written in another way now: mend this test");
}

#[test]
fn every_fault_point_has_scene() {
    let statements = STATEMENTS.iter().filter(|(_, text)| writes(text)).map(|(name, _)| (*name).to_owned());
    let commits: Vec<String> = program().iter().flat_map(commits).collect();
    let in_sources: BTreeSet<String> = statements.chain(commits).collect();
    let with_scene: BTreeSet<String> = POINTS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(in_sources, with_scene, "`tests/src/check/points.rs` lists the points");
    assert_eq!(with_scene.len(), POINTS.len(), "a point is listed twice");
}

fn program() -> Vec<File> {
    let mut program = files("runledger/src", ".rs");
    for excepted in EXCEPTED {
        assert!(program.iter().any(|file| file.path.starts_with(excepted)), "`{excepted}` does not exist");
    }
    program.retain(|file| !EXCEPTED.iter().any(|excepted| file.path.starts_with(excepted)));
    program
}

/// Returns the code without white space, so that line breaks do not matter.
fn squeezed(file: &File) -> String {
    parts(file.program()).code.split_whitespace().collect()
}

/// Returns the names that follow `mark`.
fn after(code: &str, mark: &str) -> Vec<String> {
    let name = |rest: &str| rest.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
    let found = code.split(mark).skip(1).map(name);
    found.filter(|name: &String| !name.is_empty()).collect()
}

fn commits(file: &File) -> Vec<String> {
    let code: String = file.program().split_whitespace().collect();
    let name = |rest: &str| {
        let (name, behind) = rest.split_once("\",tx.")?;
        HOW.iter().any(|how| behind.starts_with(&format!("{how}())"))).then(|| name.to_owned())
    };
    code.split("commit(\"").skip(1).filter_map(name).collect()
}

/// Whether a statement writes, judged by its text without comments.
fn writes(text: &str) -> bool {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    // The quoted name of a privilege is not a write.
    let code: String = lines.join("\n").split('\'').step_by(2).collect();
    // A row lock is not an update.
    let body = code.replace("for update", "").replace("for no key update", "");
    ["insert", "update", "delete", "merge"].iter().chain(&EFFECTS).any(|word| names(&body, word))
}

#[test]
fn writing_statement_is_distinguished_from_locking_one() {
    for text in
        ["with a as (insert into t select 1) select", "select pg_notify('c', '')", "-- x\nupdate t set a = 1"]
    {
        assert!(writes(text), "{text}");
    }
    for text in [
        "-- no update\nselect 1",
        "select 1 for update of t",
        "select 1 for no key update",
        "select updated from t",
        "select has_table_privilege('t', 'insert')",
    ] {
        assert!(!writes(text), "{text}");
    }
}
