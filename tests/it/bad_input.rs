//! Refused values, names, servers and poolers, with their error texts. A refusal writes nothing and
//! disturbs no run.

mod durations;
mod names;
mod nuls;
mod outage;
mod pooler;
mod servers;
mod values;
mod words;

/// Returns an error with its causes, as a person reads it.
fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
