//! Updates the schema `runledger`, in one transaction per migration. The applied migrations are
//! recorded in a table of the same schema.
//!
//! The lock is `pg_advisory_xact_lock`. The server releases it with the transaction, also after
//! a failure or a kill. The application's own migrations and their table are never touched.

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::error::{Limit, Reason, cause};
use super::session::pin_path;
use super::write::commit;

/// A migration: its number, its name and its text.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Its number, from 1.
    pub version: i32,
    /// Its name.
    pub name: &'static str,
    /// Its statements.
    pub sql: &'static str,
    /// Whether binaries that do not know it can no longer work with the schema.
    pub breaking: bool,
}

/// The files of the initial schema. Each uses only what the ones before it define.
macro_rules! initial {
    ($($file:literal),* $(,)?) => {
        concat!($(include_str!(concat!("../../migrations/0001_initial/", $file, ".sql")), "\n"),*)
    };
}

/// Every migration that this binary knows, in order.
pub const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "initial",
    sql: initial!(
        "options",
        "runs",
        "history",
        "control",
        "resources",
        "graphs",
        "workers",
        "installation",
        "views",
    ),
    breaking: true,
}];

/// Why the schema cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The database has a migration that breaks this binary.
    #[error(
        "the schema `runledger` was migrated to version {version} (`{name}`) by a newer program, and that version breaks this one, which knows up \
         to {known}; nothing was changed; deploy the newer program here, or point this one at another database"
    )]
    Newer {
        /// The newest breaking version in the database.
        version: i32,
        /// Its name.
        name: String,
        /// The newest version that this binary knows.
        known: i32,
    },
    /// A migration was applied with another text than this binary has.
    #[error(
        "migration {version} of the schema `runledger` was applied with another text; this program was built from changed migrations; restore \
         the file, and put the change into a new one"
    )]
    Changed {
        /// The version whose text differs.
        version: i32,
    },
    /// The schema exists without the engine's tables, and another role owns it.
    #[error(
        "the schema `runledger` belongs to role `{owner}`, and the owner of a schema can replace what runs in it; nothing was changed; drop the schema, or \
         `alter schema runledger owner to` the role that migrates"
    )]
    ForeignSchema {
        /// The owner of the schema.
        owner: String,
    },
    /// Another session held the migration lock for 10 s.
    #[error(
        "{holder} held the lock of the migrations for 10 seconds; nothing was changed; if a program migrates now, try again when it is done; if not, end that \
         session: every role that can connect can take this lock"
    )]
    Locked {
        /// The session and its role.
        holder: String,
    },
    /// The database refused a statement or did not answer.
    #[error(
        "the schema `runledger` could not be brought up to date; each migration is one transaction, so nothing is half done; try again, or if this role \
         may not create schemas, `grant create on database …` to it, or start a program once as a role that may"
    )]
    Database(#[from] sqlx::Error),
}

/// The key of the lock that serializes migrators. Any constant works; the oid of the schema does
/// not exist before the first migration.
const MIGRATION_LOCK: i64 = 0x72_756e_6c65_6467;

const BOOKKEEPING: &str = "
create schema if not exists runledger;
create table if not exists runledger.migration (
    version integer primary key,
    name text not null,
    checksum bigint not null,
    breaking boolean not null,
    applied_at timestamptz not null default clock_timestamp()
)";

/// Applies the migrations that the database lacks. Safe to run twice, and in many processes at
/// once.
///
/// Costs two statements if no migration is missing.
///
/// # Errors
/// [`MigrateError`]: the schema is newer than this binary and breaks it, a known migration has
/// another text, or the database failed.
pub async fn migrate(connection: &mut PgConnection) -> Result<(), MigrateError> {
    Box::pin(migrate_as(connection, MIGRATIONS)).await
}

/// Like [`migrate`], as a program that knows these migrations: an older or a later release.
///
/// # Errors
/// As for [`migrate`].
pub async fn migrate_as(connection: &mut PgConnection, known: &[Migration]) -> Result<(), MigrateError> {
    if applied(connection, known).await? == Some(known.len()) {
        return Ok(());
    }
    for migration in known {
        apply(connection, known, migration).await?;
    }
    Ok(())
}

/// Whether the database has every migration.
pub(crate) async fn is_current(connection: &mut PgConnection) -> Result<bool, MigrateError> {
    Ok(applied(connection, MIGRATIONS).await? == Some(MIGRATIONS.len()))
}

async fn apply(
    connection: &mut PgConnection,
    known: &[Migration],
    migration: &Migration,
) -> Result<(), MigrateError> {
    let mut tx = connection.begin().await?;
    // A migration must not wait for hours for a long transaction, because new transactions queue
    // for the same lock.
    sqlx::raw_sql("set local lock_timeout = '10s'").execute(&mut *tx).await?;
    pin_path(&mut tx).await?;
    if let Err(error) = sqlx::query("select pg_catalog.pg_advisory_xact_lock($1)")
        .bind(MIGRATION_LOCK)
        .execute(&mut *tx)
        .await
    {
        tx.rollback().await?;
        return Err(not_locked(connection, error).await);
    }
    if migration.version == 1 {
        // `if not exists` needs the privilege to create even if the schema exists, so check first.
        if applied(&mut tx, known).await?.is_none() {
            check_owner(&mut tx).await?;
            sqlx::raw_sql(BOOKKEEPING).execute(&mut *tx).await?;
            // Another role may have created the schema since.
            check_owner(&mut tx).await?;
        }
    }
    if applied(&mut tx, known).await?.is_some_and(|done| done >= position(known, migration)) {
        return Ok(tx.rollback().await?);
    }
    sqlx::raw_sql(AssertSqlSafe(migration.sql)).execute(&mut *tx).await?;
    sqlx::query(
        "insert into runledger.migration (version, name, checksum, breaking) values ($1, $2, $3, $4)",
    )
    .bind(migration.version)
    .bind(migration.name)
    .bind(checksum(migration.sql))
    .bind(migration.breaking)
    .execute(&mut *tx)
    .await?;
    Ok(commit("migrate", tx.commit()).await?)
}

/// Returns the session that holds a lock, with its role.
const HOLDER: &str = "
select pg_catalog.format('session %s of role `%s`', pid, activity.usename)
from pg_catalog.pg_locks
join pg_catalog.pg_stat_activity as activity using (pid)
where locktype = 'advisory'
    and granted
    and objsubid = 1
    and classid::bigint = $1 >> 32
    and objid::bigint = $1 & 4294967295
    and database = activity.datid
    and activity.datname = pg_catalog.current_database()";

/// Returns the error of a migrator that did not get the lock.
async fn not_locked(connection: &mut PgConnection, error: sqlx::Error) -> MigrateError {
    if cause(&error).reason != Reason::Limit(Limit::Lock) {
        return error.into();
    }
    match holder(connection).await {
        Ok(holder) => MigrateError::Locked { holder: holder.unwrap_or_else(|| "another session".to_owned()) },
        Err(error) => error.into(),
    }
}

async fn holder(connection: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
    let mut tx = connection.begin().await?;
    pin_path(&mut tx).await?;
    let holder = sqlx::query_scalar(HOLDER).bind(MIGRATION_LOCK).fetch_optional(&mut *tx).await?;
    tx.rollback().await?;
    Ok(holder)
}

/// Returns the owner of a schema `runledger` that this role must not trust. Trusted owners are this
/// role, the roles that it is a member of, and superusers.
const STRANGER: &str = "
select pg_catalog.pg_get_userbyid(nspowner)::text
from pg_catalog.pg_namespace
cross join pg_catalog.pg_roles as me
where nspname = 'runledger'
    and me.rolname = current_user
    and nspowner <> me.oid
    and not exists (select from pg_catalog.pg_roles as owner where owner.oid = nspowner and owner.rolsuper)
    and (me.rolsuper or not pg_catalog.pg_has_role(nspowner, 'usage'))";

/// Refuses a schema that an untrusted role created before the first migration. The engine would
/// call that role's functions in it.
async fn check_owner(connection: &mut PgConnection) -> Result<(), MigrateError> {
    let owner: Option<String> = sqlx::query_scalar(STRANGER).fetch_optional(connection).await?;
    owner.map_or(Ok(()), |owner| Err(MigrateError::ForeignSchema { owner }))
}

/// Returns how many of the known migrations the database has, in order. `None` if the table of
/// applied migrations is missing.
async fn applied(connection: &mut PgConnection, known: &[Migration]) -> Result<Option<usize>, MigrateError> {
    let there: bool = sqlx::query_scalar("select pg_catalog.to_regclass('runledger.migration') is not null")
        .fetch_one(&mut *connection)
        .await?;
    if !there {
        return Ok(None);
    }
    let rows =
        sqlx::query("select version, name, checksum, breaking from runledger.migration order by version")
            .fetch_all(connection)
            .await?;
    let mut done = 0;
    for row in rows {
        let (version, breaking): (i32, bool) = (row.try_get("version")?, row.try_get("breaking")?);
        match known.iter().find(|migration| migration.version == version) {
            Some(migration) if checksum(migration.sql) != row.try_get::<i64, _>("checksum")? => {
                return Err(MigrateError::Changed { version });
            }
            Some(migration) => done = done.max(position(known, migration)),
            None if breaking => {
                let known = known.last().map_or(0, |last| last.version);
                return Err(MigrateError::Newer { version, name: row.try_get("name")?, known });
            }
            None => {}
        }
    }
    Ok(Some(done))
}

fn position(known: &[Migration], migration: &Migration) -> usize {
    known.iter().take_while(|before| before.version <= migration.version).count()
}

fn checksum(sql: &str) -> i64 {
    crate::model::json::fingerprint(sql)
}
