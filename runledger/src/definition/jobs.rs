//! Registration by hand: [`jobs!`](crate::jobs!) finds a definition behind the function that builds its calls.
//!
//! The value alone is enough, so re-exports, renames and functions with borrowed parameters work: the compiler reads the
//! marker type off the `Call<J>` that the function returns.

use super::Definition;
use super::call::Call;
use super::job::Job;

/// The definitions of the named jobs and workflows, for `App::with`.
///
/// Needed only where `inventory` finds nothing: on a platform without it, or to register some definitions and not others.
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

/// A function that builds calls of one job. `Arguments` only keeps the implementations for different arities apart.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a job or a workflow",
    label = "this does not build the call of a job",
    note = "name functions with `#[job]` or `#[workflow]`, without parentheses: `jobs![charge, refund]`"
)]
pub trait DefinitionOf<Arguments> {
    /// The job.
    type Job: Job;
    /// The definition of the job whose calls the function builds.
    const DEFINITION: &'static Definition;
}

/// The definition behind a function, which is not called.
#[doc(hidden)]
pub fn definition_of<Arguments, F: DefinitionOf<Arguments>>(function: F) -> &'static Definition {
    drop(function);
    F::DEFINITION
}

/// Gives the list its type when it is empty.
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
