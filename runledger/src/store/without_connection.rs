//! Why a pool had no connection in time. A pool does not keep the errors of the connections that it tried to open, so one
//! of its callers opens another connection. All callers that time out meanwhile share the answer.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::error::{DatabaseError, ErrorKind};
use sqlx::postgres::{PgConnectOptions, PgPool};
use tokio::sync::OnceCell;

use super::session::ClientSessions;

/// What came of an attempt to open a connection.
type Answer = Result<(), Arc<sqlx::Error>>;

/// Why [`acquire`](super::session::acquire) timed out. [`PoolTimedOut`](sqlx::Error::PoolTimedOut) if the server accepts
/// connections and every connection of the pool is in use.
pub(crate) async fn why_none(pool: &PgPool) -> sqlx::Error {
    let (options, longest) = (pool.connect_options(), pool.options().get_acquire_timeout());
    match Box::pin(shared_answer(&options, longest)).await {
        Err(error) => copy_of(&error),
        Ok(()) if is_exhausted(pool) => sqlx::Error::PoolTimedOut,
        Ok(()) => timed_out(Late(longest)),
    }
}

/// Replaces the time-out of a pool by its reason, which [`why_none`] finds.
pub(crate) async fn with_reason<T>(pool: &PgPool, given: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
    match given {
        Err(sqlx::Error::PoolTimedOut) => Err(why_none(pool).await),
        given => given,
    }
}

/// Whether every connection that a pool may have is in use.
pub(super) fn is_exhausted(pool: &PgPool) -> bool {
    pool.num_idle() == 0 && pool.size() >= pool.options().get_max_connections()
}

/// Opens a connection with these options, or waits for the answer to somebody who does.
async fn shared_answer(options: &PgConnectOptions, longest: Duration) -> Answer {
    static QUESTIONS: Mutex<BTreeMap<String, Arc<OnceCell<Answer>>>> = Mutex::new(BTreeMap::new());
    fn questions() -> MutexGuard<'static, BTreeMap<String, Arc<OnceCell<Answer>>>> {
        // Nothing panics while it holds the lock.
        QUESTIONS.lock().unwrap_or_else(PoisonError::into_inner)
    }
    let name = options.to_url_lossy().to_string();
    let question = Arc::clone(questions().entry(name.clone()).or_default());
    let ask = async || {
        let answer = match tokio::time::timeout(longest, open(options)).await {
            Ok(opened) => opened,
            Err(_) => Err(timed_out(format!("the server has not answered within {longest:?}"))),
        };
        questions().remove(&name);
        answer.map_err(Arc::new)
    };
    question.get_or_init(ask).await.clone()
}

/// Opens a connection that is set up like those of a pool, to get the same error.
async fn open(options: &PgConnectOptions) -> Result<(), sqlx::Error> {
    let mut connection = Box::pin(options.connect()).await?;
    ClientSessions::to(options).open(&mut connection).await
}

fn timed_out(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> sqlx::Error {
    io::Error::new(io::ErrorKind::TimedOut, why).into()
}

/// The server accepts connections, and the pool had none in time.
#[derive(Debug, thiserror::Error)]
#[error("the pool had no connection within {0:?}")]
struct Late(Duration);

/// Whether a pool had no connection in time although the server accepts connections.
pub(crate) fn is_late(error: &sqlx::Error) -> bool {
    let sqlx::Error::Io(error) = error else { return false };
    error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Late>)
}

/// An error with the same text, of the same class.
fn copy_of(error: &sqlx::Error) -> sqlx::Error {
    match error {
        sqlx::Error::Database(told) => sqlx::Error::Database(Box::new(Told {
            code: told.code().map(Cow::into_owned),
            message: told.message().to_owned(),
        })),
        sqlx::Error::Io(error) => io::Error::new(error.kind(), error.to_string()).into(),
        sqlx::Error::Tls(error) => sqlx::Error::Tls(error.to_string().into()),
        sqlx::Error::Configuration(error) => sqlx::Error::Configuration(error.to_string().into()),
        sqlx::Error::Protocol(text) => sqlx::Error::Protocol(text.clone()),
        other => io::Error::other(other.to_string()).into(),
    }
}

/// An error of the server that another caller received.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Told {
    code: Option<String>,
    message: String,
}

impl DatabaseError for Told {
    fn message(&self) -> &str {
        &self.message
    }

    fn code(&self) -> Option<Cow<'_, str>> {
        self.code.as_deref().map(Cow::Borrowed)
    }

    fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
        self
    }

    fn kind(&self) -> ErrorKind {
        ErrorKind::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::error::{Class, class};

    #[test]
    fn copy_has_the_text_and_the_class_of_its_original() {
        let told = Told { code: Some("53300".to_owned()), message: "too many clients".to_owned() };
        let originals = [
            sqlx::Error::Database(Box::new(told)),
            timed_out("it took too long"),
            sqlx::Error::Tls("no certificate".into()),
            sqlx::Error::Configuration("no such option".into()),
            sqlx::Error::Protocol("a stray message".to_owned()),
        ];
        for original in originals {
            let copy = copy_of(&original);
            assert_eq!((copy.to_string(), class(&copy)), (original.to_string(), class(&original)));
        }
        assert_eq!(class(&copy_of(&sqlx::Error::WorkerCrashed)), Class::Transient);
    }
}
