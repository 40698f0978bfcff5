//! The items that generated code and this repository's tests use. They may change in any release.

pub use inventory;

pub use crate::definition::invocation::{Finished, Invocation};
pub use crate::definition::job::{JobResult, Payload};
pub use crate::definition::jobs::{DefinitionOf, definition_of, definitions};
pub use crate::definition::macro_traits::{BodyTransaction, Injectable, assert_injectable, transaction};
pub use crate::definition::{Definition, Inject, Location, Param, Registration, RunFn, RunFuture};
pub use crate::model::json::ErasedValue as ErasedArg;
pub use crate::model::replay;
pub use crate::model::run::state::{RunEvent, RunState, TRANSITIONS};
#[cfg(feature = "failpoints")]
pub use crate::store::failpoints;
pub use crate::store::migrate::{MIGRATIONS, MigrateError, Migration, migrate, migrate_as};
pub use crate::store::session::{
    BEGIN_RESTLESS as CLIENT_TRANSACTION, CLIENT as CLIENT_SETTINGS, ENGINE as SESSION_SETTINGS,
};
pub use crate::store::sql::ALL as STATEMENTS;
#[cfg(feature = "testing")]
pub use crate::store::testing::clone_strategy;
pub use crate::workflow::macro_traits::{WorkflowContext, context};

use crate::{Call, Job};

/// Timings without polls, so that an idle worker finds only runs that others announce. Tests use
/// them to find missing notifications.
#[cfg(all(feature = "failpoints", feature = "worker"))]
#[must_use]
pub const fn without_polls(timings: crate::Timings) -> crate::Timings {
    crate::Timings { poll: std::time::Duration::from_secs(3600), ..timings }
}

/// Builds a call from its encoded arguments.
pub fn call<J: Job>(args: &[(&'static str, &dyn ErasedArg)]) -> Call<J> {
    Call::new(args)
}

/// Erases the type of an argument to encode. For a type that cannot be stored, the compiler reports
/// the same error as for reading it.
pub fn argument<T: Payload>(value: &T) -> &dyn ErasedArg {
    value
}

/// Fails to compile, at the type's own span, if the type cannot be stored.
pub const fn assert_payload<T: Payload>() {}
