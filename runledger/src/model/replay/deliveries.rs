//! The order in which results reached the code of a run, as its recorded steps store it.

use crate::model::replay::Recorded;

/// A result that reached the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    /// The step of the result.
    pub(super) ordinal: u64,
    /// The number of steps that the code had claimed before.
    pub(super) claims: u64,
}

impl Delivery {
    /// The delivery at a place of a plain sequence, in which each step is claimed after the
    /// previous result.
    pub(super) const fn in_sequence(place: u64) -> Self {
        Self { ordinal: place, claims: place.saturating_add(1) }
    }
}

/// The order of deliveries that `rows` recorded.
pub(super) fn order_of(rows: &[Recorded]) -> Vec<Delivery> {
    // Every delivered step is recorded, so no workflow writes a `seen_len` above the number of
    // rows. A row with a larger one must not exhaust the worker's memory.
    let most = u32::try_from(rows.len()).unwrap_or(u32::MAX);
    let len = rows.iter().map(|row| row.seen_len).max().unwrap_or(0).min(most);
    let mut order: Vec<Delivery> = (0..u64::from(len)).map(Delivery::in_sequence).collect();
    for row in rows {
        let seen = row.seen.as_deref().unwrap_or_default();
        let from = (row.seen_len as usize).saturating_sub(seen.len() / 2);
        let places = order.get_mut(from..).unwrap_or_default();
        for (place, pair) in places.iter_mut().zip(seen.chunks_exact(2)) {
            *place = Delivery { ordinal: pair[0], claims: pair[1] };
        }
    }
    order
}

/// The stored form of the deliveries from a place on. `None` for a plain sequence.
pub(super) fn stored_from(place: usize, deliveries: &[Delivery]) -> Option<Vec<u64>> {
    let in_sequence =
        (place..).zip(deliveries).all(|(place, delivery)| *delivery == Delivery::in_sequence(place as u64));
    (!in_sequence)
        .then(|| deliveries.iter().flat_map(|delivery| [delivery.ordinal, delivery.claims]).collect())
}
