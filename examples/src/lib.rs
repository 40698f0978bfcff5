//! Programs that show how Runledger is used; see `examples/`.
