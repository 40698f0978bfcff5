//! Mocked bodies, checked against the types of their jobs.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Result;
use crate::definition::invocation::{Finished, Invocation};
use crate::definition::job::Payload;
use crate::definition::{Definition, RunFuture};
use crate::engine::test_hooks;

/// A body that can replace the body of a job: a closure that takes the job's arguments as owned
/// values and returns a [`Result`] of its output.
#[diagnostic::on_unimplemented(
    message = "this cannot be the body of the mocked job",
    label = "not a body with the arguments and the output of the job",
    note = "take the arguments of the job in their order, owned and with their types, and give a `runledger::Result` of its output: \
            `.mock(charge, |order: Order| async move {{ Ok(Receipt::of(order)) }})`"
)]
pub trait Mock<Arguments, Owned, Output> {
    #[doc(hidden)]
    fn into_mock(self, definition: &'static Definition) -> Erased;
}

/// A mock with its types erased.
#[doc(hidden)]
#[expect(missing_debug_implementations, reason = "a closure has nothing to show")]
pub struct Erased(pub(super) test_hooks::Mock);

/// Relates an argument of a call to the owned type that a mock takes.
#[diagnostic::on_unimplemented(
    message = "the job takes `{Self}`, its mock `{Owned}`",
    label = "another type than the job's argument",
    note = "a mock takes arguments owned: `String` for `&str`, `Vec<T>` for `&[T]`, `T` for `&T` and `T`"
)]
pub trait Takes<Owned> {}

impl<T> Takes<T> for T {}
impl<T> Takes<T> for &T {}
impl Takes<String> for &str {}
impl<T> Takes<Vec<T>> for &[T] {}
impl Takes<PathBuf> for &Path {}

macro_rules! mock_with {
    ($(($argument:ident $owned:ident $value:ident))*) => {
        impl<M, Fut, Output, $($argument, $owned),*> Mock<($($argument,)*), ($($owned,)*), Output> for M
        where
            M: Fn($($owned),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<Output>> + Send + 'static,
            Output: Payload,
            $($argument: Takes<$owned>, $owned: Payload,)*
        {
            fn into_mock(self, definition: &'static Definition) -> Erased {
                let body = Arc::new(self);
                Erased(Arc::new(move |invocation: Invocation| -> RunFuture {
                    let body = Arc::clone(&body);
                    Box::pin(async move {
                        #[allow(unused_mut, unused_variables, reason = "a job may have no parameter")]
                        let mut parameters = definition.params.iter();
                        $(
                            let Some(parameter) = parameters.next() else { return mismatch(definition) };
                            let $value = match invocation.arg::<$owned>(parameter.name()) {
                                Ok(value) => value,
                                Err(finished) => return finished,
                            };
                        )*
                        let result = body($($value),*).await;
                        invocation.finish(result)
                    })
                }))
            }
        }
    };
}

mock_with!();
mock_with!((A1 O1 v1));
mock_with!((A1 O1 v1)(A2 O2 v2));
mock_with!((A1 O1 v1)(A2 O2 v2)(A3 O3 v3));
mock_with!((A1 O1 v1)(A2 O2 v2)(A3 O3 v3)(A4 O4 v4));
mock_with!((A1 O1 v1)(A2 O2 v2)(A3 O3 v3)(A4 O4 v4)(A5 O5 v5));
mock_with!((A1 O1 v1)(A2 O2 v2)(A3 O3 v3)(A4 O4 v4)(A5 O5 v5)(A6 O6 v6));
mock_with!((A1 O1 v1)(A2 O2 v2)(A3 O3 v3)(A4 O4 v4)(A5 O5 v5)(A6 O6 v6)(A7 O7 v7));
mock_with!((A1 O1 v1)(A2 O2 v2)(A3 O3 v3)(A4 O4 v4)(A5 O5 v5)(A6 O6 v6)(A7 O7 v7)(A8 O8 v8));

/// Fails because the definition names fewer parameters than its function takes.
fn mismatch(definition: &Definition) -> Finished {
    let message =
        format!("the definition of job `{}` names fewer parameters than its mock takes", definition.name);
    Finished::broken(crate::Failure::new(crate::FailureKind::Setup, message))
}
