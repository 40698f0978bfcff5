//! Signals: values that somebody outside sends to a run.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use sqlx::PgPool;
use uuid::Uuid;

use super::enqueue::input_difference;
use super::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::{Db, EnqueueTarget, Home, Target, connection, not_between_steps};
use crate::definition::Kind;
use crate::definition::job::Job;
use crate::engine::signals::key_of;
use crate::model::graph::GRAPH;
use crate::model::json::EncodeError;
use crate::model::name::{check_key, check_name};
use crate::model::payload::{PayloadKind, Place, Plain, Sealer};
use crate::store::error::{Class, class};
use crate::store::signal::{MOST_LEFT, NewSignal, Sending, send, send_alone};

/// How often a signal that is sent on a pool is sent again when the server or the network is in the way. Its key makes that safe.
const TRIES: u32 = 4;

/// The delay before such a repetition; it doubles.
const FIRST_DELAY: Duration = Duration::from_millis(20);

impl<J: Job> RunHandle<J> {
    /// Sends a value to the run, which takes it by [`Wf::signal`](crate::Wf::signal) of the same name, now or later. Signals of one name are taken in the
    /// order in which they were sent, each once. Await what this gives, or [`send`](SendSignal::send) it in a transaction.
    ///
    /// Costs a transaction of two statements. While one is being sent, others to the same run wait for it.
    ///
    /// # Errors
    /// [`ClientError::WrongState`] where the run has ended, or what its steps did is being taken back, so that it will end in that state;
    /// [`TakesNoSignals`](ClientError::TakesNoSignals) where it is of a job, [`PartTakesNoSignals`](ClientError::PartTakesNoSignals) of a graph; [`NoSuchRun`](ClientError::NoSuchRun); [`TooManySignals`](ClientError::TooManySignals) where
    /// 10,000 of the name are left; [`SignalConflict`](ClientError::SignalConflict); [`EncodeSignal`](ClientError::EncodeSignal); a name that breaks a rule;
    /// or a failure of the database.
    ///
    /// ```no_run
    /// # use runledger::prelude::*;
    /// # #[workflow] async fn checkout(wf: &Wf) -> Result<bool> { Ok(wf.signal("approval").await?) }
    /// # async fn approve(handle: RunHandle<__checkout>) -> Result<()> {
    /// handle.signal("approval", &true).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn signal<T: Serialize + ?Sized>(&self, name: &str, payload: &T) -> SendSignal {
        let definition = J::DEFINITION;
        let to_a_job = (definition.kind() == Kind::Job).then_some(definition.name);
        SendSignal { to_a_job, ..SendSignal::new(self.id(), self.home(), name, payload) }
    }
}

impl Db {
    /// Sends a value to a run that is known by its id, as [`RunHandle::signal`] does. To a run of a job it is sent too, which has no use for it: an id tells nothing of that. A graph,
    /// a gate and a map node refuse it, with [`ClientError::PartTakesNoSignals`].
    pub fn signal<T: Serialize + ?Sized>(&self, run_id: Uuid, name: &str, payload: &T) -> SendSignal {
        SendSignal::new(run_id, Some(self.home()), name, payload)
    }
}

/// A signal that is about to be sent: await it, or [`send`](Self::send) it in a transaction.
#[must_use = "a signal is not sent until it is awaited"]
pub struct SendSignal {
    run_id: Uuid,
    home: Option<Home>,
    name: String,
    payload: Result<Plain, EncodeError>,
    idempotency_key: Option<String>,
    /// The name of the job, where its run has no code that could take it.
    to_a_job: Option<&'static str>,
}

/// What became of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalReceipt {
    /// It is sent.
    Now,
    /// It had been sent before, under this idempotency key.
    Before,
}

impl SendSignal {
    fn new<T: Serialize + ?Sized>(run_id: Uuid, home: Option<Home>, name: &str, payload: &T) -> Self {
        let (name, payload) = (name.to_owned(), Plain::of(payload));
        Self { run_id, home, name, payload, idempotency_key: None, to_a_job: None }
    }

    /// A signal whose payload is encoded already.
    #[cfg(feature = "testing")]
    pub(crate) fn ready(run_id: Uuid, name: &str, payload: Plain) -> Self {
        let (name, payload) = (name.to_owned(), Ok(payload));
        Self { run_id, home: None, name, payload, idempotency_key: None, to_a_job: None }
    }

    /// At most one signal of this run, name and key is kept: a repetition changes nothing, also after the first has been taken. 1 to 256 bytes.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Sends it on another pool, or in the caller's open transaction: then it is sent if and only if that commits, and until then the run can neither park
    /// itself nor be signalled by others.
    ///
    /// # Errors
    /// As [`RunHandle::signal`], and [`ClientError::Isolation`] in a transaction above `read committed`.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have sent the signal. With an idempotency key it can be repeated.
    pub async fn send<'c, V: EnqueueTarget<'c>>(self, via: V) -> Result<SignalReceipt, ClientError> {
        not_between_steps()?;
        let mut route = via.via();
        let sealer = route.sealer()?;
        let signal = self.checked(&sealer)?;
        route.check_path().await?;
        let sending = match route {
            Target::Tx(connection, _) | Target::Connection(connection, _) => {
                send(connection, &signal).await?
            }
            Target::Pool(pool) => on_pool(pool, &signal).await?,
            Target::Db(db) => on_pool(db.pool(), &signal).await?,
        };
        signalled(sending, &signal, &sealer)
    }

    fn checked(self, sealer: &Sealer) -> Result<NewSignal, ClientError> {
        if self.to_a_job == Some(GRAPH) {
            return Err(ClientError::PartTakesNoSignals { run_id: self.run_id });
        }
        if let Some(job) = self.to_a_job {
            return Err(ClientError::TakesNoSignals { run_id: self.run_id, job });
        }
        check_name("signal", &self.name)?;
        if let Some(key) = &self.idempotency_key {
            check_key("idempotency key", key)?;
        }
        let Self { run_id, name, .. } = self;
        // So that a repetition after a lost reply is known as one.
        let idempotency_key = self.idempotency_key.unwrap_or_else(|| Uuid::now_v7().to_string());
        let key = key_of(&name, &idempotency_key);
        let place = Place::new(run_id, PayloadKind::Signal, &key);
        let sealed = self.payload.map_err(Into::into).and_then(|payload| sealer.seal(&place, payload));
        let payload = sealed.map_err(|source| ClientError::EncodeSignal { name: name.clone(), source })?;
        Ok(NewSignal { run_id, name, payload, idempotency_key })
    }
}

impl IntoFuture for SendSignal {
    type Output = Result<SignalReceipt, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Some(Home { pool, sealer }) = self.home.clone() else {
                return Err(ClientError::Detached { run_id: self.run_id });
            };
            let signal = self.checked(&sealer)?;
            signalled(on_pool(&pool, &signal).await?, &signal, &sealer)
        })
    }
}

impl fmt::Debug for SendSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendSignal")
            .field("run_id", &self.run_id)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

async fn on_pool(pool: &PgPool, signal: &NewSignal) -> Result<Sending, ClientError> {
    let mut delay = FIRST_DELAY;
    for _ in 1..TRIES {
        match send_alone(&mut *connection(pool).await?, signal).await {
            Err(error) if class(&error) != Class::Permanent => {
                tracing::debug!(%error, "a signal is sent again");
            }
            sending => return Ok(sending?),
        }
        tokio::time::sleep(delay).await;
        delay *= 2;
    }
    Ok(send_alone(&mut *connection(pool).await?, signal).await?)
}

fn signalled(sending: Sending, signal: &NewSignal, sealer: &Sealer) -> Result<SignalReceipt, ClientError> {
    let run_id = signal.run_id;
    match sending {
        Sending::Done => Ok(SignalReceipt::Now),
        Sending::Earlier(earlier) => {
            // No two texts are sealed alike, so both are opened.
            let key = key_of(&signal.name, &signal.idempotency_key);
            let place = Place::new(run_id, PayloadKind::Signal, &key);
            let both = sealer.open(&place, earlier);
            let both = both.and_then(|one| Ok((one, sealer.open(&place, signal.payload.clone())?)));
            match both.map_err(|source| ClientError::Unreadable { run_id, source })? {
                (one, other) if input_difference(&one, &other).is_none() => Ok(SignalReceipt::Before),
                _ => Err(ClientError::SignalConflict {
                    run_id,
                    name: signal.name.clone(),
                    key: signal.idempotency_key.clone(),
                }),
            }
        }
        Sending::Ended(state) => Err(ClientError::WrongState { run_id, state, verb: "signalled" }),
        Sending::Full => {
            Err(ClientError::TooManySignals { run_id, name: signal.name.clone(), limit: MOST_LEFT })
        }
        Sending::Isolation(level) => Err(ClientError::Isolation { what: "a signal", level }),
        Sending::Deaf => Err(ClientError::PartTakesNoSignals { run_id }),
        Sending::NoSuchRun => Err(ClientError::NoSuchRun { run_id }),
    }
}
