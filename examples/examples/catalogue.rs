//! A catalogue of this repository's decisions, built by a graph. The graph reads each page, hashes
//! it, merges the results, waits at a gate for a person, and publishes. The example prints the
//! graph before and after, and writes it as SVG, DOT and JSON to the catalogue's folder.
//!
//! `cargo example catalogue [FOLDER]`; the default is a temporary folder.
#![expect(clippy::print_stdout, reason = "the program's output is for the person who runs it")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use runledger::prelude::*;
use runledger::{Graph, GraphPicture, GraphState, Outcome, value};
use runledger_examples::{digest_of, list_files, text_of};
use serde::{Deserialize, Serialize};

/// The folder of the pages.
const PAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/decisions");

/// The pause between two polls of the graph's state.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Serialize, Deserialize)]
struct Source {
    file: String,
    text: String,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    file: String,
    title: String,
    digest: String,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    entries: Vec<Entry>,
    digest: String,
}

#[job]
async fn read(file: String) -> Result<Source> {
    let path = Path::new(PAGES).join(&file);
    let text = tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await??;
    Ok(Source { file, text })
}

#[job]
async fn hash(source: Source) -> Result<Entry> {
    let title = source.text.lines().next().unwrap_or_default().trim_start_matches('#').trim();
    Ok(Entry { title: title.to_owned(), digest: digest_of(source.text.as_bytes()), file: source.file })
}

#[job]
async fn merge(mut entries: Vec<Entry>) -> Result<Manifest> {
    entries.sort_by(|one, other| one.file.cmp(&other.file));
    let all: String = entries.iter().map(|entry| format!("{} {}\n", entry.digest, entry.file)).collect();
    Ok(Manifest { entries, digest: digest_of(all.as_bytes()) })
}

/// Writes the catalogue atomically, so that readers never see a part of it. Repeating it gives the
/// same file.
#[job]
async fn publish(manifest: Manifest, approved_by: &str, folder: &Path) -> Result<PathBuf> {
    let mut page = format!("# Decisions\n\n{} approved by {approved_by}\n\n", manifest.digest);
    for Entry { file, title, digest } in &manifest.entries {
        page += &format!("- {title}: `{file}`, {digest}\n");
    }
    let (part, whole) = (folder.join("catalogue.md.part"), folder.join("catalogue.md"));
    let path = whole.clone();
    tokio::task::spawn_blocking(move || {
        std::fs::write(&part, page)?;
        std::fs::rename(&part, &whole)
    })
    .await??;
    Ok(path)
}

/// Runs after any outcome of the publication.
#[job]
async fn tell(published: Outcome<PathBuf>) -> Result<String> {
    Ok(match published {
        Outcome::Completed(path) => format!("published: {}", path.display()),
        Outcome::Failed(failure) | Outcome::Cancelled(failure) => format!("not published: {failure}"),
    })
}

fn catalogue(files: &[String], folder: PathBuf) -> Graph<String> {
    let mut graph = Graph::new("catalogue");
    let mut entries = Vec::new();
    for file in files {
        let source = graph.call(read(file.clone()).key(file));
        let entry = graph.then(hash, (source,));
        graph.configure(entry).name(format!("hash[{file}]"));
        entries.push(entry);
    }
    let manifest = graph.then(merge, (entries,));
    let approved = graph.gate::<String>("approved");
    graph.after(approved, manifest);
    let published = graph.then(publish, (manifest, approved, value(folder)));
    let told = graph.then(tell, (published.on_any_outcome(),));
    graph.result(told)
}

/// Writes a picture in every format.
fn keep(folder: &Path, name: &str, picture: &GraphPicture) -> Result<()> {
    let forms = [("svg", picture.to_svg()), ("dot", picture.to_dot()), ("json", picture.to_json()?)];
    for (form, text) in forms {
        std::fs::write(folder.join(format!("{name}.{form}")), text)?;
    }
    println!("in {}: {name}.svg, {name}.dot, {name}.json\n", folder.display());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    if runledger_examples::helped(
        "usage: cargo example catalogue [FOLDER]\n\nA catalogue of the decisions of this repository, built as a build system builds: a graph reads and hashes each page, merges the results, waits for a person's approval, and publishes the catalogue.",
    ) {
        return Ok(());
    }
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| std::env::temp_dir().join("runledger-catalogue"));
    std::fs::create_dir_all(&folder)?;
    let folder = folder.canonicalize()?;
    let files = list_files(&text_of(Path::new(PAGES)), "").await?.files;

    let graph = catalogue(&files, folder.clone());
    println!("declared\n{}", graph.picture()?);

    let db = Db::from_env().await?;
    let worker = App::new(db.clone()).start().await?;
    let handle = graph.enqueue(&db).await?;
    while handle.graph_state().await? == GraphState::Running {
        tokio::time::sleep(LOOK).await;
    }
    let picture = handle.picture().await?;
    println!("waiting for a person\n{picture}");
    keep(&folder, "waiting", &picture)?;

    let approved = handle.gate("approved").by("ann").reason("every page has a title");
    approved.complete(&"ann".to_owned()).await?;
    let told = handle.result().await?;
    let picture = handle.picture().await?;
    println!("in the end\n{picture}");
    keep(&folder, "ended", &picture)?;
    println!("{told}");
    worker.stop().await;
    Ok(())
}
