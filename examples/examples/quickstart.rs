//! Surveys a folder durably: lists it, measures every file as a separate step, and merges the
//! results into a report.
//!
//! `cargo quickstart --crash-after 60` kills the process in the middle. The next `cargo quickstart`
//! resumes the run, as it does after Ctrl-C, `kill -9` or a power failure.
#![expect(clippy::print_stdout, reason = "the program's output is for the person who runs it")]

use futures::stream::{self, StreamExt, TryStreamExt};
use runledger::Timings;
use runledger::prelude::*;
use runledger_examples::{
    Arguments, FileFacts, Listing, Report, Screen, USAGE, Witness, helped, key_of, list_files, measure_file,
    queue_of, resume_or_begin, text_of,
};

/// How many files to measure at a time.
const AT_ONCE: usize = 8;

/// Lists the next files. The recorded list stays the same after a crash, even if the folder has
/// changed.
#[job]
async fn list(
    folder: &str,
    after: &str,
    #[inject] witness: &Witness,
    #[inject] context: &Context,
) -> Result<Listing> {
    witness.body(context).await?;
    Ok(list_files(folder, after).await?)
}

/// Measures one file: its size, its lines, its digest.
#[job]
async fn measure(
    folder: &str,
    file: &str,
    #[inject] witness: &Witness,
    #[inject] context: &Context,
) -> Result<FileFacts> {
    witness.body(context).await?;
    Ok(measure_file(folder, file).await?)
}

/// Surveys the folder. After a crash, the workflow executes from its beginning and skips its
/// recorded steps.
#[workflow]
async fn survey(wf: &Wf, folder: &str) -> Result<Report> {
    let mut listing = wf.run(list(folder, "")).await?;
    while !listing.is_complete {
        listing.append(wf.run(list(folder, listing.last())).await?);
    }
    let steps: Vec<_> =
        listing.files.iter().map(|file| wf.run(measure(folder, file).key(key_of(file)))).collect();
    let facts: Vec<FileFacts> = stream::iter(steps).buffered(AT_ONCE).try_collect().await?;
    Ok(wf.step("merge", || async { Ok::<_, Error>(Report::merge(&listing, &facts)) }).await?)
}

#[tokio::main]
async fn main() -> Result<()> {
    if helped(USAGE) {
        return Ok(());
    }
    tracing_subscriber::fmt().with_env_filter("warn").with_writer(std::io::stderr).init();
    let Arguments { folder, crash_after, fresh } = Arguments::of_process()?;
    let (queue, folder) = (queue_of(&folder), text_of(&folder));
    let db = Db::from_env().await?;
    let handle = resume_or_begin(&db, &queue, fresh, || survey(&folder)).await?;
    let before = handle.steps().await?;
    match handle.created() {
        true => println!("survey of {folder}: a new run, {}", handle.id()),
        false => println!("survey of {folder}: run {} continues after {} steps", handle.id(), before.len()),
    }

    let worker = App::new(db.clone())
        .queues([&queue])
        .name(&queue) // A restarted worker with the same name takes over its old runs at once.
        .timings(Timings::FAST)
        .provide(Witness::new(&db, handle.id(), before.len() as u64, crash_after))
        .start()
        .await?;
    let screen = Screen::new(&db, handle.id());
    let report = tokio::select! {
        report = handle.result() => report?,
        Err(error) = screen.follow() => return Err(error.into()),
    };
    screen.finish().await?;
    println!("{}\n\n{report}", Screen::summary(&before, &handle.steps().await?));
    worker.stop().await;
    Ok(())
}
