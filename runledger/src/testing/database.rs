//! Databases for tests. Each is a clone of a template that the process creates once, and is dropped
//! at the end of its test.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection};
use tokio::sync::OnceCell;

use crate::connection::db::no_connection;
use crate::connection::source::{parsed, shown_host, text};
use crate::connection::task::spawn_detached;
use crate::store::session::server::socket_folder;
use crate::store::testing as store;
use crate::{ClientError, Db};

/// The environment variable with the address of the test server.
const URL_VARIABLE: &str = "RUNLEDGER_TEST_DATABASE_URL";

/// The prefix of every database of the kit. The process id follows.
const PREFIX: &str = "rl_kit_";

/// How often, and at what interval, to retry a template that is in use. The server itself waits 5 s
/// each time.
const TRIES: u32 = 20;
const AGAIN: Duration = Duration::from_millis(10);

/// A server, and the template for its databases.
pub(super) struct Server {
    options: PgConnectOptions,
    /// The prefix of this process's databases.
    own: String,
    n_made: AtomicU32,
    template: String,
    /// Keeps other processes from dropping the databases whose names begin with `own`.
    _holder: PgConnection,
    /// Keeps the embedded server alive.
    #[cfg(unix)]
    _embedded: Option<crate::dev::Server>,
}

impl Server {
    /// Returns the server from the environment variable, or the embedded one. It outlives the
    /// runtime of a test, so it holds nothing that belongs to a runtime.
    pub(super) async fn usual() -> Result<Arc<Self>, ClientError> {
        static USUAL: OnceCell<Arc<Server>> = OnceCell::const_new();
        let find = async || match std::env::var_os(URL_VARIABLE).filter(|url| !url.is_empty()) {
            Some(url) => Self::at(&text(URL_VARIABLE, url)?).await,
            None => Box::pin(Self::embedded()).await,
        };
        if USUAL.get().is_none() {
            // In a task, so that a caller whose future is not polled does not block others.
            let found = spawn_detached("test server", |mut let_go| async move {
                let_go.or(async { Box::pin(USUAL.get_or_try_init(find)).await.map(drop) }).await
            });
            found.await.unwrap_or(Ok(()))?;
        }
        let found = USUAL.get().cloned();
        found.ok_or_else(|| ClientError::Config("the server of the tests was not found".to_owned()))
    }

    pub(super) async fn at(url: &str) -> Result<Arc<Self>, ClientError> {
        let options = parsed(url)?;
        #[cfg(unix)]
        let server = Box::pin(Self::with_template(options, None)).await;
        #[cfg(not(unix))]
        let server = Box::pin(Self::with_template(options)).await;
        server
    }

    #[cfg(unix)]
    async fn embedded() -> Result<Arc<Self>, ClientError> {
        let server = crate::dev::Server::start(crate::dev::Options::test()).await?;
        let options = parsed(&server.url("postgres"))?;
        Box::pin(Self::with_template(options, Some(server))).await
    }

    #[cfg(not(unix))]
    async fn embedded() -> Result<Arc<Self>, ClientError> {
        Err(ClientError::Config(format!(
            "there is no embedded PostgreSQL on this platform; set `{URL_VARIABLE}` to the address of a server"
        )))
    }

    async fn with_template(
        options: PgConnectOptions,
        #[cfg(unix)] embedded: Option<crate::dev::Server>,
    ) -> Result<Arc<Self>, ClientError> {
        // Distinguishes two processes with the same id.
        let instant = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let own = format!("{PREFIX}{}_{instant:x}_", std::process::id());
        let template = format!("{own}template");
        let options = options.disable_statement_logging();
        let holder = store::hold(&options, &own).await.map_err(|error| no_connection(&options, error))?;
        let mut admin = admin(&options).await?;
        for left_over in store::left_over(&mut admin, PREFIX).await? {
            // Another process may drop it at the same moment.
            let _ = store::drop(&mut admin, &left_over).await;
        }
        store::create(&mut admin, &template, None).await?;
        let db = Db::connect_with(options.clone().database(&template), 1).await?;
        // A template must have no sessions.
        db.pool().close().await;
        let n_made = AtomicU32::new(0);
        #[cfg(unix)]
        return Ok(Arc::new(Self { options, own, n_made, template, _holder: holder, _embedded: embedded }));
        #[cfg(not(unix))]
        Ok(Arc::new(Self { options, own, n_made, template, _holder: holder }))
    }

    /// Creates a database with our schema.
    pub(super) async fn database(self: &Arc<Self>) -> Result<Database, ClientError> {
        self.clone_of(&self.template).await
    }

    /// Clones a database. The template should have no sessions.
    pub(super) async fn clone_of(self: &Arc<Self>, template: &str) -> Result<Database, ClientError> {
        let name = format!("{}{}", self.own, self.n_made.fetch_add(1, Ordering::Relaxed));
        let mut admin = admin(&self.options).await?;
        let mut tries = TRIES;
        while let Err(error) = store::create(&mut admin, &name, Some(template)).await {
            let is_used = error
                .as_database_error()
                .and_then(sqlx::error::DatabaseError::code)
                .is_some_and(|code| code == "55006");
            if !is_used || tries == 0 {
                return Err(error.into());
            }
            // A session that was just closed is still ending, or the test left one open.
            tries -= 1;
            store::end_sessions(&mut admin, template).await?;
            tokio::time::sleep(AGAIN).await;
        }
        Ok(Database { server: Arc::clone(self), name })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop_apart(&self.options, std::mem::take(&mut self.template));
    }
}

/// A database of one test. Dropping this value drops the database.
pub(super) struct Database {
    server: Arc<Server>,
    name: String,
}

impl Database {
    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn options(&self) -> PgConnectOptions {
        self.server.options.clone().database(&self.name)
    }

    pub(super) fn url(&self) -> String {
        let options = self.options();
        // The driver panics on a socket folder as the host, and on an IPv6 address without
        // brackets.
        let options = match socket_folder(&options).map(ToOwned::to_owned) {
            Some(folder) => options.socket(folder).host("localhost"),
            None => {
                let host = shown_host(options.get_host()).into_owned();
                options.host(&host)
            }
        };
        options.to_url_lossy().to_string()
    }

    /// Drops the database, in any runtime.
    pub(super) async fn drop_now(mut self) {
        let name = std::mem::take(&mut self.name);
        drop_database(&self.server.options, &name).await;
    }
}

/// Opens a connection that may create and drop databases.
pub(super) async fn admin(options: &PgConnectOptions) -> Result<PgConnection, ClientError> {
    store::admin(options).await.map_err(|error| no_connection(options, error))
}

/// Drops a database. If that fails, the next process drops it.
async fn drop_database(options: &PgConnectOptions, name: &str) {
    if let Ok(mut admin) = store::admin(options).await {
        let _ = store::drop(&mut admin, name).await;
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            drop_apart(&self.server.options, std::mem::take(&mut self.name));
        }
    }
}

/// Drops a database in a thread with its own runtime: `drop` cannot await, and the runtime of the
/// test may be ending.
fn drop_apart(options: &PgConnectOptions, name: String) {
    let options = options.clone();
    let dropping = std::thread::spawn(move || {
        if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() {
            runtime.block_on(drop_database(&options, &name));
        }
    });
    // The thread returns nothing, and a panic in it changes nothing here.
    let _ = dropping.join();
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("name", &self.name).finish_non_exhaustive()
    }
}
