//! What a run shows of itself while it works and afterwards: the progress of its bodies, and the state that its workflow publishes.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::step::Step;
use super::{Wf, refused};
use crate::client::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::connection;
use crate::connection::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::connection::outage::warn_outage;
use crate::definition::error::{Error, Result};
use crate::definition::job::{Job, Payload};
use crate::engine::context::Context;
use crate::engine::group_commit::WriteResult;
use crate::engine::step::{record, stop_reason};
use crate::engine::stop::StopReason;
use crate::engine::unpolled::at_work;
use crate::engine::waiting::REPEAT;
use crate::model::failure::{Failure, FailureKind};
use crate::model::json;
use crate::model::name::{check_name, check_text};
use crate::model::payload::{PUBLISHED, PayloadError, PayloadKind, Place, Plain};
use crate::store::error::{Class, class};
use crate::store::progress::{self, ProgressWrite};
use crate::store::without_connection::accepts_no_more;

/// How long a look at the last progress waits for a connection that the body itself may hold.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

impl Context {
    /// Says how far this body is, in the place of what it said before: another try of it, or another attempt after a crash, is told by
    /// [`last_progress`](Self::last_progress), and so is everybody by [`RunHandle::progress`]. The value is kept when the call returns, also where the body
    /// fails afterwards or is transactional and rolled back. It is a sign of life for [`Step::heartbeat_timeout`].
    ///
    /// Costs one statement, shared with what other runs say at the same time.
    ///
    /// # Errors
    /// The value cannot be stored; no retry mends that. An attempt that has lost its lease writes nothing and ends here.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have kept the value.
    pub fn progress<'c, T>(&'c self, value: &T) -> impl Future<Output = Result<()>> + Send + use<'c, T>
    where
        T: Serialize + ?Sized,
    {
        let value = Plain::of(value);
        async move {
            let key = self.step_key().unwrap_or_default();
            self.of_attempt().beat(key);
            let fence = self.of_attempt().fence;
            let place = Place::new(fence.run_id, PayloadKind::Progress, key);
            let value = value.map_err(Error::terminal)?;
            let value = self.of_attempt().sealer().seal(&place, value).map_err(Error::terminal)?;
            let item = ProgressWrite { fence, step_key: key.to_owned(), value };
            let written = self.of_attempt().commit_queue.write(item).await;
            self.of_attempt().beat(key);
            match written {
                WriteResult::Yes => Ok(()),
                WriteResult::LeaseLost | WriteResult::Gone => {
                    stop_reason(self.of_attempt(), StopReason::LeaseLost).await
                }
                WriteResult::Refused(failure) => Err(Error::terminal(failure)),
            }
        }
    }

    /// What this body said last of how far it is, in this try, in an earlier one, or in an earlier attempt of the run; none where it has said nothing.
    /// One query, repeated while the database is away.
    ///
    /// # Errors
    /// The value does not fit the type, or the database refuses the query. Or no connection of the pool became free for
    /// 30 s, and the database accepts no other: then this body may be waiting for its own.
    pub async fn last_progress<T: Payload>(&self) -> Result<Option<T>> {
        let (attempt, key) = (self.of_attempt(), self.step_key().unwrap_or_default());
        let mut starved_since = None;
        let said = loop {
            let looked = match with_timeout(STATEMENT_LIMIT, attempt.db.acquire()).await {
                Ok(mut connection) => {
                    starved_since = None;
                    with_timeout(STATEMENT_LIMIT, progress::last(&mut connection, self.run_id(), key)).await
                }
                Err(error) if is_starved(&error) => {
                    if starved_since.get_or_insert_with(Instant::now).elapsed() > LONGEST_WAIT {
                        return Err(NoConnection(error).into());
                    }
                    Err(error)
                }
                Err(error) => Err(error),
            };
            match looked {
                Ok(said) => break said,
                Err(error) if class(&error) == Class::Permanent => return Err(error.into()),
                Err(error) => {
                    warn_outage!(static, %error, "a look at the progress waits for the database");
                }
            }
            tokio::time::sleep(REPEAT).await;
        };
        let Some(said) = said else { return Ok(None) };
        let place = Place::new(self.run_id(), PayloadKind::Progress, key);
        let value = attempt.sealer().open(&place, said).map_err(Error::terminal)?;
        json::decode(&value).map(Some).map_err(Error::terminal)
    }
}

/// Whether there is no connection although the server is there.
fn is_starved(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::PoolTimedOut) || accepts_no_more(error)
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the last progress cannot be read: no connection became free for 30 seconds, perhaps because this body holds one, and the \
     database accepts no other; allow more connections"
)]
struct NoConnection(#[source] sqlx::Error);

impl Wf {
    /// Shows a value under a name, in the place of the one before: [`RunHandle::query`] gives it while the run goes on and after its end. The name is of the
    /// form of a step's.
    ///
    /// It is a step, with the value as its record: a replay passes it without publishing anything again, and a run that is made of this one by `fork` or
    /// `revive` shows what was published up to there. Costs one statement, shared with other steps.
    ///
    /// # Errors
    /// The value cannot be stored, or the name breaks a rule.
    #[track_caller]
    pub fn publish<T: Serialize + ?Sized>(&self, name: &str, value: &T) -> Step<'_, ()> {
        if let Err(error) = check_name("published state", name) {
            return refused(name, Failure::new(FailureKind::Setup, error.to_string()));
        }
        let value = match Plain::of(value) {
            Ok(value) => value,
            Err(error) => return refused(name, Failure::from_chain(FailureKind::Encode, &error)),
        };
        let claim = match self.claim(&key_of(name), None, 0) {
            Ok(claim) => claim,
            Err(step) => return step,
        };
        let attempt = Arc::clone(self.attempt());
        let key = claim.key.as_str().to_owned();
        let work = async move {
            let result = match attempt.result(claim.ordinal) {
                Some(recorded) if claim.recorded => recorded,
                _ => at_work(&attempt, &claim, Box::pin(record(&attempt, &claim, 0, Ok(value)))).await,
            };
            attempt.turn(claim.ordinal).await;
            result
        };
        Step::without_tries(key, move || Box::pin(work), |recorded| recorded.map(drop))
    }
}

impl<J: Job> RunHandle<J> {
    /// What the run's workflow published last under this name, while it goes on and after its end; none where it has published nothing there. One query.
    ///
    /// # Errors
    /// [`ClientError::Decode`], [`ClientError::Unreadable`], or a failure of the database.
    pub async fn query<T: Payload>(&self, name: &str) -> std::result::Result<Option<T>, ClientError> {
        check_text("published state", name)?;
        let mut connection = connection(self.pool()?).await?;
        let published = progress::published(&mut connection, self.id(), &key_of(name)).await?;
        let sealer = self.sealer();
        let opened = published.map(|(key, value)| sealer.open(&Place::of_step(self.id(), &key), value));
        self.decoded(opened)
    }

    /// What the body of the job said last of how far it is ([`Context::progress`]); none where it has said nothing. One query.
    ///
    /// # Errors
    /// [`ClientError::Decode`], [`ClientError::Unreadable`], or a failure of the database.
    pub async fn progress<T: Payload>(&self) -> std::result::Result<Option<T>, ClientError> {
        self.step_progress("").await
    }

    /// As [`progress`](Self::progress), of the body of a step.
    ///
    /// # Errors
    /// As [`progress`](Self::progress).
    pub async fn step_progress<T: Payload>(
        &self,
        step_key: &str,
    ) -> std::result::Result<Option<T>, ClientError> {
        check_text("step", step_key)?;
        let mut connection = connection(self.pool()?).await?;
        let said = progress::last(&mut connection, self.id(), step_key).await?;
        let (sealer, place) = (self.sealer(), Place::new(self.id(), PayloadKind::Progress, step_key));
        self.decoded(said.map(|value| sealer.open(&place, value)))
    }

    fn decoded<T: Payload>(
        &self,
        opened: Option<std::result::Result<String, PayloadError>>,
    ) -> std::result::Result<Option<T>, ClientError> {
        let value = opened.transpose().map_err(|source| self.unreadable(source))?;
        let decoded = value.as_deref().map(json::decode).transpose();
        decoded.map_err(|source| ClientError::Decode { run_id: self.id(), source })
    }
}

fn key_of(name: &str) -> String {
    format!("{PUBLISHED}{name}")
}
