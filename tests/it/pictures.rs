//! Pictures of graphs: their content before and after submission, and their safety against names.

pub mod reading;

use runledger::prelude::*;
use runledger::{AnyCall, ClientError, EdgeKind, Graph, GraphPicture, GraphState, Outcome, RunState, value};
use runledger_tests::rows::{scalar, soon, worker};
use runledger_tests::{Fixture, eventually, golden};
use serde_json::json;

use reading::{dot, drawn, xml};

#[job]
async fn sketch(title: &str) -> Result<u64> {
    Ok(title.len() as u64)
}

#[job]
async fn blend(parts: Vec<u64>) -> Result<u64> {
    Ok(parts.iter().sum())
}

#[job]
async fn frame(total: u64, approved: bool) -> Result<String> {
    Ok(format!("{total} {approved}"))
}

#[job]
async fn hang(end: Outcome<String>) -> Result<String> {
    Ok(format!("{end:?}"))
}

#[job(max_attempts = 1)]
async fn tear(n: u64) -> Result<u64> {
    Err(Error::terminal(format!("{n} is torn")))
}

fn all() -> [&'static runledger::Definition; 5] {
    jobs![sketch, blend, frame, hang, tear]
}

/// A graph with a node and an edge of each kind, and a node that fails.
fn gallery() -> Graph<String> {
    let mut graph = Graph::new("gallery");
    let sketches = vec![graph.call(sketch("sea").key("sea")), graph.call(sketch("sky").key("sky"))];
    let blended = graph.then(blend, (sketches,));
    let approved = graph.gate::<bool>("approved");
    graph.after(approved, blended);
    let framed = graph.then(frame, (blended, approved));
    graph.then(hang, (framed.on_any_outcome(),));
    let torn = graph.call(tear(3));
    graph.then(blend, (vec![torn],));
    graph.result(framed)
}

/// Compares all forms of a picture with their golden files.
fn check(name: &str, picture: &GraphPicture) {
    golden::check(&format!("pictures/{name}.txt"), &picture.to_string());
    golden::check(&format!("pictures/{name}.dot"), &picture.to_dot());
    golden::check(&format!("pictures/{name}.svg"), &picture.to_svg());
    let json = picture.to_json().unwrap();
    let json = picture.run_id.map_or(json.clone(), |run_id| json.replace(&run_id.to_string(), "(id)"));
    golden::check(&format!("pictures/{name}.json"), &json);
}

#[test]
fn declared_graph_picture_matches_golden_files_in_any_declaration_order() {
    let picture = gallery().picture().unwrap();
    check("declared", &picture);
    assert_eq!((picture.run_id, picture.state, picture.result.as_deref()), (None, None, Some("frame")));
    let gates: Vec<&str> =
        picture.nodes.iter().filter(|node| node.job.is_none()).map(|node| node.name.as_str()).collect();
    assert_eq!(gates, ["approved"]);
    let edge =
        |from: &str, to: &str| picture.edges.iter().find(|edge| edge.from == from && edge.to == to).unwrap();
    assert_eq!(edge("sketch[sky]", "blend").parameters, ["parts[1]"]);
    assert_eq!(edge("frame", "hang").on, EdgeKind::Terminal);
    let order_alone = edge("blend", "approved");
    assert_eq!((order_alone.on, order_alone.parameters.len()), (EdgeKind::Success, 0));

    let build = |names: [&str; 3]| {
        let mut graph = Graph::new("orders");
        for name in names {
            let node = graph.node(name, sketch(name));
            if name == "a" {
                graph.after(node, "b").after(node, "c");
            }
        }
        graph.picture().unwrap()
    };
    assert_eq!(build(["a", "b", "c"]), build(["c", "b", "a"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn submitted_graph_picture_shows_state_and_reason_of_each_node() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let declared = gallery().picture().unwrap();
    let handle = gallery().enqueue(&db).await.unwrap();
    let picture = handle.picture().await.unwrap();
    assert_eq!((picture.run_id, picture.state), (Some(handle.id()), Some(GraphState::Running)));
    assert_eq!((&picture.result, &picture.edges), (&declared.result, &declared.edges));
    let node = |picture: &GraphPicture, name: &str| {
        let node = picture.nodes.iter().find(|node| node.name == name).unwrap().clone();
        (node.state.unwrap(), node.reason)
    };
    assert_eq!(node(&picture, "sketch[sea]"), (RunState::Queued, None));
    assert_eq!(node(&picture, "blend"), (RunState::Waiting, Some("waits for 2 nodes".to_owned())));
    let mut nodes = picture.nodes.clone();
    nodes.iter_mut().for_each(|node| (node.state, node.reason) = (None, None));
    assert_eq!(nodes, declared.nodes, "the same nodes");

    let worker = worker(&db, all()).await;
    eventually(async || handle.graph_state().await.unwrap(), |state| *state == GraphState::Waiting).await;
    check("waiting", &handle.picture().await.unwrap());

    handle.gate("approved").by("ann").reason("looks \"good\" & <clean>").complete(&true).await.unwrap();
    assert_eq!(soon(handle.result()).await.unwrap(), "6 true");
    check("ended", &handle.picture().await.unwrap());
    worker.stop().await;
}

/// The graph of `docs/guides/graphs/graphs.md`.
mod page {
    use super::*;

    #[job]
    pub async fn extract(region: &str) -> Result<u64> {
        Ok(region.len() as u64)
    }

    #[job]
    pub async fn merge(parts: Vec<u64>, factor: u64) -> Result<u64> {
        Ok(parts.iter().sum::<u64>() * factor)
    }

    #[job]
    pub async fn publish(total: u64, approved: bool) -> Result<String> {
        Ok(format!("{total}, approved: {approved}"))
    }

    #[job]
    pub async fn clean_up(published: Outcome<String>) -> Result<()> {
        drop(published);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn graphs_docs_page_contains_picture_of_its_graph() {
    use page::{clean_up, extract, merge, publish};
    let Fixture { db, database: _database } = Fixture::new().await;
    let worker = worker(&db, jobs![extract, merge, publish, clean_up]).await;
    let mut graph = Graph::new("nightly");
    let eu = graph.call(extract("eu").key("eu"));
    let us = graph.call(extract("us").key("us"));
    let merged = graph.then(merge, (vec![eu, us], value(100)));
    let approved = graph.gate::<bool>("approved");
    let published = graph.then(publish, (merged, approved));
    graph.then(clean_up, (published.on_any_outcome(),));
    let handle = graph.result(published).enqueue(&db).await.unwrap();
    eventually(async || handle.graph_state().await.unwrap(), |state| *state == GraphState::Waiting).await;
    let table = handle.picture().await.unwrap().to_string();
    let page = include_str!("../../docs/guides/graphs/pictures.md");
    assert!(
        page.contains(&format!("```text\n{table}```")),
        "docs/guides/graphs/pictures.md does not have:\n{table}"
    );
    worker.stop().await;
}

#[tokio::test]
async fn non_graph_run_and_cyclic_graph_have_no_picture() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let run = sketch("sea").enqueue(&db).await.unwrap();
    let absent = db.graph::<()>(run.id()).picture().await.unwrap_err();
    assert!(matches!(absent, ClientError::NoSuchRun { .. }), "{absent}");
    let mut graph = Graph::new("circle");
    let (a, b) = (graph.node("a", sketch("a")), graph.node("b", sketch("b")));
    graph.after(a, b).after(b, a);
    let error = graph.picture().unwrap_err().to_string();
    assert!(error.contains("in a circle: `a` → `b` → `a`"), "{error}");
}

/// Names with a meaning in one of the forms, or that a form cannot express.
fn hostile() -> Vec<String> {
    let mut names: Vec<String> = [
        "\"",
        "\\",
        "a\\",
        "\\\"",
        "\\n",
        "\\N",
        "a\"]; n0 -> n0; \"",
        "\"; } digraph x {",
        "<b>bold</b>",
        "</text></svg>",
        "<script>alert(1)</script>",
        "<!--",
        "-->",
        "]]>",
        "<![CDATA[",
        "&lt;",
        "&amp;",
        "&#0;",
        "&",
        "'",
        "<?xml?>",
        "%s{}{0}",
        "{\"name\":1}",
        "// no comment",
        "/* no comment */",
        "# no comment",
        "\u{202e}txt.exe",
        "\u{2028}line",
        "\u{feff}",
        "\u{fffe}",
        "\u{ffff}",
        "\u{2066}",
        "e\u{301}",
        "日本語",
        "🦀",
        " spaces ",
        "a  b",
        "->",
        "--",
        "n0",
        "node",
        "subgraph",
        "digraph",
        "strict",
        "xml:space",
        "\u{10ffff}",
    ]
    .map(str::to_owned)
    .to_vec();
    names.push("w".repeat(256));
    names.push("<".repeat(256));
    names.push("\u{202e}".repeat(85));
    names
}

/// A chain of nodes with these names. Each passes its output to a parameter of the same name.
fn hostile_graph() -> Graph {
    let mut graph = Graph::new("hostile");
    let mut before: Option<String> = None;
    for name in hostile() {
        let node = graph.node(name.clone(), AnyCall::by_name("nobody-has-it", &json!({})));
        if let Some(before) = before.replace(name) {
            if before.contains(['[', ']']) || before.starts_with('?') {
                // No parameter can have this name.
                graph.after(node, before.as_str());
            } else {
                graph.feed(node, before.clone(), before.as_str());
            }
        }
    }
    graph
}

#[tokio::test]
async fn hostile_node_names_survive_every_picture_format() {
    let Fixture { db, database: _database } = Fixture::new().await;
    check("hostile", &hostile_graph().picture().unwrap());
    let far = "insert into runledger.worker (name, version, session_name, jobs, queues) values ('far', '1', 'far', '{nobody-has-it}', '{default}')";
    runledger_tests::rows::execute(&db, far).await;
    let handle = hostile_graph().enqueue(&db).await.unwrap();
    // The reason of a cancel appears among the reasons in the picture.
    let first = handle.nodes().await.unwrap().into_iter().find(|node| node.dependencies.is_empty()).unwrap();
    db.graph::<()>(first.run_id).cancel("</title><x a=\"\\\"\">\u{202e}\u{fffe}\n\"]; }").await.unwrap();
    let submitted = handle.picture().await.unwrap();
    assert!(submitted.nodes.iter().all(|node| node.state == Some(RunState::Cancelled)), "{submitted}");
    for picture in [hostile_graph().picture().unwrap(), submitted] {
        let mut names: Vec<&str> = picture.nodes.iter().map(|node| node.name.as_str()).collect();
        names.sort_unstable();
        let mut wanted = hostile();
        wanted.sort_unstable();
        assert_eq!(names, wanted);
        let edges: Vec<(String, String)> =
            picture.edges.iter().map(|edge| (drawn(&edge.from), drawn(&edge.to))).collect();
        assert_eq!(edges.len(), wanted.len() - 1);

        assert_eq!(GraphPicture::from_json(&picture.to_json().unwrap()).unwrap(), picture);

        let text = picture.to_string();
        assert_eq!(text.lines().count(), 1 + names.len(), "a row a node:\n{text}");
        assert!(text.lines().all(|line| line == drawn(line)), "{text}");

        let read = dot(&picture.to_dot());
        let first_lines = read.labels.iter().map(|label| label.lines().next().unwrap_or_default().to_owned());
        assert_eq!(
            first_lines.collect::<Vec<_>>(),
            picture.nodes.iter().map(|node| drawn(&node.name)).collect::<Vec<_>>()
        );
        let named = |place: &usize| drawn(&picture.nodes[*place].name);
        let read_edges: Vec<(String, String)> =
            read.edges.iter().map(|(from, to)| (named(from), named(to))).collect();
        assert_eq!(read_edges, edges);

        let read = xml(&picture.to_svg());
        let titles: Vec<String> =
            picture.nodes.iter().map(|node| format!("{}: job nobody-has-it", drawn(&node.name))).collect();
        for title in titles {
            assert!(
                read.titles.iter().any(|read| read.starts_with(&title)),
                "no {title:?} in {:?}",
                read.titles
            );
        }
        assert_eq!(
            read.titles.len(),
            1 + names.len() + edges.len(),
            "one of the document, of each node, and of each edge"
        );
        let known = ["svg", "title", "rect", "text", "g", "path"];
        assert!(read.elements.iter().all(|element| known.contains(&element.as_str())), "{:?}", read.elements);
    }
}

#[tokio::test]
#[ignore = "slow: `cargo exhaustive`"]
async fn picture_of_ten_thousand_nodes_stays_proportional_in_size() {
    let Fixture { db, database: _database } = Fixture::new().await;
    let n = 10_000;
    let mut graph = Graph::new("large");
    let root = graph.node("root", sketch("root"));
    let mut middle = Vec::new();
    for at in 0..n - 2 {
        let node = graph.node(format!("node-{at}"), sketch("node"));
        graph.after(node, root);
        middle.push(node);
    }
    let last = graph.node("last", sketch("last"));
    for node in middle {
        graph.after(last, node);
    }
    let declared = graph.picture().unwrap();
    let handle = graph.enqueue(&db).await.unwrap();
    let picture = handle.picture().await.unwrap();
    assert_eq!(scalar::<i64>(&db, "select count(*) from runledger.edge").await, 2 * (n as i64 - 2));
    assert_eq!((picture.nodes.len(), picture.edges.len()), (n, 2 * (n - 2)));
    assert_eq!(picture.edges, declared.edges);
    for (form, text) in [
        ("text", picture.to_string()),
        ("JSON", picture.to_json().unwrap()),
        ("DOT", picture.to_dot()),
        ("SVG", picture.to_svg()),
    ] {
        assert!(text.len() < 1_500 * n, "{form}: {} bytes", text.len());
    }
    assert_eq!(dot(&picture.to_dot()).edges.len(), picture.edges.len());
    let read = xml(&picture.to_svg());
    assert_eq!(read.titles.len(), 1 + n, "of so many edges none has a title");
    assert!(read.height < 6_000.0, "a layer that is too high goes on beside: {}", read.height);
    assert_eq!(picture.to_string().lines().count(), 1 + n);
}

#[test]
#[ignore = "needs Graphviz (Debian: `graphviz`): `cargo exhaustive`"]
fn graphviz_reads_every_dot() {
    for picture in [gallery().picture().unwrap(), hostile_graph().picture().unwrap()] {
        let svg = reading::by_graphviz(&picture.to_dot());
        let n_nodes = svg.matches("class=\"node\"").count();
        assert_eq!(n_nodes, picture.nodes.len());
        assert_eq!(svg.matches("class=\"edge\"").count(), picture.edges.len());
    }
}
