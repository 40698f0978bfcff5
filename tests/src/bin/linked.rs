//! `unlinked`, with the remedy that its error names, and with nothing provided.

use compiles as _;
use runledger::{App, ClientError};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), ClientError> {
    App::from_env().await?.start().await?.stop().await;
    Ok(())
}
