//! The times in which processes were paused or cut off. Until a process learns what happened to its
//! runs, its bodies may break rules that others must keep.

use std::time::Duration;

use super::place::now_us;

/// A time in which a process may not know that it has lost its runs.
#[derive(Clone, Copy, Debug)]
struct Interval {
    pid: u32,
    from_us: i64,
    until_us: i64,
}

/// The excused times of all processes.
#[derive(Clone, Debug, Default)]
pub struct Excuses(Vec<Interval>);

impl Excuses {
    /// Excuses these processes at any time. For schedules whose only fault is this one.
    #[must_use]
    pub fn always(pids: &[u32]) -> Self {
        Self(pids.iter().map(|&pid| Interval { pid, from_us: i64::MIN, until_us: i64::MAX }).collect())
    }

    /// Starts a fault of this process. It lasts until [`end`](Self::end).
    pub fn begin(&mut self, pid: u32) {
        self.0.push(Interval { pid, from_us: now_us(), until_us: i64::MAX });
    }

    /// Ends the faults of this process. The process needs `recovery` to find out.
    pub fn end(&mut self, pid: u32, recovery: Duration) {
        let until_us = now_us().saturating_add(i64::try_from(recovery.as_micros()).unwrap_or(i64::MAX));
        let lasting = |interval: &&mut Interval| interval.pid == pid && interval.until_us == i64::MAX;
        self.0.iter_mut().filter(lasting).for_each(|interval| interval.until_us = until_us);
    }

    /// Whether a single interval covers the whole time of this process.
    #[must_use]
    pub fn cover(&self, pid: u32, from_us: i64, until_us: i64) -> bool {
        let covers = |interval: &Interval| {
            interval.pid == pid && interval.from_us <= from_us && until_us <= interval.until_us
        };
        self.0.iter().any(covers)
    }
}

#[cfg(test)]
impl Excuses {
    /// An excuse that a test makes up.
    pub(crate) fn during(pid: u32, from_us: i64, until_us: i64) -> Self {
        Self(vec![Interval { pid, from_us, until_us }])
    }
}

#[test]
fn fault_excuses_only_its_own_process_until_recovery() {
    let mut excuses = Excuses::default();
    excuses.begin(7);
    let during = now_us();
    assert!(excuses.cover(7, during, during) && !excuses.cover(8, during, during));
    excuses.end(7, Duration::from_secs(5));
    let (soon, late) = (during + 4_000_000, now_us() + 5_000_001);
    assert!(excuses.cover(7, during, soon));
    assert!(!excuses.cover(7, during, late), "the end lies after the recovery");
    assert!(!excuses.cover(7, during - 1_000_000, soon), "the beginning lies before the fault");
}
