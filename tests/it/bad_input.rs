//! What is refused, with which words: values, names, servers, poolers. Nothing is written, and what runs goes on.

mod durations;
mod names;
mod nuls;
mod outage;
mod pooler;
mod servers;
mod values;
mod words;

/// An error with its causes, as a person reads it.
fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
