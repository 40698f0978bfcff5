//! The checks of graphs, and the first states of added nodes.

use super::*;
use crate::model::graph::dependency_inputs::CONDITION;

fn plan(nodes: &[&str], edges: &[(&str, &str)]) -> Plan {
    let place = |name: &str| nodes.iter().position(|node| *node == name).unwrap_or(usize::MAX);
    Plan {
        name: "g".to_owned(),
        nodes: nodes
            .iter()
            .map(|name| PlannedNode { name: (*name).to_owned(), kind: PlannedKind::Job("job".to_owned()) })
            .collect(),
        edges: edges
            .iter()
            .map(|(dependant, needs)| PlannedEdge {
                dependant: place(dependant),
                needs: Target::Named((*needs).to_owned()),
                on_terminal: false,
                parameters: Vec::new(),
            })
            .collect(),
        ..Plan::default()
    }
}

fn problems(plan: &Plan) -> Vec<String> {
    match plan.check() {
        Ok(_) => Vec::new(),
        Err(error) => error.problems().iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn diamond_graph_has_no_problems() {
    let plan = plan(&["a", "b", "c", "d"], &[("b", "a"), ("c", "a"), ("d", "b"), ("d", "c")]);
    assert_eq!(problems(&plan), Vec::<String>::new());
}

#[test]
fn all_problems_are_reported_at_once_with_names() {
    let mut plan =
        plan(&["a", "b", " ", "b", "g", "x", "y"], &[("a", "c"), ("b", "b"), ("x", "y"), ("y", "x")]);
    plan.nodes[4].kind = PlannedKind::Gate(vec!["max_attempts"]);
    plan.result = Some(Target::Named("nope".to_owned()));
    plan.edges.push(PlannedEdge {
        dependant: 0,
        needs: Target::Elsewhere,
        on_terminal: false,
        parameters: Vec::new(),
    });
    let said = problems(&plan).join("\n");
    for part in [
        "node ` ` is blank",
        "2 nodes are called `b`",
        "`a` needs `c`, which is not in it",
        "`b` needs itself",
        "in a circle: `x` → `y` → `x`",
        "the gate `g` has `max_attempts`",
        "its result is to be that of `nope`",
        "`a` needs a node of another graph",
    ] {
        assert!(said.contains(part), "{part:?} is not said in:\n{said}");
    }
}

#[test]
fn each_cycle_is_reported_and_its_dependents_are_not_blamed() {
    let plan = plan(
        &["a", "b", "tail", "p", "q", "r", "free"],
        &[("a", "b"), ("b", "a"), ("tail", "a"), ("p", "q"), ("q", "r"), ("r", "p"), ("r", "free")],
    );
    let said = problems(&plan);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("`a` → `b` → `a`"), "{said:?}");
    assert!(said[1].contains("`p` → `q` → `r` → `p`"), "{said:?}");
}

#[test]
fn empty_or_too_large_graph_is_refused() {
    assert!(problems(&Plan { name: "g".to_owned(), ..Plan::default() })[0].contains("no nodes"));
    let names: Vec<String> = (0..=MAX_NODES).map(|n| format!("n{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert!(problems(&plan(&names, &[]))[0].contains("10001 nodes, and 10000 is the most"));
    assert_eq!(problems(&plan(&names[..MAX_NODES], &[])), Vec::<String>::new());
}

#[test]
fn node_index_resolves_only_inside_its_graph() {
    let mut plan = plan(&["a", "b"], &[("b", "a")]);
    plan.edges[0].needs = Target::At(0);
    plan.result = Some(Target::At(1));
    let checked = plan.check().map(|checked| (checked.needs[1].contains_key(&0), checked.result));
    assert_eq!(checked, Ok((true, Some(1))));
    plan.edges[0].needs = Target::At(2);
    plan.result = Some(Target::Elsewhere);
    assert_eq!(
        problems(&plan),
        [
            "`b` needs `#2`, which is not in it",
            "`result` is given a node of another graph; use a node that this graph made, and in an addition \
             name a node of the graph with `existing_node`",
        ]
    );
}

#[test]
fn strictest_of_duplicate_edges_wins() {
    let mut plan = plan(&["a", "b"], &[("b", "a"), ("b", "a")]);
    plan.edges[0].on_terminal = true;
    plan.edges[1].parameters = vec!["x".to_owned()];
    let checked = plan.check().map(|checked| checked.needs[1].clone());
    let need = Need { on_terminal: false, parameters: vec!["x".to_owned()] };
    assert_eq!(checked, Ok(BTreeMap::from([(0, need)])));
}

#[test]
fn parameter_for_any_outcome_beside_success_edge_is_refused() {
    for beside in [Vec::new(), vec!["y".to_owned()], vec![CONDITION.to_string()]] {
        for outcome in [0, 1] {
            let mut plan = plan(&["a", "b"], &[("b", "a"), ("b", "a")]);
            plan.edges[outcome].on_terminal = true;
            plan.edges[outcome].parameters = vec!["x".to_owned()];
            plan.edges[1 - outcome].parameters.clone_from(&beside);
            assert_eq!(
                problems(&plan),
                [
                    "`b` is given the parameter `x`, which takes any end of `a`, and another edge needs the success of `a`; \
                     use `on_any_outcome()` on all edges from `a`, or on none"
                ]
            );
        }
    }
}

#[test]
fn existing_node_accepts_no_new_dependencies_or_options() {
    let mut plan = plan(&["window", "more"], &[("window", "more")]);
    plan.nodes[0].kind = PlannedKind::Existing(vec!["priority"]);
    assert_eq!(
        problems(&plan),
        [
            "`window` is there already, so that it cannot be given `priority` any more",
            "`window` is there already, so that it cannot be given another node to wait for any more",
        ]
    );
}

/// The first states of added nodes. `ended` has the outcomes of the first nodes.
fn standing(
    nodes: &[&'static str],
    edges: &[(&str, &str, bool)],
    ended: &[(&str, NodeEnding)],
) -> Vec<(usize, Option<(String, NodeEnding)>)> {
    let pairs: Vec<(&str, &str)> = edges.iter().map(|(dependant, needs, _)| (*dependant, *needs)).collect();
    let mut plan = plan(nodes, &pairs);
    for (edge, (_, _, on_terminal)) in plan.edges.iter_mut().zip(edges) {
        edge.on_terminal = *on_terminal;
    }
    let Ok(checked) = plan.check() else { panic!("{:?}", problems(&plan)) };
    let state = |place: usize| ended.iter().find(|(name, _)| *name == nodes[place]).map(|(_, state)| *state);
    let standings = standings(&checked.needs, |place| nodes[place], state);
    let told = |unreachable: Unreachable| (unreachable.cause, unreachable.ending);
    standings.into_iter().map(|standing| (standing.n_waits, standing.unreachable.map(told))).collect()
}

#[test]
fn added_node_waits_for_its_unfinished_dependencies() {
    let edges =
        [("c", "a", false), ("c", "b", false), ("d", "a", false), ("e", "c", false), ("e", "d", false)];
    let stand = standing(&["a", "b", "c", "d", "e"], &edges, &[("a", NodeEnding::Completed)]);
    assert_eq!(stand, [(0, None), (0, None), (1, None), (0, None), (2, None)]);
}

#[test]
fn unsuccessful_dependency_makes_added_nodes_unreachable_transitively() {
    let edges = [
        ("c", "a", false),
        ("c", "b", false),
        ("d", "c", false),
        ("e", "c", true),
        ("f", "e", false),
        ("g", "z", false),
    ];
    let ended = [("a", NodeEnding::Failed), ("z", NodeEnding::Cancelled)];
    let stand = standing(&["a", "b", "z", "c", "d", "e", "f", "g"], &edges, &ended);
    let of_a = || Some(("a".to_owned(), NodeEnding::Failed));
    let of_z = || Some(("z".to_owned(), NodeEnding::Cancelled));
    assert_eq!(stand[3..], [(0, of_a()), (0, of_a()), (0, None), (1, None), (0, of_z())]);
}

#[test]
fn suggestions_for_unknown_names_are_limited() {
    let name = |n: usize| format!("{:x<200}{n}", "");
    let mut plan = plan(&[], &[]);
    for n in 0..100 {
        plan.nodes.push(PlannedNode { name: name(n), kind: PlannedKind::Job("job".to_owned()) });
        let needs = Target::Named(format!("{}y", name(n)));
        plan.edges.push(PlannedEdge { dependant: n, needs, on_terminal: false, parameters: Vec::new() });
    }
    let said = problems(&plan);
    assert_eq!(said.len(), 100);
    assert!(said[0].ends_with(&format!("did you mean `{}`?", name(0))), "{}", said[0]);
    let n_hints = said.iter().filter(|said| said.contains("did you mean")).count();
    assert_eq!(n_hints, MAX_NAMED, "each costs a look at every node");
}

#[test]
fn first_cause_not_skipped_is_reported() {
    use NodeEnding::{Cancelled, Completed, Failed, Skipped};
    let edges = [("d", "b", false), ("d", "a", false), ("d", "c", false)];
    let ended = |endings: [NodeEnding; 3]| {
        let ended: Vec<_> = ["a", "b", "c"].into_iter().zip(endings).collect();
        standing(&["c", "b", "a", "d"], &edges, &ended)[3].clone()
    };
    let of = |name: &str, ending| (0, Some((name.to_owned(), ending)));
    assert_eq!(ended([Skipped, Cancelled, Failed]), of("b", Cancelled));
    assert_eq!(ended([Failed, Cancelled, Failed]), of("a", Failed));
    assert_eq!(ended([Completed, Skipped, Skipped]), of("b", Skipped));
    assert_eq!(ended([Completed; 3]), (0, None));
}

#[test]
fn node_ending_round_trips_through_text() {
    use NodeEnding::{Cancelled, Completed, Failed, Skipped};
    for ending in [Completed, Failed, Cancelled, Skipped] {
        assert_eq!(NodeEnding::parse(ending.as_str()), Some(ending));
    }
    assert_eq!(NodeEnding::parse("running"), None);
}
