//! A database for every test, cloned from a migrated template in about 10 ms.
//!
//! The server is the one of `RUNLEDGER_TEST_DATABASE_URL` (with a role that may create databases),
//! or the embedded one. It is never the one of `DATABASE_URL`, which may be a real database. The
//! first process creates the template for each state of the migrations, then closes it to
//! connections: an open session would prevent cloning. A test does not wait until its database is
//! dropped, which can take 100 ms: see `leftovers`.

mod leftovers;

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs};

use runledger::__private::clone_strategy;
use runledger::dev::{Options, Server};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use tokio::sync::OnceCell;

/// The variable with the address of the test server.
const URL_VARIABLE: &str = "RUNLEDGER_TEST_DATABASE_URL";

type AnyError = Box<dyn Error + Send + Sync>;

/// A migrated database that only this test uses.
#[derive(Debug)]
pub struct TestDb {
    url: String,
}

impl TestDb {
    /// Clones a database from the template for `migrations`, a text that changes whenever the
    /// migrations do (their SQL, or its hash).
    ///
    /// The first caller creates the template: `migrate` receives the connection string of an empty
    /// database, and must close its connections before it returns.
    ///
    /// # Panics
    /// If there is no server, or if a migration fails. A test can do nothing about either.
    #[expect(clippy::panic, reason = "only tests call this, and none can go on without a database")]
    pub async fn new<E: Into<AnyError>>(
        migrations: &str,
        migrate: impl AsyncFn(&str) -> Result<(), E>,
    ) -> Self {
        match Self::try_new(migrations, migrate).await {
            Ok(db) => db,
            Err(error) => {
                let causes: Vec<String> = std::iter::successors(error.source(), |&cause| cause.source())
                    .map(ToString::to_string)
                    .collect();
                panic!("no test database: {error} {causes:?}")
            }
        }
    }

    /// Returns the connection string of the database.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Opens a connection to the database.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        PgConnection::connect(&self.url).await
    }

    /// Opens a pool of at most `n_connections` to the database.
    ///
    /// # Errors
    /// If the server refuses the first connection.
    pub async fn pool(&self, n_connections: u32) -> Result<PgPool, sqlx::Error> {
        PgPoolOptions::new().max_connections(n_connections).connect(&self.url).await
    }

    async fn try_new<E: Into<AnyError>>(
        migrations: &str,
        migrate: impl AsyncFn(&str) -> Result<(), E>,
    ) -> Result<Self, AnyError> {
        let host = Host::get().await?;
        leftovers::sweep_in_background(&host.admin_url, &host.prefix);
        let mut admin = PgConnection::connect(&host.admin_url).await?;
        let template = format!("rl_t_{:016x}", fnv(migrations));
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}{}", host.own_prefix, NEXT.fetch_add(1, Ordering::Relaxed));
        ensure_template(host, &mut admin, &template, &migrate).await?;
        while let Err(error) = clone(host, &mut admin, &template, &name).await {
            // Another process may have dropped a template that looked old. The next template is the
            // newest.
            if error.as_database_error().and_then(sqlx::error::DatabaseError::code).as_deref()
                != Some("3D000")
            {
                return Err(error.into());
            }
            ensure_template(host, &mut admin, &template, &migrate).await?;
        }
        leftovers::drop_after_this_thread(&name);
        leftovers::relieve(&mut admin, &host.prefix).await?;
        admin.close().await?;
        Ok(Self { url: with_database(&host.admin_url, &name) })
    }
}

/// The server for the tests of this process.
#[derive(Debug)]
struct Host {
    admin_url: String,
    /// The cheapest way to copy a database on this server.
    strategy: &'static str,
    /// The prefix of all test databases of this machine.
    prefix: String,
    /// The prefix of the databases of this process. It contains the process id.
    own_prefix: String,
    /// Keeps the embedded server alive until the process ends.
    _server: Option<Server>,
}

impl Host {
    /// Each test has its own runtime, so nothing in here may belong to a runtime.
    async fn get() -> Result<&'static Self, AnyError> {
        static HOST: OnceCell<Host> = OnceCell::const_new();
        HOST.get_or_try_init(Self::find).await
    }

    async fn find() -> Result<Self, AnyError> {
        let given = env::var(URL_VARIABLE).ok().filter(|url| !url.is_empty());
        let (admin_url, server, machine) = match given {
            Some(url) => (url, None, format!("{:08x}", machine_hash())),
            None => {
                let server = Server::start(Options::test()).await?;
                (server.url("postgres"), Some(server), "local".to_owned())
            }
        };
        let mut admin = PgConnection::connect(&admin_url).await?;
        let strategy = clone_strategy(&mut admin).await?;
        admin.close().await?;

        // The time distinguishes two processes that had the same id.
        let instant = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        let prefix = format!("rl_test_{machine}_");
        let own_prefix = format!("{prefix}{}_{instant:x}_", std::process::id());
        Ok(Self { admin_url, strategy, prefix, own_prefix, _server: server })
    }
}

async fn clone(host: &Host, admin: &mut PgConnection, template: &str, name: &str) -> Result<(), sqlx::Error> {
    execute(admin, format!("create database {name} template {template} {}", host.strategy)).await
}

async fn ensure_template<E: Into<AnyError>>(
    host: &Host,
    admin: &mut PgConnection,
    template: &str,
    migrate: &impl AsyncFn(&str) -> Result<(), E>,
) -> Result<(), AnyError> {
    if is_template_finished(admin, template).await? == Some(true) {
        return Ok(());
    }
    let lock = "select pg_advisory_lock(hashtextextended($1, 0))";
    sqlx::query(lock).bind(template).execute(&mut *admin).await?;
    let finished = is_template_finished(admin, template).await?;
    if finished != Some(true) {
        // A process that died while it migrated left the template open.
        execute(admin, format!("drop database if exists {template} with (force)")).await?;
        execute(admin, format!("create database {template} template template0 encoding 'UTF8'")).await?;
        let url = with_database(&host.admin_url, template);
        migrate(&url).await.map_err(Into::into)?;
        // This session fills the server's catalogue cache. Each clone inherits it, and its sessions
        // start sooner.
        PgConnection::connect(&url).await?.close().await?;
        execute(admin, format!("alter database {template} allow_connections false")).await?;
    }
    let unlock = "select pg_advisory_unlock(hashtextextended($1, 0))";
    sqlx::query(unlock).bind(template).execute(&mut *admin).await?;
    Ok(())
}

/// Whether the template is complete, that is, closed to connections. `None` if there is no
/// template.
async fn is_template_finished(admin: &mut PgConnection, template: &str) -> Result<Option<bool>, sqlx::Error> {
    sqlx::query_scalar("select not datallowconn from pg_database where datname = $1")
        .bind(template)
        .fetch_optional(admin)
        .await
}

/// The statements contain only our own names: lower-case letters, digits and underscores.
async fn execute(admin: &mut PgConnection, statement: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(admin).await.map(drop)
}

/// Returns `url` with another database: the part between the first `/` after the host and the `?`.
fn with_database(url: &str, database: &str) -> String {
    let (address, parameters) =
        url.split_once('?').map_or((url, None), |(address, rest)| (address, Some(rest)));
    let host_at = address.find("://").map_or(0, |at| at + 3);
    let host_end = address[host_at..].find('/').map_or(address.len(), |at| host_at + at);
    let parameters = parameters.map(|rest| format!("?{rest}")).unwrap_or_default();
    format!("{}/{database}{parameters}", &address[..host_end])
}

/// Several machines or containers may share a server. A process id is unique only within one of
/// them.
fn machine_hash() -> u64 {
    let name = fs::read_to_string("/etc/hostname").unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    fnv(&format!("{name}{}", namespace.display())) & 0xffff_ffff
}

fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
