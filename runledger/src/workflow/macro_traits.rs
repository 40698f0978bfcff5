//! The context of a workflow. The trait exists for its error message about a wrong first parameter.

use super::Wf;

/// The type of the first parameter of a workflow.
#[diagnostic::on_unimplemented(
    message = "the first parameter of a workflow is its context, not `{Self}`",
    label = "this is not `Wf`",
    note = "write `wf: &Wf` first; arguments come after it, and what the application provides is marked with `#[inject]`"
)]
pub trait WorkflowContext {
    /// Returns the context.
    fn of(wf: &Wf) -> &Self;
}

impl WorkflowContext for Wf {
    fn of(wf: &Wf) -> &Self {
        wf
    }
}

/// Returns the context for a workflow's first parameter.
#[must_use]
pub fn context<T: WorkflowContext + ?Sized>(wf: &Wf) -> &T {
    T::of(wf)
}
