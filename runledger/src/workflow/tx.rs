//! Inline transactional steps.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use sqlx::PgConnection;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::step::Step;
use super::{INLINE, Wf, refused};
use crate::connection::code_context::CodeContext;
use crate::connection::db::{EnqueueTarget, Target, sealed};
use crate::connection::panic::contained;
use crate::connection::tx::Tx;
use crate::definition::invocation::{Finished, finished};
use crate::definition::job::JobResult;
use crate::engine::step::{Body, Try};
use crate::model::failure::{Failure, FailureKind};
use crate::model::name::check_name;
use crate::model::payload::Sealer;

impl Wf {
    /// Runs a closure as a step in a transaction, which is committed together with the record of the step: what it writes, the runs that it enqueues and
    /// the signals that it sends in `tx` are there once and with the record, or not at all. The engine commits, and rolls back where the closure fails.
    ///
    /// Serialization failures and deadlocks run the closure again in a fresh transaction. While it runs it holds a connection of the pool, of which a worker
    /// leaves some to others. The closure may borrow from the code, and goes on only while that polls the step: where it could and has not been polled for
    /// 10 seconds, while the code awaits something else that works, the run is parked with the reason. A transactional job that [`run`](Self::run) calls goes on by itself. Its key is its name, counted per
    /// occurrence.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    ///
    /// ```no_run
    /// # use runledger::prelude::*;
    /// # #[job] async fn restock(sku: &str) -> Result<()> { drop(sku.len()); Ok(()) }
    /// #[workflow]
    /// async fn sell(wf: &Wf, sku: String) -> Result<i64> {
    ///     let left = wf.tx("stock", |mut tx| {
    ///         let sku = sku.clone();
    ///         async move {
    ///             let left: i64 = sqlx::query_scalar("update stock set n = n - 1 where sku = $1 returning n")
    ///                 .bind(&sku)
    ///                 .fetch_one(&mut *tx)
    ///                 .await?;
    ///             if left == 0 {
    ///                 restock(&sku).enqueue(&mut tx).await?;
    ///             }
    ///             Ok::<_, Error>(left)
    ///         }
    ///     });
    ///     Ok(left.await?)
    /// }
    /// ```
    #[track_caller]
    pub fn tx<'wf, F, Fut, R>(&'wf self, name: &str, body: F) -> Step<'wf, R::Ok>
    where
        F: Fn(StepTx) -> Fut + Send + Sync + 'wf,
        Fut: Future<Output = R> + Send + 'wf,
        R: JobResult + Send,
    {
        if let Err(error) = check_name("step", name) {
            return refused(name, Failure::new(FailureKind::Setup, error.to_string()));
        }
        self.step_with(name, None, 0, INLINE, move |_, _| {
            Body::Transaction(Box::new(move |_, tx| -> Try<'wf> {
                let home = Arc::new(Mutex::new(tx));
                // Nobody else has it yet.
                let Ok(lent) = Arc::clone(&home).try_lock_owned() else {
                    return Box::pin(std::future::ready(Finished::failed(taken())));
                };
                let made = contained(|| {
                    let _inside = CodeContext::InlineStep.enter();
                    body(StepTx(lent))
                });
                match made {
                    Ok(body) => Box::pin(async move {
                        let result = CodeContext::InlineStep.of(body).await;
                        // A body that has given its transaction to somebody who still has it is not committed.
                        finished(result, Arc::into_inner(home).map(Mutex::into_inner))
                    }),
                    Err(panic) => Box::pin(std::future::ready(Finished::failed(panic))),
                }
            }))
        })
    }
}

/// The transaction of an inline step: [`Wf::tx`]. It dereferences to a connection of sqlx: `query.execute(&mut *tx)`; calls and signals take
/// `&mut tx`, which knows the codec of the worker. The engine commits it when the body
/// has returned.
#[derive(Debug)]
pub struct StepTx(OwnedMutexGuard<Tx>);

impl StepTx {
    pub(crate) fn sealer(&self) -> &Sealer {
        self.0.sealer()
    }
}

impl Deref for StepTx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for StepTx {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}

fn taken() -> Failure {
    Failure::new(FailureKind::Setup, "the transaction of this step was taken twice")
}

impl sealed::Sealed for &mut StepTx {}
impl<'c> EnqueueTarget<'c> for &'c mut StepTx {
    fn via(self) -> Target<'c> {
        let sealer = self.sealer().clone();
        Target::Tx(self, sealer)
    }
}
