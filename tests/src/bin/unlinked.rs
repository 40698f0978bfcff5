//! A worker whose jobs are in a crate that only the manifest names. The linker drops them, and
//! `start` must report that.

use runledger::{App, ClientError};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ClientError> {
    App::from_env().await?.start().await?.stop().await;
    Ok(())
}
