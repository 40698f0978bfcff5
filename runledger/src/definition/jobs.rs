//! Manual registration: [`jobs!`](crate::jobs!) finds the definition of a job from the function
//! that builds its calls.
//!
//! The function value is enough, so re-exports, renames and functions with borrowed parameters
//! work: the compiler infers the marker type from the `Call<J>` that the function returns.

use super::Definition;
use super::call::Call;
use super::job::Job;

/// Lists the definitions of the named jobs and workflows, for `App::with`.
///
/// Use it on a platform without `inventory`, or to register only some definitions.
///
/// ```
/// # use runledger::{job, jobs, Result};
/// #[job]
/// async fn reserve(sku: &str, quantity: u32) -> Result<u64> {
///     Ok(sku.len() as u64 * u64::from(quantity))
/// }
/// #[job]
/// async fn refund(cents: i64) -> Result<()> {
///     drop(cents);
///     Ok(())
/// }
///
/// let definitions = jobs![reserve, refund];
/// assert_eq!(definitions.len(), 2);
/// ```
#[macro_export]
macro_rules! jobs {
    ($($function:expr),* $(,)?) => {
        $crate::__private::definitions([$($crate::__private::definition_of($function)),*])
    };
}

/// A function that builds calls of one job. `Arguments` keeps the implementations for different
/// arities apart.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a job or a workflow",
    label = "this does not build the call of a job",
    note = "name functions with `#[job]` or `#[workflow]`, without parentheses: `jobs![charge, refund]`"
)]
pub trait DefinitionOf<Arguments> {
    /// The job.
    type Job: Job;
    /// The definition of the job.
    const DEFINITION: &'static Definition;
}

/// The definition of the job whose calls `function` builds. The function is not called.
#[doc(hidden)]
pub fn definition_of<Arguments, F: DefinitionOf<Arguments>>(function: F) -> &'static Definition {
    drop(function);
    F::DEFINITION
}

/// Gives an empty list its type.
#[doc(hidden)]
#[must_use]
pub const fn definitions<const N: usize>(list: [&'static Definition; N]) -> [&'static Definition; N] {
    list
}

macro_rules! definition_of_functions {
    ($($argument:ident)*) => {
        impl<F, J, $($argument),*> DefinitionOf<($($argument,)*)> for F
        where
            F: Fn($($argument),*) -> Call<J>,
            J: Job,
        {
            type Job = J;
            const DEFINITION: &'static Definition = J::DEFINITION;
        }
    };
}

definition_of_functions!();
definition_of_functions!(A1);
definition_of_functions!(A1 A2);
definition_of_functions!(A1 A2 A3);
definition_of_functions!(A1 A2 A3 A4);
definition_of_functions!(A1 A2 A3 A4 A5);
definition_of_functions!(A1 A2 A3 A4 A5 A6);
definition_of_functions!(A1 A2 A3 A4 A5 A6 A7);
definition_of_functions!(A1 A2 A3 A4 A5 A6 A7 A8);
definition_of_functions!(A1 A2 A3 A4 A5 A6 A7 A8 A9);
definition_of_functions!(A1 A2 A3 A4 A5 A6 A7 A8 A9 A10);
definition_of_functions!(A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A11);
definition_of_functions!(A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A11 A12);
