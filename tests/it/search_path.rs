//! The engine must not execute functions, operators or types of other roles with its own rights.
//!
//! Any role that may create in a schema of the `search_path` can define `public.unnest(text[])` or
//! `public.->>(json, json)`. PostgreSQL prefers an exact match to a polymorphic or coerced match,
//! even if `pg_catalog` comes first. The tests define such shadows of every function, operator and
//! type in the statements.

use std::time::Duration;

use runledger::__private::{MIGRATIONS, SESSION_SETTINGS, STATEMENTS};
use runledger::prelude::*;
use runledger::{ClientError, EnqueueTarget, Graph};
use runledger_tests::rows::scalar;
use runledger_tests::{Fixture, PATIENCE};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

#[job]
async fn search_path_double(n: i64) -> Result<i64> {
    Ok(n * 2)
}

#[job]
async fn search_path_book(n: i64, #[inject] db: &Db, #[inject] tx: &mut Tx) -> Result<i64> {
    sqlx::query("insert into booking (n) values ($1)").bind(n).execute(&mut **tx).await?;
    search_path_double(n).idempotency_key("booked").enqueue(tx).await?;
    search_path_double(n).enqueue(db).await?;
    Ok(n)
}

#[workflow]
async fn search_path_all(wf: &Wf, n: i64) -> Result<i64> {
    let doubled = wf.run(search_path_double(n)).await?;
    let booked = wf.run(search_path_book(doubled)).await?;
    let added: i64 = wf.signal("more").await?;
    wf.sleep(Duration::from_millis(10)).await?;
    let child = wf.start(search_path_double(booked)).await?;
    Ok(child.result().await? + added)
}

/// The first version with parsed function bodies. The catalog lists the dependencies of a parsed
/// body.
const FIRST_WITH_PARSED_BODIES: i32 = 140_000;

#[tokio::test]
async fn engine_statements_never_resolve_to_shadowing_objects() {
    let fixture = Fixture::new().await;
    let mut admin = fixture.database.connect().await.unwrap();
    define_shadows(&mut admin).await;
    assert_none_resolve("an application's session", &mut admin).await;

    put_public_first(&mut admin).await;
    let db = Db::connect(fixture.database.url()).await.unwrap();
    let mut of_client = db.pool().acquire().await.unwrap();
    assert_none_resolve("a client's session", &mut of_client).await;

    let mut of_engine = fixture.database.connect().await.unwrap();
    of_engine.execute(SESSION_SETTINGS).await.unwrap();
    assert_none_resolve("an engine's session", &mut of_engine).await;
}

/// Shows that [`resolves_to_shadow`] finds shadows.
///
/// On PostgreSQL 13 it finds a shadow only if the statement then fails to prepare. The next test
/// covers the executed statements on every version.
#[tokio::test]
async fn unqualified_statements_resolve_to_shadowing_objects() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    let version: i32 = scalar(&fixture.db, "select current_setting('server_version_num')::int").await;
    define_shadows(&mut connection).await;
    let fail_to_prepare =
        ["select 1 where '{}'::json ->> 'a' = 'b'", "select 1 where $1::uuid[] = $2::uuid[]"];
    let prepare = [
        "select count(*) from unnest($1::text[]) as x where x is not null",
        "select 1 where 2::bigint * interval '1 second' is not null",
        "select cardinality($1::uuid[])",
    ];
    assert_all_resolve(&mut connection, &fail_to_prepare).await;
    if version >= FIRST_WITH_PARSED_BODIES {
        assert_all_resolve(&mut connection, &prepare).await;
    }
    put_public_first(&mut connection).await;
    let mut connection = fixture.database.connect().await.unwrap();
    assert_all_resolve(&mut connection, &["select 1 where $1::uuid = $2::uuid"]).await;
    if version >= FIRST_WITH_PARSED_BODIES {
        assert_all_resolve(&mut connection, &["select 'a'::text as a"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engine_calls_no_shadowing_object_when_public_precedes_pg_catalog() {
    let fixture = Fixture::new().await;
    let mut admin = fixture.database.connect().await.unwrap();
    execute(&mut admin, "create table booking (n pg_catalog.int8)").await;
    define_shadows(&mut admin).await;
    put_public_first(&mut admin).await;

    let db = Db::connect(fixture.database.url()).await.unwrap();
    let worker = App::new(db.clone())
        .with(jobs![search_path_double, search_path_book, search_path_all])
        .provide(db.clone())
        .start()
        .await
        .unwrap();
    let run = search_path_all(3).idempotency_key("all").enqueue(&db).await.unwrap();
    run.signal("more", &1_i64).await.unwrap();
    let mut graph = Graph::new("search_path");
    let first = graph.node("first", search_path_double(1));
    let last = graph.node("last", search_path_double(2));
    graph.after(last, first);
    let graph = graph.enqueue(&db).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 13);
    graph.result_within(PATIENCE).await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let cancelled = search_path_double(4).delay(Duration::from_secs(3600)).enqueue(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    db.run(cancelled.id()).info().await.unwrap();
    worker.stop().await;

    assert!(!scalar::<bool>(&db, "select is_called from public.shadow_calls").await, "a shadow ran");
}

#[tokio::test]
async fn application_connection_with_public_before_pg_catalog_is_refused() {
    async fn assert_refused<'c>(via: impl EnqueueTarget<'c>) {
        let error = search_path_double(1).enqueue(via).await.unwrap_err();
        let ClientError::UnsafeSearchPath { search_path } = &error else { panic!("{error:?}") };
        assert_eq!(search_path, "public, pg_catalog");
    }
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    let run = search_path_all(3).enqueue(&mut connection).await.unwrap();
    put_public_first(&mut connection).await;
    let pool = fixture.database.pool(1).await.unwrap();
    assert_refused(&pool).await;
    let mut tx = pool.begin().await.unwrap();
    assert_refused(&mut tx).await;
    assert_refused(fixture.db.on(&mut tx)).await;
    let mut graph = Graph::new("search_path");
    graph.node("first", search_path_double(1));
    let refused = [
        graph.enqueue(&mut tx).await.map(drop),
        fixture.db.run(run.id()).signal("more", &1).send(&mut tx).await.map(drop),
    ];
    for refused in refused {
        assert!(matches!(refused, Err(ClientError::UnsafeSearchPath { .. })), "{refused:?}");
    }
    execute(&mut tx, "set local search_path = pg_catalog, public").await;
    search_path_double(1).enqueue(&mut tx).await.unwrap();
}

/// Paths of a database, and the path of a client's session there.
const PATHS: [(&str, &str); 10] = [
    ("public, pg_catalog", "public"),
    ("public, pg_catalog, app", "public, app"),
    (r#""app", public, "pg_catalog", "a""b""#, r#"app, public, "a""b""#),
    ("pg_catalog, public", "pg_catalog, public"),
    ("public", "public"),
    // One name each: an operator has quoted a list.
    ("'public, pg_catalog'", r#""public, pg_catalog""#),
    (r#""a,pg_catalog", pg_catalog"#, r#""a,pg_catalog""#),
    ("public, 'pg_catalog, x y'", r#"public, "pg_catalog, x y""#),
    (r#""pg_catalog, x", public, pg_catalog"#, r#""pg_catalog, x", public"#),
    (r#""a "",pg_catalog", public"#, r#""a "",pg_catalog", public"#),
];

#[tokio::test]
async fn client_removes_only_pg_catalog_from_search_path() {
    let fixture = Fixture::new().await;
    let mut admin = fixture.database.connect().await.unwrap();
    for (path, wanted) in PATHS {
        set_path(&mut admin, path).await;
        let db = Db::connect(fixture.database.url()).await.unwrap();
        assert_eq!(scalar::<String>(&db, "select current_setting('search_path')").await, wanted, "{path}");
        let mut of_application = fixture.database.connect().await.unwrap();
        let is_taken = search_path_double(1).enqueue(&mut of_application).await.is_ok();
        assert_eq!(is_taken, path_of(&mut of_application).await == wanted, "{path}");
    }
}

async fn path_of(connection: &mut PgConnection) -> String {
    sqlx::query_scalar("select current_setting('search_path')").fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn every_schema_function_pins_search_path_or_qualifies_every_name() {
    const INLINED: [&str; 2] = ["free_permits", "resource_of"];
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    let functions: Vec<(String, Option<Vec<String>>, String)> = sqlx::query_as(
        "select proname::text, proconfig, prosrc from pg_proc where pronamespace = 'runledger'::regnamespace order by 1",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert!(functions.len() > INLINED.len());
    define_shadows(&mut connection).await;
    for (name, settings, body) in functions {
        let pins = settings.is_some_and(|its| its.contains(&"search_path=pg_catalog, pg_temp".to_owned()));
        if !INLINED.contains(&name.as_str()) {
            assert!(pins, "{name} resolves names in the path of its caller");
            continue;
        }
        // Give `$1` the types of the two inlined functions.
        let argument = if name == "resource_of" { "json" } else { "text" };
        let body = body.replace("$1", &format!("$1::pg_catalog.{argument}")).replace(';', "");
        assert_eq!(resolves_to_shadow(&mut connection, &name, &body).await, None);
    }
}

#[tokio::test]
async fn schema_owned_by_other_role_is_refused_before_first_migration() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.database.connect().await.unwrap();
    let role = format!("stranger_{}", uuid::Uuid::now_v7().simple());
    execute(
        &mut connection,
        &format!(
            "drop schema runledger cascade; create role {role}; create schema runledger authorization {role}"
        ),
    )
    .await;
    let error = Db::connect(fixture.database.url()).await.unwrap_err();
    let text = format!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string));
    execute(&mut connection, &format!("drop schema runledger; drop role {role}")).await;
    assert!(text.contains(&format!("the schema `runledger` belongs to role `{role}`")), "{text}");
    Db::connect(fixture.database.url()).await.unwrap();
}

/// Puts `public` before `pg_catalog` for all later sessions of the database.
async fn put_public_first(connection: &mut PgConnection) {
    set_path(connection, "public, pg_catalog").await;
}

async fn set_path(connection: &mut PgConnection, path: &str) {
    let name: String =
        sqlx::query_scalar("select current_database()::text").fetch_one(&mut *connection).await.unwrap();
    execute(connection, &format!("alter database {name} set search_path = {path}")).await;
}

async fn assert_none_resolve(whose: &str, connection: &mut PgConnection) {
    let mut resolved = Vec::new();
    for (name, sql) in STATEMENTS {
        resolved.extend(resolves_to_shadow(connection, name, sql).await);
    }
    assert!(resolved.is_empty(), "in {whose}:\n{}", resolved.join("\n"));
}

async fn assert_all_resolve(connection: &mut PgConnection, careless: &[&str]) {
    for statement in careless {
        assert!(resolves_to_shadow(connection, "careless", statement).await.is_some(), "{statement}");
    }
}

/// Returns the shadow that a statement resolves to, if any. A shadow returns a `point`, which no
/// statement accepts, so most statements fail to prepare. `prepare` runs as plain SQL, because sqlx
/// would query the catalog with statements of its own.
async fn resolves_to_shadow(connection: &mut PgConnection, name: &str, sql: &str) -> Option<String> {
    let mut tx = connection.begin().await.unwrap();
    if let Err(error) =
        sqlx::raw_sql(AssertSqlSafe(format!("prepare resolved as {sql}"))).execute(&mut *tx).await
    {
        return Some(format!("{name}: {error}"));
    }
    let path: String = sqlx::query_scalar("show search_path").fetch_one(&mut *tx).await.unwrap();
    execute(&mut tx, "set local search_path = pg_catalog").await;
    let (version, parameters): (i32, Vec<String>) =
        sqlx::query_as(PREPARED).fetch_one(&mut *tx).await.unwrap();
    execute(&mut tx, "deallocate resolved").await;
    if version < FIRST_WITH_PARSED_BODIES {
        return None;
    }
    execute(&mut tx, &format!("set local search_path = {path}")).await;
    let create = format!(
        "create function public.resolved({}) returns void language sql begin atomic\n{sql}\n;end",
        parameters.join(", ")
    );
    execute(&mut tx, &create).await;
    execute(&mut tx, "set local search_path = pg_catalog").await;
    let shadows: Vec<String> = sqlx::query_scalar(DEPENDENCIES).fetch_all(&mut *tx).await.unwrap();
    tx.rollback().await.unwrap();
    (!shadows.is_empty()).then(|| format!("{name}: {}", shadows.join(", ")))
}

const PREPARED: &str = "
    select
        current_setting('server_version_num')::int,
        array(
            select format('pg_catalog.%I', typname)
            from unnest(parameter_types) with ordinality as parameter (type, place)
            join pg_type on pg_type.oid = parameter.type::oid
            order by place
        )
    from pg_prepared_statements
    where name = 'resolved'";

const DEPENDENCIES: &str = "
    select pg_describe_object(refclassid, refobjid, refobjsubid)
    from pg_depend
    where classid = 'pg_proc'::regclass
        and objid = (select oid from pg_proc where proname = 'resolved' and pronamespace = 'public'::regnamespace)
        and (
            refobjid in (select oid from pg_proc where pronamespace = 'public'::regnamespace)
            or refobjid in (select oid from pg_operator where oprnamespace = 'public'::regnamespace)
            or refobjid in (select oid from pg_type where typnamespace = 'public'::regnamespace)
        )";

/// Defines in `public`: every operator of the statements for every pair of their types, every
/// function that they call for its argument types, and every type.
async fn define_shadows(connection: &mut PgConnection) {
    execute(connection, SHADOWS).await;
    let functions: Vec<String> = called_functions();
    sqlx::query("call public.shadow_functions($1)").bind(functions).execute(&mut *connection).await.unwrap();
    // Last, because an unqualified type name resolves to these types from here on.
    execute(connection, "call public.shadow_types()").await;
}

/// Returns the catalog functions that the statements and migrations call.
fn called_functions() -> Vec<String> {
    let texts =
        STATEMENTS.iter().map(|(_, sql)| *sql).chain(MIGRATIONS.iter().map(|migration| migration.sql));
    let mut names: Vec<String> = texts
        .flat_map(|text| text.split('(').collect::<Vec<_>>())
        .filter_map(|before| {
            let name = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()?;
            (!name.is_empty()).then(|| name.to_owned())
        })
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

const SHADOWS: &str = r#"
create sequence public.shadow_calls;

create function public.types() returns text[] language sql immutable as $$
    select array['text', 'uuid', 'int8', 'int4', 'int2', 'bool', 'timestamptz', 'interval', 'json', 'jsonb', 'bytea', 'numeric', 'float8', 'name', 'oid',
        'xid', 'regclass', 'pg_lsn', '_text', '_uuid', '_int8', '_int4', '_int2', '_timestamptz']
$$;

do $do$
declare
    body constant text := 'begin perform pg_catalog.nextval(''public.shadow_calls''); raise exception ''a shadow ran''; end';
    one text;
    other text;
    operator text;
begin
    foreach one in array public.types() loop
        foreach other in array public.types() loop
            execute format('create function public.shadow(pg_catalog.%I, pg_catalog.%I) returns point language plpgsql as %L', one, other, body);
            foreach operator in array array['=', '<>', '<', '>', '<=', '>=', '+', '-', '*', '/', '%', '||', '->', '->>', '#>>', '@>', '<@', '&&', '~~', '!~~', '~'] loop
                execute format('create operator public.%s (function = public.shadow, leftarg = pg_catalog.%I, rightarg = pg_catalog.%I)', operator, one, other);
            end loop;
        end loop;
    end loop;
end
$do$;

create procedure public.shadow_functions(names text[]) language plpgsql set search_path = pg_catalog as $$
declare
    found record;
    type text;
    arguments text;
begin
    for found in
        select distinct proname, array(select typname from unnest(proargtypes) with ordinality as a (oid, n) join pg_type using (oid) order by n) as arguments
        from pg_proc
        where pronamespace = 'pg_catalog'::regnamespace and proname = any (names) and prokind in ('f', 'a', 'w') and pronargs > 0
    loop
        foreach type in array public.types() loop
            -- Every polymorphic argument that accepts this type or an array of it.
            select string_agg(case
                    when argument = any (array['any', 'anyelement', 'anynonarray', 'anycompatible', 'anycompatiblenonarray', 'anyenum', 'anyrange'])
                        then format('pg_catalog.%I', type)
                    when argument = any (array['anyarray', 'anycompatiblearray'])
                        then format('pg_catalog.%I', case when type like '\_%' then type else '_' || type end)
                    when argument in ('internal', 'cstring', 'trigger') then null
                    else format('pg_catalog.%I', argument)
                end, ', ' order by n)
            into arguments
            from unnest(found.arguments) with ordinality as a (argument, n);
            begin
                execute format(
                    'create function public.%I(%s) returns point language plpgsql as %L', found.proname, arguments,
                    'begin perform pg_catalog.nextval(''public.shadow_calls''); raise exception ''a shadow ran''; end'
                );
            exception when others then null;
            end;
        end loop;
    end loop;
end
$$;

create procedure public.shadow_types() language plpgsql set search_path = pg_catalog as $$
declare
    type text;
begin
    foreach type in array public.types() loop
        execute format('create domain public.%I as pg_catalog.%I check (pg_catalog.nextval(''public.shadow_calls''::pg_catalog.regclass) is null)', type, type);
    end loop;
end
$$;
"#;

async fn execute(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
        .unwrap_or_else(|error| panic!("{error}: {sql}"));
}
