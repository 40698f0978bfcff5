//! A worker process with one version of a workflow: `versioned_worker <version>`, on
//! `DATABASE_URL`. Each version has its own steps.

use runledger::prelude::*;

/// Defines one version of a workflow whose runs wait between two steps.
macro_rules! version {
    ($module:ident, $version:literal, $first:literal, $last:literal) => {
        mod $module {
            use runledger::prelude::*;

            #[workflow(version = $version)]
            pub async fn versioned(wf: &Wf) -> Result<u32> {
                wf.step($first, || async { Ok::<_, Error>(()) }).await?;
                wf.signal::<()>("go").await?;
                wf.step($last, || async { Ok::<_, Error>(()) }).await?;
                Ok($version)
            }
        }
    };
}

version!(first, 1, "pack", "send");
version!(second, 2, "weigh", "hand-over");

#[tokio::main]
async fn main() -> Result<()> {
    let second = std::env::args().nth(1).as_deref() == Some("2");
    let code = if second { jobs![second::versioned] } else { jobs![first::versioned] };
    Ok(App::from_env().await?.with(code).serve().await?)
}
