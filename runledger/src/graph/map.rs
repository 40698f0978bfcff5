//! Map nodes: one run for each item of a list that another node returns.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::Graph;
use super::inputs::{Input, Node};
use crate::definition::call::{AnyCall, Request};
use crate::definition::error::Error;
use crate::definition::invocation::{Finished, Invocation};
use crate::definition::job::{Arguments, Job};
use crate::definition::jobs::DefinitionOf;
use crate::definition::{Definition, Location, Param, RunFuture, registry};
use crate::model::graph;
use crate::model::json::ErasedValue;
use crate::model::payload::Plain;
use crate::workflow::Wf;

/// The definition of map nodes. Every worker serves it.
pub(crate) static MAP: Definition = Definition::workflow(graph::MAP, run, HERE).params(&[
    Param::required("job"),
    Param::required("version"),
    Param::required("queue"),
    Param::required("parameter"),
    Param::required("items"),
]);

/// The name of the steps of a map node. No worker serves it.
static ITEM: Definition = Definition::job("item", run, HERE);

const HERE: Location = Location::new(file!(), line!(), column!(), module_path!());

/// The job of an item, whichever job that is.
enum Item {}

impl Job for Item {
    type Output = Box<RawValue>;
    const DEFINITION: &'static Definition = &ITEM;
}

impl<T> Graph<T> {
    /// Adds a node that calls a job with one parameter for each item of a list:
    /// `graph.map(score, listed)`.
    ///
    /// The list is the output of another node, or a constant made by [`value`](super::value). Each
    /// item is its own run, which any worker of the job's queue can claim. The node's output is the
    /// list of outputs, in the order of the items. If an item fails, the node fails and cancels the
    /// other items.
    ///
    /// ```
    /// # use runledger::{Graph, Result, job};
    /// #[job]
    /// async fn list(region: &str) -> Result<Vec<u64>> {
    ///     Ok((0..region.len() as u64).collect())
    /// }
    /// #[job]
    /// async fn score(id: u64) -> Result<f64> {
    ///     Ok(id as f64 / 2.0)
    /// }
    /// #[job]
    /// async fn best(scores: Vec<f64>) -> Result<f64> {
    ///     Ok(scores.into_iter().fold(0.0, f64::max))
    /// }
    ///
    /// let mut graph = Graph::new("scores");
    /// let listed = graph.call(list("eu"));
    /// let scores = graph.map(score, listed);
    /// let best = graph.then(best, (scores,));
    /// # drop((graph, best));
    /// ```
    ///
    /// The node is the built-in workflow `runledger.map`. It is in the job's queue and uses no
    /// worker slot while it waits. The list is stored again as the node's input, so the size limit
    /// of an input applies to it.
    pub fn map<A, F, P, I>(&mut self, function: F, items: I) -> Node<Vec<<F::Job as Job>::Output>>
    where
        F: DefinitionOf<A>,
        F::Job: Arguments<Types = (P,)>,
        I: Input<Vec<P>>,
    {
        drop(function);
        let definition = F::DEFINITION;
        let parameter = definition.params.first().map_or("", Param::name);
        let mut request = Request::of(&MAP, Plain::of_object(&[]));
        request.queue = Cow::Borrowed(definition.queue);
        let node = self.add(definition.oldest_name(), request, None);
        let known: [(&'static str, Box<dyn ErasedValue + Send>); 4] = [
            ("job", Box::new(definition.oldest_name())),
            ("version", Box::new(definition.version)),
            ("queue", Box::new(definition.queue)),
            ("parameter", Box::new(parameter)),
        ];
        self.nodes[node.place].values.extend(known);
        self.connect(node.place, "items", items.wire());
        node
    }
}

/// The identity of a map node in a request: the oldest name of the job, and the given items. The
/// other fields depend on the current code of the job.
pub(super) fn identity(input: &Plain) -> Plain {
    let fields: Result<BTreeMap<String, Box<RawValue>>, _> = serde_json::from_str(input);
    let Ok(mut fields) = fields else { return input.clone() };
    fields.retain(|name, _| ["job", "items"].contains(&name.as_str()));
    Plain::of(&fields).unwrap_or_else(|_| input.clone())
}

fn run(invocation: Invocation) -> RunFuture {
    Box::pin(async move {
        let wf = invocation.wf();
        let asked = match Asked::of(&invocation) {
            Ok(asked) => asked,
            Err(finished) => return finished,
        };
        if let Err(finished) = invocation.begin() {
            return finished;
        }
        let result = each(&wf, asked).await;
        invocation.finish(result)
    })
}

/// The arguments of a map node.
struct Asked {
    job: String,
    version: u32,
    queue: String,
    parameter: String,
    items: Vec<Box<RawValue>>,
}

impl Asked {
    #[expect(clippy::result_large_err, reason = "what a body ends with is handed on at once")]
    fn of(invocation: &Invocation) -> Result<Self, Finished> {
        Ok(Self {
            job: invocation.arg("job")?,
            version: invocation.arg("version")?,
            queue: invocation.arg("queue")?,
            parameter: invocation.arg("parameter")?,
            items: invocation.arg("items")?,
        })
    }
}

async fn each(wf: &Wf, asked: Asked) -> Result<Vec<Box<RawValue>>, Error> {
    let Asked { job, version, queue, parameter, items } = asked;
    let call = |(at, item): (usize, Box<RawValue>)| {
        let input = BTreeMap::from([(&parameter, item)]);
        let mut call = AnyCall::by_name(&job, &input).version(version).queue(&queue);
        if let Some((definition, stored)) = registry::named(&job, Some(version)) {
            call.request.adopt(definition, stored);
        }
        call.typed::<Item>(at.to_string())
    };
    Ok(wf.map(items.into_iter().enumerate(), call).as_child_runs().await?)
}
