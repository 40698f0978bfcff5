//! Data that a run shows to other programs: the progress of its bodies, and published state.

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
use crate::definition::job::Payload;
use crate::engine::attempt::context::Context;
use crate::engine::attempt::stop::StopReason;
use crate::engine::group_commit::WriteResult;
use crate::engine::step::unpolled::at_work;
use crate::engine::step::waiting::REPEAT;
use crate::engine::step::{record, stop_reason};
use crate::model::json;
use crate::model::payload::{PUBLISHED, PayloadError, PayloadKind, Place, Plain};
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::name::{check_name, check_text};
use crate::store::attempt::progress::{self, ProgressWrite};
use crate::store::error::{Class, class};
use crate::store::session::without_connection::accepts_no_more;

/// How long reading the last progress waits for a free connection. The body itself may hold one.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

impl Context {
    /// Stores how far this body has come, replacing its earlier progress.
    ///
    /// [`last_progress`](Self::last_progress) returns it to the next try of the body, also after a
    /// crash. [`RunHandle::progress`] returns it to other programs. It is stored when this call
    /// returns, even if the body later fails, or is transactional and rolled back. It counts as a
    /// sign of life for [`Step::heartbeat_timeout`].
    ///
    /// # Errors
    /// The value cannot be stored; this failure is not retried. An attempt that has lost its lease
    /// writes nothing and ends at this call.
    ///
    /// # Cost
    /// One statement, shared with the progress of other runs.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still store the value.
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

    /// Returns the last progress of this body, from this try, an earlier try or an earlier attempt.
    ///
    /// `None` if the body has stored none. One query, repeated during a database outage.
    ///
    /// # Errors
    /// The value does not fit the type, or the database refuses the query. Or no connection of the
    /// pool became free for 30 s while the database accepts no new ones: this body may then hold
    /// the connection it waits for.
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

/// Whether no connection is available although the server is reachable.
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
    /// Publishes a value under a name, replacing the previous one.
    ///
    /// [`RunHandle::query`] returns it while the run is live and after its end. The name follows
    /// the rules for step names. Publishing is a step that records the value. A replay does not
    /// publish it again. A run created by `fork` or `revive` shows the values published in the
    /// steps it keeps.
    ///
    /// # Errors
    /// The value cannot be stored, or the name is invalid.
    ///
    /// # Cost
    /// One statement, shared with other steps.
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

impl<T> RunHandle<T> {
    /// Returns the value that the run's workflow last published under this name. One query.
    ///
    /// It works while the run is live and after its end. `None` if the workflow has published none.
    ///
    /// # Errors
    /// [`ClientError::Decode`], [`ClientError::Unreadable`], or a database error.
    pub async fn query<V: Payload>(&self, name: &str) -> std::result::Result<Option<V>, ClientError> {
        check_text("published state", name)?;
        let mut connection = connection(self.pool()?).await?;
        let published = progress::published(&mut connection, self.id(), &key_of(name)).await?;
        let sealer = self.sealer();
        let opened = published.map(|(key, value)| sealer.open(&Place::of_step(self.id(), &key), value));
        self.decoded(opened)
    }

    /// Returns the last progress of the job's body ([`Context::progress`]). One query.
    ///
    /// `None` if the body has stored none.
    ///
    /// # Errors
    /// [`ClientError::Decode`], [`ClientError::Unreadable`], or a database error.
    pub async fn progress<V: Payload>(&self) -> std::result::Result<Option<V>, ClientError> {
        self.step_progress("").await
    }

    /// Returns the last progress of a step's body, like [`progress`](Self::progress).
    ///
    /// # Errors
    /// As for [`progress`](Self::progress).
    pub async fn step_progress<V: Payload>(
        &self,
        step_key: &str,
    ) -> std::result::Result<Option<V>, ClientError> {
        check_text("step", step_key)?;
        let mut connection = connection(self.pool()?).await?;
        let said = progress::last(&mut connection, self.id(), step_key).await?;
        let (sealer, place) = (self.sealer(), Place::new(self.id(), PayloadKind::Progress, step_key));
        self.decoded(said.map(|value| sealer.open(&place, value)))
    }

    fn decoded<V: Payload>(
        &self,
        opened: Option<std::result::Result<String, PayloadError>>,
    ) -> std::result::Result<Option<V>, ClientError> {
        let value = opened.transpose().map_err(|source| self.unreadable(source))?;
        let decoded = value.as_deref().map(json::decode).transpose();
        decoded.map_err(|source| ClientError::Decode { run_id: self.id(), source })
    }
}

fn key_of(name: &str) -> String {
    format!("{PUBLISHED}{name}")
}
