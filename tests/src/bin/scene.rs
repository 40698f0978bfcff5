//! A process that plays a scene, for tests of failpoints: `scene <url> <scene> <place> [<point>
//! <moment> <action>]`.
//!
//! The process prints `hits <n>` at the end of the scene.

use std::io::Write;

use anyhow::Context;
use runledger::__private::failpoints;
use runledger_tests::check::points::arm;
use runledger_tests::check::scenes::SCENES;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    runledger_tests::logs::subscribe();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, scene, place, point @ ..] = args.as_slice() else { anyhow::bail!("too few arguments") };
    let scene = SCENES.into_iter().find(|known| format!("{known:?}") == *scene).context("no such scene")?;
    let place = serde_json::from_str(place)?;
    arm(point)?;
    scene.play(url, &place).await?;
    Ok(writeln!(std::io::stdout(), "hits {}", failpoints::n_hits())?)
}
