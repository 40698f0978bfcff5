//! The workers of this process that share a client's [`Db`](crate::Db): an enqueue of the same process wakes one of them itself, without the way of a
//! notification through the server. A short cut and nothing more: the notification comes as well, and whoever missed the call finds the run by it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use crate::store::enqueue::NewRun;

/// The workers that share a client.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    inner: Mutex<Vec<Weak<Neighbour>>>,
}

/// A worker as the enqueues of its process know it. It is known for as long as it is kept.
#[derive(Debug)]
pub(crate) struct Neighbour {
    queues: Vec<String>,
    jobs: HashSet<String>,
    is_resting: AtomicBool,
    wake: Arc<Notify>,
}

impl Neighbours {
    /// Makes a worker known.
    #[cfg(feature = "worker")]
    pub(crate) fn join(
        &self,
        queues: Vec<String>,
        jobs: HashSet<String>,
        wake: Arc<Notify>,
    ) -> Arc<Neighbour> {
        let neighbour = Arc::new(Neighbour { queues, jobs, is_resting: AtomicBool::new(false), wake });
        let mut inner = self.inner();
        inner.retain(|known| known.strong_count() > 0);
        inner.push(Arc::downgrade(&neighbour));
        neighbour
    }

    /// Wakes a worker that rests and serves one of these runs, if there is one. They have been committed.
    pub(crate) fn tell(&self, runs: &[NewRun]) {
        let inner = self.inner();
        for neighbour in inner.iter().filter_map(Weak::upgrade) {
            if runs.iter().any(|run| neighbour.serves(run))
                && neighbour.is_resting.swap(false, Ordering::AcqRel)
            {
                neighbour.wake.notify_one();
                return;
            }
        }
    }

    fn inner(&self) -> MutexGuard<'_, Vec<Weak<Neighbour>>> {
        // Nothing panics while it holds the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Neighbour {
    /// Says whether the worker rests. One that works finds the run by itself.
    #[cfg(feature = "worker")]
    pub(crate) fn rests(&self, is_resting: bool) {
        self.is_resting.store(is_resting, Ordering::Release);
    }

    /// Whether this worker may claim the run now.
    fn serves(&self, run: &NewRun) -> bool {
        let is_due = run.options.delay_us.is_none() && run.options.start_at_us.is_none();
        is_due && self.queues.contains(&run.queue) && self.jobs.contains(&run.job)
    }
}

#[cfg(all(test, feature = "worker"))]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use uuid::Uuid;

    use super::*;
    use crate::model::request::RequestOptions;

    fn run(job: &str, options: RequestOptions) -> NewRun {
        NewRun {
            run_id: Uuid::now_v7(),
            job: job.to_owned(),
            tenant: String::new(),
            queue: "default".to_owned(),
            priority: 0,
            input: "{}".to_owned(),
            options,
            idempotency_key: None,
        }
    }

    fn due(job: &str) -> [NewRun; 1] {
        [run(job, RequestOptions::default())]
    }

    fn join(neighbours: &Neighbours, job: &str) -> (Arc<Neighbour>, Arc<Notify>) {
        let wake = Arc::new(Notify::new());
        (
            neighbours.join(vec!["default".to_owned()], HashSet::from([job.to_owned()]), Arc::clone(&wake)),
            wake,
        )
    }

    fn was_woken(wake: &Notify) -> bool {
        pin!(wake.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_worker_that_rests_and_serves_the_job_is_woken_once() {
        let neighbours = Neighbours::default();
        let (charge, charge_wake) = join(&neighbours, "charge");
        let (mail, mail_wake) = join(&neighbours, "mail");
        neighbours.tell(&due("charge"));
        assert!(!was_woken(&charge_wake), "one that works finds it by itself");
        charge.rests(true);
        mail.rests(true);
        neighbours.tell(&due("charge"));
        assert!(was_woken(&charge_wake) && !was_woken(&mail_wake));
        neighbours.tell(&due("charge"));
        assert!(!was_woken(&charge_wake), "it works since it was woken");
    }

    #[test]
    fn nobody_is_woken_for_a_run_that_is_not_due_or_in_a_queue_that_nobody_serves() {
        let neighbours = Neighbours::default();
        let (charge, wake) = join(&neighbours, "charge");
        charge.rests(true);
        neighbours.tell(&[run("charge", RequestOptions { delay_us: Some(1), ..RequestOptions::default() })]);
        neighbours
            .tell(&[run("charge", RequestOptions { start_at_us: Some(1), ..RequestOptions::default() })]);
        neighbours.tell(&[NewRun { queue: "other".to_owned(), ..run("charge", RequestOptions::default()) }]);
        assert!(!was_woken(&wake));
    }

    #[test]
    fn of_two_workers_one_is_woken_and_one_that_is_gone_is_passed_over() {
        let neighbours = Neighbours::default();
        let (gone, gone_wake) = join(&neighbours, "charge");
        gone.rests(true);
        drop(gone);
        let [(one, one_wake), (other, other_wake)] =
            [join(&neighbours, "charge"), join(&neighbours, "charge")];
        one.rests(true);
        other.rests(true);
        neighbours.tell(&due("charge"));
        let n_woken = [&gone_wake, &one_wake, &other_wake].iter().filter(|wake| was_woken(wake)).count();
        assert_eq!((n_woken, was_woken(&gone_wake)), (1, false));
    }
}
