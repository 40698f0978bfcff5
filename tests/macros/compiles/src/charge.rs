//! A module with the name of its function, re-exported by its parent.

use ::runledger::{Error, Result, Tx, Wf, job, workflow};
use ::std::prelude::rust_2024::*;

/// Something to pay for.
#[derive(Clone, Copy, Debug, ::serde::Serialize, ::serde::Deserialize)]
pub struct Order {
    /// The price.
    pub cents: i64,
}

/// A payment gateway.
#[derive(Debug, Default)]
pub struct Gateway {
    /// The prefix of its answers.
    pub prefix: String,
}

/// Takes the money.
///
/// # Errors
/// If there is nothing to charge.
#[job(
    name = "billing.charge",
    aliases = ["charge", "old.charge"],
    queue = "payments",
    priority = -5,
    max_attempts = 5,
    timeout = "30s",
    backoff = "1s..5m",
    deadline = "1h",
    heartbeat = "10s",
    version = 3,
    accepts = "1..",
)]
#[must_use]
pub async fn charge(
    mut order: Order,
    currency: &str,
    #[inject] gateway: &Gateway,
    #[default = 3] factor: i64,
    note: Option<String>,
) -> Result<String> {
    if order.cents <= 0 {
        return Err(Error::terminal("nothing to charge"));
    }
    order.cents *= factor;
    let note = note.unwrap_or_default();
    Ok(::std::format!("{}{}{currency}{note}", gateway.prefix, order.cents))
}

#[job]
pub async fn record_sale(cents: i64, #[inject] tx: &mut Tx) -> Result<i64> {
    ::sqlx::query("insert into sales values ($1)").bind(cents).execute(&mut **tx).await?;
    Ok(cents)
}

#[workflow(timeout = "1h")]
pub async fn checkout(
    wf: &Wf,
    order: Order,
    #[inject] gateway: &Gateway,
    #[inject] small: &u8,
) -> Result<String> {
    let number = wf.step("seven", || async { Ok::<u64, Error>(7) }).await?;
    Ok(::std::format!("{}{number}{}{small}", gateway.prefix, order.cents))
}

/// An old name.
#[job]
#[deprecated(note = "use `charge`")]
#[cfg_attr(all(), allow(clippy::unit_arg))]
#[doc(hidden)]
pub async fn old_charge() -> Result<()> {
    Ok(())
}

#[cfg(any())]
#[job]
async fn never() -> Missing {}

#[job]
#[cfg(any())]
async fn never_either() -> Missing {}
