//! A worker whose jobs are in a crate that only its manifest names, so that they are not linked: `start` has to say so.

use runledger::{App, ClientError};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ClientError> {
    App::from_env().await?.start().await?.stop().await;
    Ok(())
}
