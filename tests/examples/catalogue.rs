//! The catalogue: built from the existing files, and drawn in its final state.

use std::path::Path;

use runledger::{EdgeKind, GraphPicture, GraphState, RunState};
use runledger_examples::{list_files, measure_file, text_of};
use runledger_tests::Fixture;

use crate::program::{example, run};

const PAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/decisions");

/// Returns the picture with this name. Checks that all its forms were written.
fn picture(folder: &Path, name: &str) -> GraphPicture {
    let written = |form: &str| std::fs::read_to_string(folder.join(format!("{name}.{form}"))).unwrap();
    let picture = GraphPicture::from_json(&written("json")).unwrap();
    assert_eq!((picture.to_svg(), picture.to_dot()), (written("svg"), written("dot")));
    picture
}

fn named(picture: &GraphPicture, state: RunState) -> Vec<&str> {
    let of_state = picture.nodes.iter().filter(|node| node.state == Some(state));
    of_state.map(|node| node.name.as_str()).collect()
}

#[tokio::test]
async fn catalogue_is_published_after_approval_and_drawn_before_and_after() {
    let fixture = Fixture::new().await;
    let folder = std::env::temp_dir().join(format!("runledger-catalogue-{}", std::process::id()));
    let output = run(example("catalogue", &fixture).arg(&folder)).output();
    let pages = text_of(Path::new(PAGES));
    let files = list_files(&pages, "").await.unwrap().files;
    assert!(files.len() > 10, "{files:?}");

    let heading = format!("catalogue: {0} nodes and {0} edges", 2 * files.len() + 4);
    let (declared, rest) = output.split_once("waiting for a person\n").unwrap();
    let (waiting, ended) = rest.split_once("in the end\n").unwrap();
    assert!(declared.starts_with(&format!("declared\n{heading}\n")), "{output}");
    assert!(waiting.contains("open: nobody has decided"), "{output}");
    assert!(ended.contains("decided by `ann`: every page has a title"), "{output}");
    assert!(ended.contains("\npublished: "), "{output}");

    let waiting = picture(&folder, "waiting");
    assert_eq!((waiting.state, waiting.result.as_deref()), (Some(GraphState::Waiting), Some("tell")));
    assert_eq!(named(&waiting, RunState::Waiting), ["approved", "publish", "tell"]);
    assert_eq!(named(&waiting, RunState::Completed).len(), 2 * files.len() + 1);
    let after_any_end: Vec<&str> = waiting
        .edges
        .iter()
        .filter(|edge| edge.on == EdgeKind::Terminal)
        .map(|edge| edge.to.as_str())
        .collect();
    assert_eq!(after_any_end, ["tell"]);
    let ended = picture(&folder, "ended");
    assert_eq!((ended.state, ended.run_id), (Some(GraphState::Completed), waiting.run_id));
    assert_eq!(named(&ended, RunState::Completed).len(), ended.nodes.len());

    let catalogue = std::fs::read_to_string(folder.join("catalogue.md")).unwrap();
    assert!(catalogue.contains("approved by ann"), "{catalogue}");
    for file in files {
        let facts = measure_file(&pages, &file).await.unwrap();
        let line = format!("`{file}`, {}\n", facts.content.unwrap().digest);
        assert!(catalogue.contains(&line), "no {line:?} in\n{catalogue}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
