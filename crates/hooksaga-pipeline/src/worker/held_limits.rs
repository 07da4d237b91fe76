//! Attempts whose rate limit another process is just applying: their bucket is locked.
//!
//! They are decided about together, and one question at a time waits in the database, because each keeps a connection. Where
//! commits are slow there are few questions a second, so each is about all attempts that wait. If their turn does not come
//! within [`TURN`], all of them are given back: the other process may be frozen.

use super::limits::{LimitedAttempts, Passed, StartGate};
use hooksaga_store::{HeldBuckets, WorkerStore};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Semaphore, time::timeout};

/// How long attempts wait until a question is about them.
const TURN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct HeldLimits<T> {
    waiting: Mutex<LimitedAttempts<T>>,
    /// Held by the question that waits in the database.
    turn: Semaphore,
}

impl<T> HeldLimits<T> {
    pub(super) fn new() -> Self {
        Self { waiting: Mutex::default(), turn: Semaphore::new(1) }
    }

    /// Decides about these attempts and all others that wait then; or about none, if the question of another call was about
    /// these, too.
    pub(super) async fn pass(
        &self,
        held: LimitedAttempts<T>,
        store: &dyn WorkerStore,
        gate: &StartGate,
    ) -> Passed<T> {
        self.waiting().append(held);
        let turn = timeout(TURN, self.turn.acquire()).await;
        let all = std::mem::take(&mut *self.waiting());
        match turn {
            _ if all.is_empty() => Passed::NOTHING,
            Ok(_turn) => all.pass(store, gate, HeldBuckets::WaitFor).await,
            Err(_) => all.postponed(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, LimitedAttempts<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fake_store::FakeStore, *};
    use hooksaga_saga::{RateLimit, SubscriptionId};

    fn attempts(subscription: i64) -> LimitedAttempts<()> {
        LimitedAttempts::of(SubscriptionId(subscription), RateLimit::per_second(1), Vec::new())
    }

    /// Where a process that holds a bucket is frozen, the others keep their connections for what they can do.
    #[tokio::test(start_paused = true)]
    async fn one_question_at_a_time_waits_for_a_bucket_that_is_held() {
        let (store, gate) = (FakeStore::default(), StartGate::new(Duration::from_secs(30)));
        let held = HeldLimits::new();
        let others = async {
            for subscription in 2..5 {
                held.pass(attempts(subscription), &store, &gate).await;
            }
            attempts(5).pass(&store, &gate, HeldBuckets::PassOver).await;
        };
        tokio::select! {
            biased;
            _ = held.pass(attempts(1), &store, &gate) => panic!("nobody lets go of it"),
            () = others => {}
        }
        assert_eq!(*store.limits_asked.lock().unwrap(), [HeldBuckets::WaitFor, HeldBuckets::PassOver]);
    }

    /// The one whose turn it is asks for all; the others have nothing left to ask.
    #[tokio::test(start_paused = true)]
    async fn all_that_wait_are_in_the_next_question() {
        let (store, gate) = (FakeStore::default(), StartGate::new(Duration::from_secs(30)));
        let held = HeldLimits::new();
        let turn = held.turn.acquire().await;
        let waiting = async {
            tokio::join!(held.pass(attempts(1), &store, &gate), held.pass(attempts(2), &store, &gate))
        };
        let asked = async {
            tokio::task::yield_now().await;
            assert_eq!(held.waiting().subscriptions(), [SubscriptionId(1), SubscriptionId(2)]);
            drop(turn);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            _ = waiting => panic!("nobody lets go of it"),
            () = asked => {}
            () = tokio::time::sleep(TURN / 2) => {}
        }
        assert!(held.waiting().is_empty());
        assert_eq!(*store.limits_asked.lock().unwrap(), [HeldBuckets::WaitFor]);
    }
}
