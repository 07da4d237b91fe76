//! Where a scan of an index begins.
//!
//! The queues, and the index of Pending jobs, grow at one end and are emptied at the other. What was taken off
//! leaves dead entries behind until the next vacuum: after a minute of load a scan from the beginning passes a million
//! of them, for every batch. So a scan starts a little before the place where the previous one stopped.
//!
//! That is a hint; correctness does not depend on it. Something can lie further back: a transaction that took long to
//! commit, a row that another process had locked and gave up. So a scan starts from the very beginning every second, and
//! at once if the short scan finds nothing. Whoever learns of something further back says so ([`Frontier::turn_back`]).

use crate::error::DbResult;
use std::{
    future::Future,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Remembers how far the scans along one index came. A place is a number that grows: an id, or microseconds.
pub(crate) struct Frontier {
    /// How far before the place that was reached the next scan begins. What commits out of order by less is not missed.
    margin: i64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reached: i64,
    /// When a scan last began at the beginning.
    whole: Option<Instant>,
    /// Something may lie here that the next scan has to find.
    back: Option<i64>,
}

impl Frontier {
    /// Before everything.
    pub(crate) const BEGINNING: i64 = i64::MIN;
    const WHOLE_EVERY: Duration = Duration::from_secs(1);

    pub(crate) fn new(margin: i64) -> Self {
        Self { margin, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There may be something new at this place, or behind it: the next scan does not begin after it.
    pub(crate) fn turn_back(&self, place: i64) {
        let mut state = self.state();
        state.back = Some(state.back.map_or(place, |earlier| earlier.min(place)));
    }

    /// Calls `read` with the place to begin at, and a second time with the beginning if there is a need. It returns what
    /// it found and the last place where it found something, if it did.
    pub(crate) async fn scan<T, F>(&self, read: impl Fn(i64) -> F) -> DbResult<T>
    where
        F: Future<Output = DbResult<(T, Option<i64>)>>,
    {
        let from = self.next(Instant::now());
        // A scan that failed has found nothing of what lies there.
        let (found, reached) = read(from).await.inspect_err(|_| self.turn_back(from))?;
        let (found, reached) = if reached.is_none() && from != Self::BEGINNING {
            self.state().whole = Some(Instant::now());
            read(Self::BEGINNING).await?
        } else {
            (found, reached)
        };
        if let Some(reached) = reached {
            self.state().reached = reached;
        }
        Ok(found)
    }

    fn next(&self, now: Instant) -> i64 {
        let mut state = self.state();
        let back = state.back.take();
        if state.whole.is_some_and(|at| now.saturating_duration_since(at) < Self::WHOLE_EVERY) {
            let usual = state.reached.saturating_sub(self.margin);
            return back.map_or(usual, |back| back.min(usual));
        }
        state.whole = Some(now);
        Self::BEGINNING
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DbError;
    use std::cell::RefCell;

    /// Scans `places`, up to two at a time, and returns what it found and where it began.
    async fn scan(frontier: &Frontier, places: &[i64]) -> (Vec<i64>, Vec<i64>) {
        let began = RefCell::new(Vec::new());
        let found = frontier.scan(|from| {
            began.borrow_mut().push(from);
            let found: Vec<i64> = places.iter().copied().filter(|place| *place >= from).take(2).collect();
            let last = found.last().copied();
            async move { Ok((found, last)) }
        });
        let found = found.await.unwrap_or_default();
        (found, began.into_inner())
    }

    const START: i64 = Frontier::BEGINNING;

    #[tokio::test]
    async fn a_walk_goes_on_a_little_before_where_the_last_one_came_to() {
        let frontier = Frontier::new(10);
        assert_eq!(scan(&frontier, &[100, 200, 300]).await, (vec![100, 200], vec![START]));
        assert_eq!(scan(&frontier, &[150, 190, 300]).await, (vec![190, 300], vec![190]));
        assert_eq!(scan(&frontier, &[150, 400]).await, (vec![400], vec![290]));
    }

    #[tokio::test]
    async fn a_walk_that_finds_nothing_looks_at_everything() {
        let frontier = Frontier::new(10);
        scan(&frontier, &[100]).await;
        assert_eq!(scan(&frontier, &[5, 7, 8]).await, (vec![5, 7], vec![90, START]));
        assert_eq!(scan(&frontier, &[8]).await, (vec![8], vec![-3]), "and goes on from there");
        assert_eq!(scan(&frontier, &[]).await, (vec![], vec![-2, START]));
    }

    #[tokio::test]
    async fn what_lies_further_back_is_found_within_a_second() {
        let frontier = Frontier::new(10);
        scan(&frontier, &[100]).await;
        assert_eq!(scan(&frontier, &[5, 100]).await.0, [100]);
        let long_ago = Instant::now().checked_sub(Frontier::WHOLE_EVERY);
        frontier.state().whole = long_ago;
        assert_eq!(scan(&frontier, &[5, 100]).await, (vec![5, 100], vec![START]));
        frontier.state().whole = None;
        assert_eq!(frontier.next(Instant::now()), START, "the first one, too");
    }

    #[tokio::test]
    async fn what_somebody_knows_of_is_found_by_the_next_walk() {
        let frontier = Frontier::new(10);
        scan(&frontier, &[100]).await;
        frontier.turn_back(8);
        frontier.turn_back(6);
        frontier.turn_back(7);
        assert_eq!(scan(&frontier, &[5, 7, 100]).await, (vec![7, 100], vec![6]));
        assert_eq!(scan(&frontier, &[5, 100]).await, (vec![100], vec![90]), "once");
        frontier.turn_back(95);
        assert_eq!(scan(&frontier, &[91, 100]).await, (vec![91, 100], vec![90]), "it shortens no walk");
        frontier.turn_back(6);
        let failed: Result<(), _> = frontier.scan(|_| async { Err(DbError::unreadable("no")) }).await;
        assert!(failed.is_err());
        assert_eq!(
            scan(&frontier, &[7, 100]).await,
            (vec![7, 100], vec![6]),
            "a walk that failed did not find it"
        );
    }

    #[tokio::test]
    async fn a_walk_that_fails_moves_nothing() {
        let frontier = Frontier::new(10);
        scan(&frontier, &[100]).await;
        let failed: Result<(), _> = frontier.scan(|_| async { Err(DbError::unreadable("no")) }).await;
        assert!(failed.is_err());
        assert_eq!(frontier.next(Instant::now()), 90);
    }
}
