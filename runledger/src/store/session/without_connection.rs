//! Finds the reason why a pool had no connection in time. A pool does not keep the errors of the
//! connections that it tried to open, so a caller opens another connection. Callers that time out
//! at the same time share its answer.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::error::{DatabaseError, ErrorKind};
use sqlx::postgres::{PgConnectOptions, PgPool};
use tokio::sync::watch;

use crate::store::session::ClientSessions;

/// The result of an attempt to open a connection, shared with other callers.
type Answer = Result<(), Arc<sqlx::Error>>;

/// Returns the reason why [`acquire`](crate::store::session::acquire) timed out. It is
/// [`PoolTimedOut`](sqlx::Error::PoolTimedOut) if the server accepts connections and every
/// connection of the pool is in use. Takes at most three times the pool's acquire timeout.
pub(crate) async fn why_none(pool: &PgPool) -> sqlx::Error {
    let (options, longest) = (pool.connect_options(), pool.options().get_acquire_timeout());
    match Box::pin(shared_answer(&options, longest)).await {
        Err(error) => error,
        Ok(()) if is_exhausted(pool) => sqlx::Error::PoolTimedOut,
        Ok(()) => timed_out(Late(longest)),
    }
}

/// Replaces the timeout of a pool by the reason that [`why_none`] finds.
pub(crate) async fn with_reason<T>(pool: &PgPool, given: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
    match given {
        Err(sqlx::Error::PoolTimedOut) => Err(why_none(pool).await),
        given => given,
    }
}

/// Whether every connection that the pool allows is in use.
pub(crate) fn is_exhausted(pool: &PgPool) -> bool {
    pool.num_idle() == 0 && pool.size() >= pool.options().get_max_connections()
}

/// Opens a connection with these options. If another caller is opening one, waits at most `longest`
/// for its answer instead. The wait has a limit, because the other caller's future may not be
/// polled.
async fn shared_answer(options: &PgConnectOptions, longest: Duration) -> Result<(), sqlx::Error> {
    for _ in 0..MOST_WAITS {
        match Question::join(target(options)) {
            Part::Asks(question) => {
                let answer = open_within(options, longest).await;
                question.answer(answer.as_ref().copied().map_err(copy_of));
                return answer;
            }
            Part::Waits(mut answers) => {
                let answered = tokio::time::timeout(longest, answers.wait_for(Option::is_some)).await;
                if let Ok(Ok(answer)) = &answered
                    && let Some(answer) = &**answer
                {
                    return answer.clone().map_err(|error| copy_of(&error));
                }
                drop(answered);
                forget(&target(options), &answers);
            }
        }
    }
    open_within(options, longest).await
}

/// How often a caller waits for another caller. After that it opens a connection itself.
const MOST_WAITS: usize = 2;

/// Returns a text that differs for addresses that may get different answers. The driver's text of
/// an address panics for some hosts and roles.
fn target(options: &PgConnectOptions) -> String {
    format!("{options:?}")
}

type Answers = watch::Receiver<Option<Answer>>;

/// The questions in progress, by target.
static ASKED: Mutex<BTreeMap<String, Answers>> = Mutex::new(BTreeMap::new());

fn asked() -> MutexGuard<'static, BTreeMap<String, Answers>> {
    // Nothing panics while it holds the lock.
    ASKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A question that this caller asks. If it is dropped without an answer, another caller asks.
struct Question {
    target: String,
    answers: watch::Sender<Option<Answer>>,
}

/// A caller's part in a question.
enum Part {
    Asks(Question),
    Waits(Answers),
}

impl Question {
    fn join(target: String) -> Part {
        let mut asked = asked();
        if let Some(answers) = asked.get(&target) {
            return Part::Waits(answers.clone());
        }
        let (sender, answers) = watch::channel(None);
        asked.insert(target.clone(), answers);
        Part::Asks(Self { target, answers: sender })
    }

    fn answer(self, answer: Result<(), sqlx::Error>) {
        self.answers.send_replace(Some(answer.map_err(Arc::new)));
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        forget(&self.target, &self.answers.subscribe());
    }
}

/// Removes a question, so that the next caller asks again. No effect if another question has
/// replaced it.
fn forget(target: &str, answers: &Answers) {
    let mut asked = asked();
    if asked.get(target).is_some_and(|current| current.same_channel(answers)) {
        asked.remove(target);
    }
}

async fn open_within(options: &PgConnectOptions, longest: Duration) -> Result<(), sqlx::Error> {
    match tokio::time::timeout(longest, open(options)).await {
        Ok(opened) => opened,
        Err(_) => Err(timed_out(format!("the server has not answered within {longest:?}"))),
    }
}

/// Opens a connection with the setup of a pooled connection, to get the same error.
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

/// Whether the server accepts no further connection. Also finds this reason in an error of
/// [`unopened`](crate::store::error::unopened).
pub(crate) fn accepts_no_more(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(outer) => {
            outer.get_ref().and_then(|inner| inner.downcast_ref()).is_some_and(accepts_no_more)
        }
        _ => crate::store::session::has_code(error, "53300"),
    }
}

/// Returns an error with the same text and the same class.
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

/// A server error that another caller received.
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
    use futures_util::FutureExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::store::error::{Class, class};

    /// An address that accepts connections and never answers.
    async fn silent() -> (TcpListener, PgConnectOptions) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(port).username("nobody"))
    }

    const LONGEST: Duration = Duration::from_millis(300);
    /// Longer than all waits of a caller for `LONGEST`, on any machine.
    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn unpolled_caller_delays_others_only_for_bounded_time() {
        let (_listener, options) = silent().await;
        let mut first = Box::pin(shared_answer(&options, LONGEST));
        assert!((&mut first).now_or_never().is_none());
        let second = tokio::time::timeout(MINUTE, shared_answer(&options, LONGEST)).await;
        assert!(second.unwrap().is_err());
        // Later callers get an answer, too.
        let third = tokio::time::timeout(MINUTE, shared_answer(&options, LONGEST)).await;
        assert!(third.unwrap().is_err());
        drop(first);
    }

    #[tokio::test]
    async fn callers_waiting_on_dropped_caller_share_new_answer() {
        let (listener, options) = silent().await;
        let mut first = Box::pin(shared_answer(&options, MINUTE));
        assert!((&mut first).now_or_never().is_none());
        let others = futures_util::future::join_all((0..5).map(|_| shared_answer(&options, LONGEST)));
        let mut others = Box::pin(others);
        assert!((&mut others).now_or_never().is_none());
        drop(first);
        assert!(tokio::time::timeout(MINUTE, others).await.unwrap().iter().all(Result::is_err));
        let mut n_connections = 0;
        while Box::pin(listener.accept()).now_or_never().is_some() {
            n_connections += 1;
        }
        assert_eq!(n_connections, 2);
    }

    #[test]
    fn error_copy_keeps_text_and_class_of_original() {
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
