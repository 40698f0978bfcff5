//! All scenarios.

mod acks;
mod addresses;
mod clocks;
mod deploys;
mod disks;
mod dropped;
mod failover;
mod network;
mod processes;
mod servers;
mod sessions;
mod versions;

use crate::scenario::Scenario;

/// Returns all scenarios, in the order of the catalogue.
#[must_use]
pub fn all() -> Vec<Scenario> {
    [
        processes::ALL,
        sessions::ALL,
        network::ALL,
        acks::ALL,
        dropped::ALL,
        servers::ALL,
        failover::ALL,
        disks::ALL,
        addresses::ALL,
        clocks::ALL,
        deploys::ALL,
        versions::ALL,
    ]
    .concat()
}

/// Finds a scenario by its name.
#[must_use]
pub fn find(name: &str) -> Option<Scenario> {
    all().into_iter().find(|scenario| scenario.name == name)
}

#[test]
fn scenario_names_are_unique() {
    let mut names: Vec<&str> = all().iter().map(|scenario| scenario.name).collect();
    let n_scenarios = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), n_scenarios);
}
