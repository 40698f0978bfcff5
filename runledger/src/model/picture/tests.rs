use super::arrange::{Arrangement, Sizes, arrange};
use super::layers::Layers;
use super::words::{cells, cut, shown};
use super::{GraphPicture, GraphState, PictureEdge, PictureNode, RunState};

const HEIGHT: f64 = 40.0;
const WIDTH: f64 = 100.0;

/// A picture of `n` nodes `0`, `1`, … with one edge per pair, from the first to the second node.
fn picture(n: usize, edges: impl IntoIterator<Item = (usize, usize)>) -> GraphPicture {
    let nodes = (0..n).map(|n| PictureNode::new(format!("{n:05}"), Some("job".to_owned()))).collect();
    let edge = |(from, to)| PictureEdge::new(format!("{from:05}"), format!("{to:05}"), false, Vec::new());
    GraphPicture::new("g".to_owned(), nodes, edges.into_iter().map(edge).collect())
}

fn arranged(picture: &GraphPicture) -> (Layers, Arrangement) {
    let layers = Layers::new(picture);
    let heights = vec![HEIGHT; picture.nodes.len()];
    let arrangement =
        arrange(&layers, Sizes { width: WIDTH, heights: &heights, across: 50.0, between: 10.0 });
    (layers, arrangement)
}

/// Generated edges from lower to higher nodes, short and long.
fn scattered(n: usize) -> Vec<(usize, usize)> {
    (1..n)
        .flat_map(|to| [(to * 7919 % to, to), (to * 104_729 % to, to), (to - 1 - to % 2 * (to - 1) / 2, to)])
        .collect()
}

/// Checks that every box is inside the picture, that boxes do not overlap, and that every edge
/// leads to the right.
fn check(picture: &GraphPicture) -> Arrangement {
    let (layers, arrangement) = arranged(picture);
    for edge in &layers.edges {
        assert!(layers.of[edge.from] < layers.of[edge.to], "{edge:?}");
        assert!(arrangement.boxes[edge.from].0 + WIDTH < arrangement.boxes[edge.to].0, "{edge:?}");
    }
    let mut boxes = arrangement.boxes.clone();
    boxes.sort_by(|one, other| one.partial_cmp(other).unwrap());
    for (left, middle) in &boxes {
        assert!(*left >= 0.0 && left + WIDTH <= arrangement.width, "{left} in {}", arrangement.width);
        let (top, bottom) = (middle - HEIGHT / 2.0, middle + HEIGHT / 2.0);
        assert!(top >= 0.0 && bottom <= arrangement.height, "{top} to {bottom} in {}", arrangement.height);
    }
    for pair in boxes.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        assert!(pair[1].1 - pair[0].1 >= HEIGHT, "{pair:?} overlap");
    }
    arrangement
}

#[test]
fn boxes_do_not_overlap_and_edges_lead_right() {
    check(&picture(1, []));
    check(&picture(5, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)]));
    for n in [2, 10, 57, 300] {
        check(&picture(n, scattered(n)));
    }
}

#[test]
fn chain_is_straight_and_diamond_ends_are_centred() {
    let chain = check(&picture(4, [(0, 1), (1, 2), (2, 3)]));
    assert!(chain.boxes.iter().all(|place| place.1 == chain.boxes[0].1), "{:?}", chain.boxes);
    let diamond = check(&picture(4, [(0, 1), (0, 2), (1, 3), (2, 3)])).boxes;
    assert_eq!(diamond[0].1, f64::midpoint(diamond[1].1, diamond[2].1));
    assert_eq!(diamond[3].1, diamond[0].1);
}

#[test]
fn avoidable_crossings_are_avoided() {
    // Each of ten nodes has one dependent, in reverse order.
    let picture = picture(20, (0..10).map(|n| (n, 19 - n)));
    let boxes = check(&picture).boxes;
    for n in 0..10 {
        assert_eq!(boxes[n].1, boxes[19 - n].1, "node {n} is not beside its dependant");
    }
}

#[test]
fn line_across_layers_avoids_boxes_between() {
    let picture = picture(4, [(0, 1), (1, 2), (2, 3), (0, 3)]);
    let (layers, arrangement) = arranged(&picture);
    let long = layers.edges.iter().position(|edge| (edge.from, edge.to) == (0, 3)).unwrap();
    let points = &arrangement.lines[long];
    assert_eq!(points.len(), 6, "{points:?}");
    for (between, pass) in [(1, points[1]), (2, points[3])] {
        let (left, middle) = arrangement.boxes[between];
        assert!(pass.0 == left && (pass.1 - middle).abs() > HEIGHT / 2.0, "{pass:?} meets {middle}");
    }
}

#[test]
fn node_without_dependencies_stands_just_before_its_dependent() {
    let layers = Layers::new(&picture(5, [(0, 1), (1, 2), (2, 3), (4, 3)]));
    assert_eq!(layers.of, [0, 1, 2, 3, 2]);
}

#[test]
fn ten_thousand_nodes_of_any_shape_are_laid_out() {
    let n = 10_000;
    let wide = check(&picture(n, (1..n).map(|to| (0, to))));
    assert!(wide.height < 5_000.0, "a layer that is too high goes on beside: {}", wide.height);
    check(&picture(n, (0..n - 1).map(|from| (from, n - 1))));
    check(&picture(n, (1..n).map(|to| (to - 1, to))));
    check(&picture(n, scattered(n)));
    // Lines of all earlier layers pass every layer. There are more than can have places.
    let mut far: Vec<(usize, usize)> = (1..n).map(|to| (to - 1, to)).collect();
    far.extend((2..n).map(|to| (0, to)));
    let lines = check(&picture(n, far)).lines;
    let n_points: usize = lines.iter().map(Vec::len).sum();
    assert!(n_points < 2 * (2 * n + 20_000), "{n_points} points");
}

#[test]
fn hand_drawn_cycle_is_still_rendered() {
    let picture = picture(4, [(0, 1), (1, 2), (2, 1), (2, 3), (3, 3)]);
    for text in [picture.to_svg(), picture.to_dot(), picture.to_string()] {
        assert!(text.contains("00003"), "{text}");
    }
}

#[test]
fn invalid_picture_json_is_refused_with_reason() {
    let good = picture(2, [(0, 1)]);
    let json = good.to_json().unwrap();
    assert_eq!(GraphPicture::from_json(&json).unwrap(), good);
    for (text, why) in [
        (json.replace("\"format\": 1", "\"format\": 2"), "has format 2, and this program reads format 1"),
        (json.replace("\"name\": \"00001\"", "\"name\": \"00000\""), "two nodes are called `00000`"),
        (json.replace("\"to\": \"00001\"", "\"to\": \"x\""), "there is no node `x`"),
        (json.replace("\"on\": \"success\"", "\"on\": \"luck\""), "not the JSON of the picture"),
        ("[]".to_owned(), "not the JSON of the picture"),
    ] {
        let error = GraphPicture::from_json(&text).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn invisible_characters_are_escaped_and_wide_text_is_cut() {
    assert_eq!(shown("Größe 日本 \"a\\b\" <&>"), "Größe 日本 \"a\\b\" <&>");
    assert_eq!(shown("a\u{202e}b\nc\u{0}\u{ffff}"), "a\\u{202e}b\\u{a}c\\u{0}\\u{ffff}");
    assert_eq!((cut("abcdef", 6), cut("abcdefg", 6)), ("abcdef".to_owned(), "abcde…".to_owned()));
    assert_eq!(cut("日本日本", 6), "日本…");
    for text in ["a".repeat(99), "日".repeat(99), "🦀e\u{301}…←".repeat(20)] {
        assert!((1..99).all(|most| cells(&cut(&text, most)) <= most), "{text}");
    }
}

#[test]
fn picture_shows_run_result_and_state_of_each_node() {
    let run_id = uuid::Uuid::from_u128(7);
    let mut picture = picture(2, [(0, 1)])
        .with_result(Some("00001".to_owned()))
        .of_run(run_id, GraphState::CompletedWithErrors);
    picture.nodes[0] = picture.nodes[0].clone().standing(RunState::Failed, Some("no".to_owned()));
    let read = GraphPicture::from_json(&picture.to_json().unwrap()).unwrap();
    assert_eq!((read.run_id, read.state), (Some(run_id), Some(GraphState::CompletedWithErrors)));
    assert_eq!(read.result.as_deref(), Some("00001"));
    assert_eq!((read.nodes[0].state, read.nodes[0].reason.as_deref()), (Some(RunState::Failed), Some("no")));
    assert_eq!(read.nodes[0].job.as_deref(), Some("job"));
    let dot = picture.to_dot();
    let is_result =
        |node: &str| dot.lines().any(|line| line.contains(node) && line.contains("peripheries=2"));
    assert_eq!(["n0 [", "n1 ["].map(is_result), [false, true], "{dot}");
}
