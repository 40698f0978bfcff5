//! A crate that uses `runledger` only through another one.

use ::facade::ledger::{Error, Result, Wf, job, workflow};
use ::std::prelude::rust_2024::*;

#[job(crate = ::facade::ledger)]
pub async fn through(value: u8) -> Result<u8> {
    Ok(value)
}

#[workflow(crate = crate::facades::relay::ledger, name = "facade.flow")]
pub async fn flow(wf: &Wf, value: u8) -> Result<u64> {
    Ok(u64::from(value) + wf.step("seven", || async { Ok::<u64, Error>(7) }).await?)
}

pub mod relay {
    //! A path that begins with `crate`.
    pub use ::facade::ledger;
}
