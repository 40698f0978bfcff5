//! What a workflow borrows from its attempt. The trait only explains what any other type does wrong.

use super::Wf;

/// The first parameter of a workflow.
#[diagnostic::on_unimplemented(
    message = "the first parameter of a workflow is its context, not `{Self}`",
    label = "this is not `Wf`",
    note = "write `wf: &Wf` first; arguments come after it, and what the application provides is marked with `#[inject]`"
)]
pub trait WorkflowContext {
    /// The context.
    fn of(wf: &Wf) -> &Self;
}

impl WorkflowContext for Wf {
    fn of(wf: &Wf) -> &Self {
        wf
    }
}

/// Lends a workflow its context.
#[must_use]
pub fn context<T: WorkflowContext + ?Sized>(wf: &Wf) -> &T {
    T::of(wf)
}
