//! Sagas whose jobs exist, and whose move to InProgress is left for later.
//!
//! At light load a pass creates one job, and the transaction that moves its saga would be as expensive as every other
//! step of the delivery. So few moves wait for a moment: the result that arrives meanwhile makes its move itself, in the
//! transaction that applies it, and the others are made together.
//!
//! Passes of this process leave these sagas out: to them they are still due. Correctness does not depend on that, nor on
//! what is remembered here: a pass that finds such a saga inserts no second job, and moves it.

use crate::time::SqlTime;
use hooksaga_saga::{SagaId, Timestamp};
use hooksaga_store::ScheduledSaga;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Of each the key of its job, and since when it waits.
#[derive(Default)]
pub(super) struct Unmoved(Mutex<BTreeMap<SagaId, (Timestamp, Instant)>>);

impl Unmoved {
    /// More than twice as long as results are gathered: where the endpoint is quick, results make all the moves.
    const WAIT: Duration = Duration::from_millis(50);
    /// A pass compares each due saga with all of them. Where there are more, moves are shared as it is.
    const MOST: usize = 32;

    fn sagas(&self) -> MutexGuard<'_, BTreeMap<SagaId, (Timestamp, Instant)>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the move of these for later, if they are few, and this pass has inserted all their jobs.
    pub(super) fn leave(&self, sagas: &[ScheduledSaga], now: Instant) -> bool {
        let mut left = self.sagas();
        let leaves = left.len() + sagas.len() <= Self::MOST && sagas.iter().all(|saga| saga.job_id.is_some());
        if leaves {
            left.extend(sagas.iter().map(|saga| (saga.saga_id, (saga.attempt_at, now))));
        }
        leaves
    }

    pub(super) fn ids(&self) -> Vec<i64> {
        self.sagas().keys().map(|id| id.0).collect()
    }

    /// How long until they are to be moved: until the first of them has waited for long enough.
    pub(super) fn until_move(&self, now: Instant) -> Option<Duration> {
        let since = self.sagas().values().map(|(_, since)| *since).min();
        since.map(|since| (since + Self::WAIT).saturating_duration_since(now))
    }

    /// The sagas in the order of their ids, and the keys of their jobs.
    pub(super) fn keys(&self) -> (Vec<i64>, Vec<SqlTime>) {
        self.sagas().iter().map(|(id, (attempt_at, _))| (id.0, SqlTime(*attempt_at))).unzip()
    }

    /// These are moved: their transaction has committed, or it has failed and they are the next pass's.
    pub(super) fn forget(&self, ids: impl IntoIterator<Item = SagaId>) {
        let mut left = self.sagas();
        for id in ids {
            left.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_saga::{JobId, SubscriptionId};
    use hooksaga_store::Trace;

    fn saga(id: i64, job_id: Option<i64>) -> ScheduledSaga {
        ScheduledSaga {
            saga_id: SagaId(id),
            subscription_id: SubscriptionId(1),
            attempt_at: Timestamp::from_micros(id),
            trace: Trace::default(),
            job_id: job_id.map(JobId),
        }
    }

    #[test]
    fn few_moves_wait_for_a_moment_from_the_first_on() {
        let (unmoved, now) = (Unmoved::default(), Instant::now());
        assert_eq!(unmoved.until_move(now), None);
        assert!(unmoved.leave(&[saga(7, Some(1))], now));
        let later = now + Duration::from_millis(20);
        assert!(unmoved.leave(&[saga(3, Some(2))], later));
        assert_eq!(unmoved.until_move(later), Some(Duration::from_millis(30)));
        assert_eq!(unmoved.until_move(now + Duration::from_secs(1)), Some(Duration::ZERO));
        assert_eq!((unmoved.ids(), unmoved.keys().0), (vec![3, 7], vec![3, 7]));

        unmoved.forget([SagaId(7), SagaId(8)]);
        assert_eq!(unmoved.ids(), [3]);
        assert_eq!(unmoved.until_move(later), Some(Duration::from_millis(50)));
        unmoved.forget([SagaId(3)]);
        assert_eq!(unmoved.until_move(later), None);
    }

    #[test]
    fn many_do_not_wait_nor_does_a_job_that_was_there_already() {
        let (unmoved, now) = (Unmoved::default(), Instant::now());
        assert!(!unmoved.leave(&[saga(1, Some(1)), saga(2, None)], now));
        let many = |from| (from..from + 20).map(|id| saga(id, Some(id))).collect::<Vec<_>>();
        assert!(unmoved.leave(&many(0), now));
        assert!(!unmoved.leave(&many(100), now));
        assert_eq!(unmoved.ids().len(), 20);
    }
}
