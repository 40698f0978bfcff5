//! Signals: values that a program sends to a run from outside.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use sqlx::PgPool;
use uuid::Uuid;

use crate::client::enqueue::input_difference;
use crate::client::handle::RunHandle;
use crate::connection::client_error::ClientError;
use crate::connection::db::{EnqueueTarget, Home, Target, connection, not_between_steps};
use crate::definition::Kind;
use crate::engine::step::signals::key_of;
use crate::model::graph::GRAPH;
use crate::model::json::EncodeError;
use crate::model::payload::{PayloadKind, Place, Plain, Sealer};
use crate::model::run::name::{check_key, check_name};
use crate::store::attempt::signal::{MOST_LEFT, NewSignal, Sending, send, send_alone};
use crate::store::error::{Class, class};

/// How often a signal on a pool is sent if the server or the network fails. Its key makes repeating
/// safe.
const TRIES: u32 = 4;

/// The delay before the first repetition. It doubles each time.
const FIRST_DELAY: Duration = Duration::from_millis(20);

impl<T> RunHandle<T> {
    /// Sends a value to the run, which receives it by [`Wf::signal`](crate::Wf::signal) of the same
    /// name.
    ///
    /// The run may receive it now or later. It receives the signals of one name in the order of
    /// sending, each once. Await the returned value, or [`send`](SendSignal::send) it in a
    /// transaction.
    ///
    /// A handle from [`Db::run`](crate::Db::run) does not know the job. If it is a job and not a
    /// workflow, the signal is stored and never received.
    ///
    /// # Errors
    /// [`ClientError::WrongState`] if the run has ended or is compensating its steps on its way to
    /// an end; [`TakesNoSignals`](ClientError::TakesNoSignals) if it is a run of a job;
    /// [`PartTakesNoSignals`](ClientError::PartTakesNoSignals) if it is a graph or a part of one;
    /// [`NoSuchRun`](ClientError::NoSuchRun); [`TooManySignals`](ClientError::TooManySignals) if
    /// 10,000 signals of the name are unreceived; [`SignalConflict`](ClientError::SignalConflict);
    /// [`EncodeSignal`](ClientError::EncodeSignal); an invalid name; or a database error.
    ///
    /// # Cost
    /// One transaction of two statements. Concurrent signals to the same run wait for each other.
    ///
    /// ```no_run
    /// # use runledger::prelude::*;
    /// # #[workflow] async fn checkout(wf: &Wf) -> Result<bool> { Ok(wf.signal("approval").await?) }
    /// # async fn approve(handle: RunHandle<bool>) -> Result<()> {
    /// handle.signal("approval", &true).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn signal<V: Serialize + ?Sized>(&self, name: &str, payload: &V) -> SendSignal {
        let job = self.definition().filter(|definition| definition.kind() == Kind::Job);
        let to_a_job = job.map(|definition| definition.name);
        SendSignal { to_a_job, ..SendSignal::new(self.id(), self.home(), name, payload) }
    }
}

/// A signal that is not sent yet: await it, or [`send`](Self::send) it in a transaction.
#[must_use = "a signal is not sent until it is awaited"]
pub struct SendSignal {
    run_id: Uuid,
    home: Option<Home>,
    name: String,
    payload: Result<Plain, EncodeError>,
    idempotency_key: Option<String>,
    /// The name of the job, if the run is of a job and so has no code that could receive the
    /// signal.
    to_a_job: Option<&'static str>,
}

/// Whether this call sent the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalReceipt {
    /// This call sent the signal.
    Sent,
    /// An earlier call sent a signal with this idempotency key.
    AlreadySent,
}

impl SendSignal {
    fn new<T: Serialize + ?Sized>(run_id: Uuid, home: Option<Home>, name: &str, payload: &T) -> Self {
        let (name, payload) = (name.to_owned(), Plain::of(payload));
        Self { run_id, home, name, payload, idempotency_key: None, to_a_job: None }
    }

    /// Returns a signal whose payload is already encoded.
    #[cfg(feature = "testing")]
    pub(crate) fn ready(run_id: Uuid, name: &str, payload: Plain) -> Self {
        let (name, payload) = (name.to_owned(), Ok(payload));
        Self { run_id, home: None, name, payload, idempotency_key: None, to_a_job: None }
    }

    /// Sends at most one signal with this run, name and key. 1 to 256 bytes.
    ///
    /// A repetition changes nothing, even after the run received the first signal.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Sends the signal on another pool, or in the caller's open transaction.
    ///
    /// In a transaction, the signal is sent if and only if the transaction commits. Until then the
    /// run cannot suspend, and other signals to it wait.
    ///
    /// # Errors
    /// As for [`RunHandle::signal`], and [`ClientError::Isolation`] in a transaction above
    /// `read committed`.
    ///
    /// # Cancel safety
    /// Not cancel safe: a dropped call may still send the signal. Repeating it is safe with an
    /// idempotency key.
    pub async fn send<'c, V: EnqueueTarget<'c>>(self, target: V) -> Result<SignalReceipt, ClientError> {
        not_between_steps()?;
        let mut route = target.target();
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
        // A key identifies a repetition after a lost reply.
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
        Sending::Done => Ok(SignalReceipt::Sent),
        Sending::Earlier(earlier) => {
            // Equal texts seal to different bytes, so both are opened.
            let key = key_of(&signal.name, &signal.idempotency_key);
            let place = Place::new(run_id, PayloadKind::Signal, &key);
            let both = sealer.open(&place, earlier);
            let both = both.and_then(|one| Ok((one, sealer.open(&place, signal.payload.clone())?)));
            match both.map_err(|source| ClientError::Unreadable { run_id, source })? {
                (one, other) if input_difference(&one, &other).is_none() => Ok(SignalReceipt::AlreadySent),
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
