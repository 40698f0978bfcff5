//! A crate that offers `runledger` to others under a name of its own.

pub use runledger as ledger;
