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
use crate::model::payload::Sealer;
use crate::model::run::failure::{Failure, FailureKind};
use crate::model::run::name::check_name;

impl Wf {
    /// Executes a closure as a step in a transaction, which commits together with the record of the
    /// step.
    ///
    /// Its writes, the runs it enqueues and the signals it sends with `tx` exist once and together
    /// with the record, or not at all. The engine commits, and rolls back if the closure fails.
    /// After a serialization failure or a deadlock, the closure runs again in a new transaction.
    /// The key of the step is its name, counted per occurrence.
    ///
    /// - While the closure runs, it holds a connection of the pool. A worker reserves some
    ///   connections for other uses.
    /// - The closure may borrow from the workflow's code, so it progresses only while the code
    ///   polls the step. If the step is ready but unpolled for 10 s, while the code awaits
    ///   something else that works, the run is blocked with the reason. A transactional job called
    ///   by [`run`](Self::run) progresses without being polled.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
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
                // Nothing else has a reference yet, so the lock is free.
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
                        // If the body passed its transaction to something that still holds it,
                        // nothing is committed.
                        finished(result, Arc::into_inner(home).map(Mutex::into_inner))
                    }),
                    Err(panic) => Box::pin(std::future::ready(Finished::failed(panic))),
                }
            }))
        })
    }
}

/// The transaction of an inline step, made by [`Wf::tx`].
///
/// It dereferences to an sqlx connection: `query.execute(&mut *tx)`. Calls and signals take
/// `&mut tx`, which knows the worker's codec. The engine commits the transaction after the body has
/// returned.
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
    fn target(self) -> Target<'c> {
        let sealer = self.sealer().clone();
        Target::Tx(self, sealer)
    }
}
