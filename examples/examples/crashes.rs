//! Tests a workflow by killing its worker at every write. A payment without an idempotency key is
//! charged twice, a payment with a key once.
//!
//! `cargo crashes`
#![expect(clippy::print_stdout, reason = "the program's output is for the person who runs it")]

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use runledger::prelude::*;
use runledger::testing::{Ended, Testing};
use uuid::Uuid;

/// A fake payment service that counts payments. A repeated key is not a new payment.
#[derive(Default)]
struct Gateway {
    payments: Mutex<HashSet<Uuid>>,
}

impl Gateway {
    async fn charge(&self, key: Uuid) -> Result<Uuid> {
        // Nothing panics while it holds the lock.
        self.payments.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        Ok(key)
    }

    fn n_payments(&self) -> usize {
        self.payments.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Charges again on every attempt.
#[job]
async fn charge_anew(#[inject] gateway: &Gateway) -> Result<Uuid> {
    gateway.charge(Uuid::new_v4()).await
}

/// Charges once, because every attempt of this step has the same key.
#[job]
async fn charge(#[inject] gateway: &Gateway, #[inject] context: &Context) -> Result<Uuid> {
    gateway.charge(context.idempotency_key()).await
}

#[workflow]
async fn checkout(wf: &Wf, with_key: bool) -> Result<()> {
    let receipt = if with_key { wf.run(charge()).await? } else { wf.run(charge_anew()).await? };
    let is_approved: bool = wf.signal("approval").await?;
    wf.sleep(Duration::from_secs(14 * 86_400)).await?;
    let says = || async { Ok::<_, Error>(format!("{receipt}: {is_approved}")) };
    wf.step("thank", says).await?;
    Ok(())
}

/// Checks the end of a run after any crash of a worker.
async fn is_paid_once(end: Ended<()>) -> Result<()> {
    end.result()?;
    match end.fake::<Gateway>().map_or(0, |gateway| gateway.n_payments()) {
        1 => Ok(()),
        n => Err(format!("the customer has paid {n} times"))?,
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    if runledger_examples::helped(
        "usage: cargo crashes\n\nA test of one's own workflow: its worker dies at every write of a run. A payment without an idempotency key is charged twice, and one with it once.",
    ) {
        return Ok(());
    }
    let test = Testing::new().await?.provide_shared_fake(Gateway::default).signals([("approval", true)]);
    match test.crash_everywhere(checkout(false)).invariant(is_paid_once).await {
        Ok(crashes) => println!("without a key: {crashes}"),
        Err(error) => println!("without a key: {error}"),
    }
    let crashes = test.crash_everywhere(checkout(true)).invariant(is_paid_once).await?;
    println!("with a key: {crashes}");
    Ok(())
}
