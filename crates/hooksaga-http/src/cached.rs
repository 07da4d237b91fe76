//! Caches a query's result (or failure) for a period. Only one copy runs at a time; other requests wait for it. A query
//! that takes too long counts as failed. It runs in its own task and stores its result even if the request that started
//! it has gone; otherwise disconnecting clients could make it run every time.

use hooksaga_store::{StoreError, StoreResult};
use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

type CachedResult<T> = Result<Arc<T>, Arc<StoreError>>;

/// What was found, and when.
type Latest<T> = (Instant, CachedResult<T>);

pub(crate) struct Cached<T> {
    fresh: Duration,
    patience: Duration,
    latest: Arc<Mutex<Option<Latest<T>>>>,
}

impl<T: Send + Sync + 'static> Cached<T> {
    pub(crate) fn new(fresh: Duration, patience: Duration) -> Self {
        Self { fresh, patience, latest: Arc::default() }
    }

    pub(crate) async fn get(
        &self,
        ask: impl Future<Output = StoreResult<T>> + Send + 'static,
    ) -> CachedResult<T> {
        let mut latest = Arc::clone(&self.latest).lock_owned().await;
        if let Some((asked, found)) = &*latest
            && asked.elapsed() < self.fresh
        {
            return found.clone();
        }
        let patience = self.patience;
        let asking = tokio::spawn(async move {
            let found = tokio::time::timeout(patience, ask)
                .await
                .unwrap_or_else(|_| Err(StoreError::Unavailable("no response in time".to_owned())))
                .map(Arc::new)
                .map_err(Arc::new);
            *latest = Some((Instant::now(), found.clone()));
            found
        });
        asking
            .await
            .unwrap_or_else(|_| Err(Arc::new(StoreError::Unavailable("the query ended early".to_owned()))))
    }
}

/// One cache per key, for a bounded number of keys.
pub(crate) struct ByKey<K, C> {
    most: usize,
    make: fn() -> C,
    by_key: std::sync::Mutex<HashMap<K, Arc<C>>>,
}

impl<K: Clone + Eq + Hash, C> ByKey<K, C> {
    pub(crate) fn new(most: usize, make: fn() -> C) -> Self {
        Self { most, make, by_key: std::sync::Mutex::default() }
    }

    /// The one for this key. When there are too many keys all are forgotten, which costs each one question.
    pub(crate) fn of(&self, key: &K) -> Arc<C> {
        let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        if by_key.len() >= self.most && !by_key.contains_key(key) {
            by_key.clear();
        }
        let cached = by_key.entry(key.clone());
        Arc::clone(cached.or_insert_with(|| Arc::new((self.make)())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn what_never_comes_is_not_waited_for() {
        let cached = Cached::<u8>::new(MINUTE, Duration::from_millis(1));
        let error = cached.get(std::future::pending()).await.unwrap_err();
        assert!(error.is_transient());
    }

    #[tokio::test]
    async fn many_at_once_ask_once() {
        let cached = Arc::new(Cached::new(MINUTE, MINUTE));
        let asked = Arc::new(AtomicUsize::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let (cached, asked) = (Arc::clone(&cached), Arc::clone(&asked));
            tasks.spawn(async move {
                cached
                    .get(async move {
                        tokio::task::yield_now().await;
                        Ok(asked.fetch_add(1, Ordering::Relaxed))
                    })
                    .await
                    .map(|found| *found)
                    .ok()
            });
        }
        assert!(tasks.join_all().await.into_iter().all(|found| found == Some(0)));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_question_whose_asker_has_gone_is_stored() {
        let cached = Cached::new(MINUTE, MINUTE);
        let (answer, waiting) = tokio::sync::oneshot::channel();
        let gone = cached.get(async { Ok(waiting.await.unwrap_or(0)) });
        assert!(tokio::time::timeout(Duration::from_millis(10), gone).await.is_err(), "it waits");
        answer.send(1).expect("it is still asked");
        assert_eq!(cached.get(async { Ok(2) }).await.map(|found| *found).ok(), Some(1));
    }

    #[tokio::test]
    async fn failures_are_kept_and_stale_values_are_not() {
        let away = || async { Err::<u8, _>(StoreError::Unavailable("gone".to_owned())) };
        let kept = Cached::new(MINUTE, MINUTE);
        assert!(kept.get(away()).await.is_err());
        assert!(kept.get(async { Ok(1) }).await.is_err());

        let never = Cached::new(Duration::ZERO, MINUTE);
        assert!(never.get(away()).await.is_err());
        assert_eq!(never.get(async { Ok(1) }).await.map(|found| *found).ok(), Some(1));
    }
}
