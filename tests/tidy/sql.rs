//! The places of SQL statements, and their contracts.

use std::collections::BTreeSet;

use runledger::__private::{MIGRATIONS, Migration, STATEMENTS};

use super::source::{File, files, parts};

/// The beginnings of SQL statements.
const VERBS: [&str; 16] = [
    "select ",
    "insert into ",
    "update ",
    "delete from ",
    "with ",
    "create ",
    "alter ",
    "drop ",
    "truncate ",
    "lock table ",
    "set ",
    "begin",
    "commit",
    "rollback",
    "notify ",
    "listen ",
];

/// Words like `set` are English too: a text is a statement if it begins with a verb and contains
/// one of these.
const PROOFS: [&str; 14] = [
    " from ",
    " into ",
    " = off",
    " = on",
    " = '",
    "select pg_",
    "database ",
    "schema ",
    "table ",
    "index ",
    " set ",
    "rollback",
    "commit",
    "= error",
];

/// SQL that cannot be a prepared statement of the engine. The bookkeeping of migrations precedes
/// any schema. Settings and the probe for poolers belong to sessions. The databases of the embedded
/// server and of the test kit are not the engine's.
const EXCEPTED: [&str; 5] = [
    "runledger/src/store/migrate.rs",
    "runledger/src/store/session/mod.rs",
    "runledger/src/store/worker/pooler.rs",
    "runledger/src/store/testing.rs",
    "runledger/src/dev/mod.rs",
];

#[test]
fn rust_code_has_no_sql_outside_listed_exceptions() {
    let program = files("runledger/src", ".rs");
    for excepted in EXCEPTED {
        assert!(program.iter().any(|file| file.path == excepted), "`{excepted}` does not exist");
    }
    for file in program {
        if EXCEPTED.contains(&file.path.as_str()) {
            continue;
        }
        let parts = parts(file.program());
        for text in &parts.texts {
            file.check(!is_sql(text), &format!("SQL outside `store/sql`: `{text}`"));
        }
        let speaks = parts.code.contains("sqlx::query") || parts.code.contains("raw_sql(");
        file.check(!speaks || file.path.contains("/store/"), "only `store` carries out statements");
    }
}

fn is_sql(text: &str) -> bool {
    let text = text.trim().to_lowercase();
    VERBS.iter().any(|verb| text.starts_with(verb)) && PROOFS.iter().any(|proof| text.contains(proof))
}

#[test]
fn sql_statement_is_distinguished_from_prose() {
    for sql in
        ["select 1 from t", "set enable_seqscan = off", "ROLLBACK", "update t set x = 1", "create schema s"]
    {
        assert!(is_sql(sql), "{sql}");
    }
    for words in ["set", "with the next attempt", "select one of these", "create it first"] {
        assert!(!is_sql(words), "{words}");
    }
}

/// Returns the statements without the endings that several share.
fn statements() -> Vec<File> {
    let mut files = files("runledger/src/store/sql", ".sql");
    files.retain(|file| !file.path.contains("/parts/"));
    files
}

#[test]
fn every_statement_file_is_listed_and_used() {
    let in_folder: BTreeSet<String> = statements().iter().map(|file| name(file).to_owned()).collect();
    let listed: BTreeSet<String> = STATEMENTS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(in_folder, listed);
    let users: String = files("runledger/src/store", ".rs").iter().map(File::program).collect();
    for statement in listed {
        let used = format!("sql::{}", statement.to_uppercase());
        assert!(super::source::names(&users, &used), "no module of `store` uses `{statement}`");
    }
}

#[test]
fn every_statement_header_states_its_contract() {
    for file in statements() {
        let header: Vec<&str> = file.text.lines().take_while(|line| line.starts_with("--")).collect();
        let begins = |line: usize, with: &str| header.get(line).is_some_and(|line| line.starts_with(with));
        file.check(
            begins(0, &format!("-- {}: ", name(&file))),
            "the header begins with the name and what it does",
        );
        let mut last = 0;
        for part in ["-- in:    ", "-- out:   ", "-- locks: ", "-- index: "] {
            let at = (0..header.len()).find(|line| begins(*line, part));
            file.check(
                at.is_some_and(|at| at > last),
                &format!("`{part}` is missing from the header, or out of order"),
            );
            last = at.unwrap();
        }
        file.check(
            parameters(&header.join("\n")) == parameters(body(&file)),
            "the header names other parameters than the statement",
        );
    }
}

/// Syntax that looks like a call. It always resolves to `pg_catalog`, as does `unnest` with several
/// arguments.
const SYNTAX: [&str; 12] = [
    "any", "array", "cast", "coalesce", "extract", "greatest", "least", "nullif", "operator", "position",
    "trim", "unnest",
];

/// A statement may run on a connection of the application, whose path may list schemas in which
/// other roles can create.
#[test]
fn every_call_in_statement_names_its_schema() {
    for file in files("runledger/src/store/sql", ".sql") {
        for line in body(&file).lines().filter(|line| !line.trim_start().starts_with("--")) {
            for call in unqualified_calls(line) {
                file.check(
                    SYNTAX.contains(&call),
                    &format!("`{call}(` names no schema: write `pg_catalog.{call}(`"),
                );
            }
        }
    }
}

/// Returns the names before parentheses that have no schema.
fn unqualified_calls(line: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    line.match_indices('(')
        .filter_map(|(at, _)| {
            let before = &line[..at];
            let name = &before[before.trim_end_matches(is_name).len()..];
            let is_qualified = before[..before.len() - name.len()].ends_with('.');
            (!name.is_empty() && !is_qualified).then_some(name)
        })
        .collect()
}

#[test]
fn scan_finds_only_unqualified_calls() {
    assert_eq!(unqualified_calls("select count(*), pg_catalog.max(n) from t as item (a, b)"), ["count"]);
}

#[test]
fn every_sql_file_contains_one_statement() {
    for file in statements() {
        let code: String = body(&file).lines().filter(|line| !line.trim_start().starts_with("--")).collect();
        file.check(!code.contains(';'), "one statement a file, and no semicolon after it");
        let body = body(&file).trim_start();
        let verbs = ["select", "insert", "update", "delete", "with"];
        file.check(verbs.iter().any(|verb| body.starts_with(verb)), "lower case, and a statement on data");
    }
}

/// A prepared `select *` breaks when a column is added, but not over an `unnest` with named
/// columns.
#[test]
fn no_statement_returns_star_instead_of_named_columns() {
    for file in statements() {
        let last = body(&file).rsplit("\n)\n").next().unwrap();
        file.check(
            !last.trim_start().starts_with("select *") && !body(&file).contains("returning *"),
            "name the columns",
        );
    }
}

#[test]
fn every_migration_file_is_registered_by_number_and_name() {
    let name = |it: &Migration| format!("runledger/migrations/{:04}_{}", it.version, it.name);
    for file in files("runledger/migrations", ".sql") {
        let of_file = |it: &&Migration| {
            file.path.strip_prefix(&name(it)).is_some_and(|rest| rest == ".sql" || rest.starts_with('/'))
        };
        let migration = MIGRATIONS.iter().find(of_file);
        file.check(migration.is_some_and(|it| it.sql.contains(&file.text)), "`MIGRATIONS` lacks this file");
    }
    assert!(MIGRATIONS.iter().zip(1..).all(|(migration, number)| migration.version == number));
    let linked = super::source::root().join("migrations").join("0001_initial");
    assert!(linked.exists(), "`migrations` must lead to the files that are packed with the crate");
}

fn name(file: &File) -> &str {
    file.path.rsplit('/').next().unwrap().trim_end_matches(".sql")
}

fn body(file: &File) -> &str {
    let mut rest = file.text.as_str();
    while rest.starts_with("--") {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
    }
    rest
}

/// Returns the numbers of the parameters in a text.
fn parameters(text: &str) -> BTreeSet<u32> {
    text.split('$')
        .skip(1)
        .filter_map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest[..end].parse().ok()
        })
        .collect()
}
