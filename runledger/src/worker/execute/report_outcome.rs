//! Reports the outcome of an attempt to the observers and the failure hook, after the commit.

use super::executor::{Executor, Run};
use crate::connection::db_timeout::{STATEMENT_LIMIT, with_timeout};
use crate::definition::failed::FailedRun;
use crate::model::payload::{PayloadKind, Place};
use crate::model::run::failure::Failure;
use crate::model::run::state::RunState;
use crate::model::run::version::parts;
use crate::store::attempt::progress;
use crate::store::run::inspect;
use crate::store::worker::claim::Claimed;
use crate::worker::report::hook::FailureHook;
use crate::worker::report::observers::What;

const LEASE_LOST: &str = "lease lost: another attempt owns the run or has ended it; nothing was overwritten; if this is frequent, the machine is starved \
                          or its network is cut: look at the heartbeat";

impl Run {
    /// Reports the end of the attempt to the observers.
    pub(crate) fn ended(&self, what: What) {
        if let Some(watch) = &self.watch {
            watch.ended(what);
        }
    }
}

impl Executor {
    /// Reports a committed decision about an attempt.
    ///
    /// A failed or cancelled workflow may be queued for compensation first, so the state is read
    /// from the database.
    pub(crate) async fn tell_committed(&self, run: &Run, decided: What, may_undo: bool) {
        let is_open = match decided {
            What::Failed(_) => may_undo,
            What::Cancelled => may_undo && run.watch.is_some(),
            _ => false,
        };
        let what = match is_open {
            true => {
                self.ending_of(&run.claimed).await.map_or(What::Lost, |end| end.unwrap_or(What::Compensating))
            }
            false => decided,
        };
        self.tell(run, what).await;
    }

    /// Reports an attempt whose settlement found no lease. The answer to its commit may have been
    /// lost, so the database may contain this attempt's own outcome.
    pub(crate) async fn tell_lost(&self, run: &Run, decided: Option<What>) {
        let is_asked = run.watch.is_some() || matches!(decided, Some(What::Failed(_)));
        let what = if is_asked { self.found(run).await } else { What::Lost };
        if what == What::Lost {
            tracing::warn!(run_id = %run.claimed.run_id, "{LEASE_LOST}");
        }
        self.tell(run, what).await;
    }

    /// Reports the end of an attempt to the observers and, if the run failed, to the hook.
    pub(crate) async fn tell(&self, run: &Run, what: What) {
        if run.watch.is_some() {
            run.ended(what.clone());
        }
        if let (What::Failed(failure), Some(hook)) = (what, &self.on_failure) {
            self.tell_hook(hook, run, failure).await;
        }
    }

    /// Reads from the database how an attempt without its lease ended.
    pub(crate) async fn found(&self, run: &Run) -> What {
        self.ending_of(&run.claimed).await.ok().flatten().unwrap_or(What::Lost)
    }

    /// Calls the hook for a failed run.
    async fn tell_hook(&self, hook: &FailureHook, run: &Run, failure: Failure) {
        let claimed = &run.claimed;
        let last = async { progress::last(&mut *self.db.acquire().await?, claimed.run_id, "").await };
        let progress = with_timeout(STATEMENT_LIMIT, last).await.unwrap_or_else(|error| {
            tracing::debug!(%error, run_id = %claimed.run_id, "the hook is told nothing of the progress");
            None
        });
        let (job, version) = parts(&claimed.lane.job);
        let place = Place::new(claimed.run_id, PayloadKind::Progress, "");
        let progress = progress.and_then(|said| {
            let opened = self.db.sealer().open(&place, said);
            opened
                .inspect_err(|error| {
                    tracing::warn!(
                        error = Failure::text_of_chain(error),
                        "the hook is told nothing of the progress"
                    );
                })
                .ok()
        });
        let failed = FailedRun {
            run_id: claimed.run_id,
            job: job.to_owned(),
            version,
            tenant: claimed.tenant.clone(),
            input: run.input.as_ref().to_owned(),
            failure,
            attempts: claimed.counters.attempt.unsigned_abs(),
            progress,
        };
        hook.tell(failed).await;
    }

    /// Returns the run's outcome if this attempt ended it.
    async fn ending_of(&self, claimed: &Claimed) -> Result<Option<What>, sqlx::Error> {
        let info =
            async { inspect::run(&mut *self.db.acquire().await?, claimed.run_id, self.db.sealer()).await };
        let Some(info) = with_timeout(STATEMENT_LIMIT, info).await? else { return Ok(None) };
        let is_this = info.started_at == Some(claimed.claimed_at.into());
        Ok(match (info.state, info.error) {
            _ if !is_this => None,
            (RunState::Completed, _) => Some(What::Completed),
            (RunState::Failed, Some(failure)) => Some(What::Failed(failure)),
            (RunState::Cancelled, _) => Some(What::Cancelled),
            _ => None,
        })
    }
}
