//! The definitions that expansions register: names, options, parameters and locations, each once.

use compiles::charge::{self as billing, charge, checkout, record_sale};
use compiles::{facades, hostile};
use runledger::__private::{Registration, inventory};
use runledger::{Call, Definition, Job, jobs};

fn definition<J: Job>(_: &Call<J>) -> &'static Definition {
    J::DEFINITION
}

fn parameters(definition: &Definition) -> Vec<(&'static str, bool)> {
    definition.parameters().iter().map(|param| (param.name(), param.is_required())).collect()
}

#[test]
fn all_options_reach_definition() {
    let [definition] = jobs![charge];
    assert_eq!(
        (definition.name(), definition.code_version(), definition.location().module()),
        ("billing.charge", 3, "compiles::charge")
    );
    let described = format!("{definition:?}");
    for option in [
        r#"kind: Job, name: "billing.charge", aliases: ["charge", "old.charge"]"#,
        "injects: [compiles::charge::Gateway], transactional: false",
        r#"queue: "payments", priority: -5, max_attempts: 5, timeout: Some(30s), backoff: Backoff { first: 1s, cap: 300s }, deadline: Some(3600s), heartbeat: Some(10s), version: 3, accepts: [1, 2]"#,
    ] {
        assert!(described.contains(option), "{option} is not in {described}");
    }
}

#[test]
fn definition_marks_required_parameters() {
    let [charge, checkout, record_sale] = jobs![charge, checkout, record_sale];
    assert_eq!(parameters(charge), [("order", true), ("currency", true), ("factor", false), ("note", false)]);
    assert_eq!(parameters(checkout), [("order", true)]);
    assert_eq!(parameters(record_sale), [("cents", true)]);
}

#[test]
fn raw_identifiers_are_stored_without_prefix() {
    let definition = definition(&hostile::r#type(4));
    assert_eq!(definition.name(), "type");
    assert_eq!(parameters(definition), [("match", true)]);
}

#[test]
fn definition_location_is_line_of_its_function() {
    let [definition] = jobs![record_sale];
    let place = definition.location().to_string();
    let [_column, line, file] = place.rsplitn(3, ':').collect::<Vec<_>>()[..] else { panic!("{place}") };
    assert!(file.ends_with("charge.rs"), "{place}");
    let line = include_str!("compiles/src/charge.rs").lines().nth(line.parse::<usize>().unwrap() - 1);
    assert!(line.is_some_and(|line| line.starts_with("pub async fn record_sale(")), "{line:?}");
}

#[test]
fn jobs_macro_resolves_reexports_renames_and_borrowed_parameters() {
    #[expect(deprecated, reason = "a deprecated job can still be registered")]
    let definitions = jobs![
        compiles::charge,
        compiles::hold,
        compiles::scan,
        checkout,
        billing::old_charge,
        hostile::twelve,
        facades::flow,
    ];
    let names = definitions.map(Definition::name);
    assert_eq!(names, ["billing.charge", "reserve", "scan", "checkout", "old_charge", "a", "facade.flow"]);
    assert!(jobs![].is_empty());
    assert_eq!(hostile::local(), "nested");
}

/// The definitions that the `compiles` crate and its facade have registered.
pub(crate) fn of_the_crate() -> impl Iterator<Item = &'static Definition> {
    let registered = inventory::iter::<Registration>.into_iter().map(|found| found.0);
    registered.filter(|definition| {
        ["compiles", "facade"].iter().any(|root| definition.location().module().starts_with(root))
    })
}

#[test]
fn definitions_of_linked_crate_register_once_unless_cfg_is_false() {
    let mut names: Vec<_> = of_the_crate().map(Definition::name).collect();
    names.sort_unstable();
    let expected = "a absent again billing.charge checkout defaults expecting facade.flow from-macro from-macro-too internals into loud \
                    nested old_charge private_and_unused record_sale renamed replays.excused replays.helpers replays.names replays.open replays.steps \
                    reserve restricted scan through type with_tx with_wf";
    assert_eq!(names.join(" "), expected);
}
