//! A crate that re-exports `runledger` under another name.

pub use runledger as ledger;
