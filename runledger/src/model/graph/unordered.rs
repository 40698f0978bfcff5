//! The request of a graph without the order in which its edges were declared, because edges have no
//! order.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

type Object = BTreeMap<String, Box<RawValue>>;

/// Sorts the parameters of each edge and removes duplicates. An item of a list has its index in its
/// name, such as `parts[1]`. Returns a text that is not a request of a graph unchanged.
#[must_use]
pub fn unordered(request: &str) -> String {
    let nodes = |nodes: &mut BTreeMap<String, Object>| nodes.values_mut().try_for_each(without_order);
    let sorted = serde_json::from_str(request).and_then(|mut request: Object| {
        with(&mut request, "nodes", nodes)?;
        serde_json::to_string(&request)
    });
    sorted.unwrap_or_else(|_| request.to_owned())
}

fn without_order(node: &mut Object) -> serde_json::Result<()> {
    let parameters = |edge: &mut Object| with(edge, "parameters", |_: &mut BTreeSet<String>| Ok(()));
    with(node, "needs", |needs: &mut BTreeMap<String, Object>| needs.values_mut().try_for_each(parameters))
}

/// Changes a field if the object has it.
fn with<T: DeserializeOwned + Serialize>(
    object: &mut Object,
    field: &str,
    change: impl FnOnce(&mut T) -> serde_json::Result<()>,
) -> serde_json::Result<()> {
    let Some(value) = object.get_mut(field) else { return Ok(()) };
    let mut read = serde_json::from_str(value.get())?;
    change(&mut read)?;
    *value = serde_json::value::to_raw_value(&read)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edge_parameters_are_sorted_and_deduplicated() {
        let request = r#"{"graph":"g","nodes":{"b":{"job":"b","metadata":{"n":1.00000000000000000001},"needs":{"a":{"on_terminal":false,"parameters":["y","?","x","?"]}}},"a":{"job":"a"}}}"#;
        let expected = r#"{"graph":"g","nodes":{"a":{"job":"a"},"b":{"job":"b","metadata":{"n":1.00000000000000000001},"needs":{"a":{"on_terminal":false,"parameters":["?","x","y"]}}}}}"#;
        assert_eq!(unordered(request), expected);
        assert_eq!(unordered(expected), expected);
    }

    #[test]
    fn text_other_than_graph_request_is_unchanged() {
        for text in ["", "null", "[]", "{}", r#"{"nodes":7}"#, r#"{"nodes":{"a":{"needs":[1]}}}"#] {
            assert_eq!(unordered(text), text);
        }
    }
}
