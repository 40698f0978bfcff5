//! `unlinked` with the remedy that its error names, but without any provided value.

use compiles as _;
use runledger::{App, ClientError};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ClientError> {
    App::from_env().await?.start().await?.stop().await;
    Ok(())
}
