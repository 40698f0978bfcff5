//! Every statement against a fresh schema, and the schema itself, compared with golden files. This
//! gives what `query!` would give, but the builds of users do not depend on their `DATABASE_URL`.

use std::fmt::Write;

use runledger::__private::STATEMENTS;
use runledger_tests::{Fixture, golden};
use sqlx::{Column, Either, Executor, PgConnection, Row, SqlSafeStr, Statement, TypeInfo};

#[tokio::test]
async fn every_statement_matches_golden_parameters_and_columns() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    let mut text = String::new();
    for (name, sql) in STATEMENTS {
        let statement = match (&mut connection).prepare((*sql).into_sql_str()).await {
            Ok(statement) => statement,
            Err(error) => panic!("{name}: {error}"),
        };
        writeln!(text, "{name}").unwrap();
        if let Some(Either::Left(parameters)) = statement.parameters() {
            for (at, parameter) in parameters.iter().enumerate() {
                writeln!(text, "    ${} {}", at + 1, parameter.name()).unwrap();
            }
        }
        for column in statement.columns() {
            writeln!(text, "    {} {}", column.name(), column.type_info().name()).unwrap();
        }
    }
    golden::check("statements.txt", &text);
}

#[tokio::test]
async fn every_header_lists_columns_of_its_statement_in_order() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    for (name, sql) in STATEMENTS {
        let statement = (&mut connection).prepare((*sql).into_sql_str()).await.unwrap();
        let columns: Vec<&str> = statement.columns().iter().map(Column::name).collect();
        assert_eq!(promised(sql), columns, "`out` in the header of {name}");
    }
}

/// Returns the columns that a header promises: its `out` up to the semicolon, without remarks in
/// parentheses.
fn promised(sql: &str) -> Vec<String> {
    let out: Vec<&str> = sql
        .lines()
        .skip_while(|line| !line.starts_with("-- out:"))
        .take_while(|line| !line.starts_with("-- locks:"))
        .map(|line| line.trim_start_matches("-- out:").trim_start_matches("--").trim())
        .collect();
    let (mut names, mut depth) = (String::new(), 0_u32);
    for character in out.join(" ").chars() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ';' if depth == 0 => break,
            _ if depth == 0 => names.push(character),
            _ => {}
        }
    }
    names.split(',').map(|name| name.trim().to_owned()).filter(|name| name != "none").collect()
}

#[test]
fn remarks_in_header_are_not_columns() {
    let sql = "-- x: does.\n-- in:    $1 a, b\n-- out:   one (a; b, c), two,\n--        three; four, five\n-- locks: none\nselect 1";
    assert_eq!(promised(sql), ["one", "two", "three"]);
    assert!(promised("-- out:   none; x\n-- locks: y").is_empty());
}

#[tokio::test]
async fn migrated_schema_matches_golden_file() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    // Catalog functions omit schemas that are in the search path.
    sqlx::raw_sql("set search_path = pg_catalog").execute(&mut connection).await.unwrap();
    let mut text = String::new();
    for (title, query) in CATALOG {
        writeln!(text, "-- {title}").unwrap();
        for line in lines(&mut connection, query).await {
            writeln!(text, "{line}").unwrap();
        }
    }
    golden::check("schema.txt", &text);
}

async fn lines(connection: &mut PgConnection, query: &'static str) -> Vec<String> {
    let rows = sqlx::query(query).fetch_all(connection).await.unwrap();
    rows.iter().map(|row| row.get("line")).collect()
}

/// The schema according to the catalog, in lines that are equal in every version of PostgreSQL.
const CATALOG: [(&str, &str); 5] = [
    (
        "relations",
        "select concat_ws(' ', case relpersistence when 'u' then 'unlogged' end, case relkind when 'v' then 'view' else 'table' end, relname,
             array_to_string(reloptions, ', ')) as line
         from pg_class where relnamespace = 'runledger'::regnamespace and relkind in ('r', 'v', 'p') order by relname",
    ),
    (
        "columns",
        "select concat_ws(' ', relname || '.' || attname, format_type(atttypid, atttypmod), case when attnotnull then 'not null' end,
             case attidentity when 'a' then 'generated always as identity' end, 'default ' || pg_get_expr(adbin, adrelid)) as line
         from pg_attribute join pg_class on pg_class.oid = attrelid left join pg_attrdef on adrelid = attrelid and adnum = attnum
         where relnamespace = 'runledger'::regnamespace and relkind in ('r', 'v', 'p') and attnum > 0 and not attisdropped order by relname, attnum",
    ),
    (
        "constraints",
        "select concat_ws(' ', conrelid::regclass::text, conname, pg_get_constraintdef(oid)) as line
         from pg_constraint where connamespace = 'runledger'::regnamespace and contype in ('p', 'u', 'f', 'c', 'x') order by 1",
    ),
    ("indexes", "select indexdef as line from pg_indexes where schemaname = 'runledger' order by 1"),
    (
        "functions",
        "select concat_ws(' ', proname || '(' || pg_get_function_arguments(oid) || ')', 'returns', pg_get_function_result(oid),
             array_to_string(proconfig, ', ')) as line
         from pg_proc where pronamespace = 'runledger'::regnamespace order by 1",
    ),
];
