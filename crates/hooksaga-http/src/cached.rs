//! An answer of the database that is asked for at most once per period, by one request at a time: the others wait
//! for that one. Failures are kept as well, so that a database in trouble is not asked more often; one that takes
//! too long counts as away.

use hooksaga_store::{StoreError, StoreResult};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

type Answer<T> = Result<Arc<T>, Arc<StoreError>>;

pub(crate) struct Cached<T> {
    fresh: Duration,
    patience: Duration,
    latest: Mutex<Option<(Instant, Answer<T>)>>,
}

impl<T> Cached<T> {
    pub(crate) fn new(fresh: Duration, patience: Duration) -> Self {
        Self { fresh, patience, latest: Mutex::const_new(None) }
    }

    pub(crate) async fn get(&self, ask: impl Future<Output = StoreResult<T>>) -> Answer<T> {
        let mut latest = self.latest.lock().await;
        if let Some((asked, answer)) = &*latest
            && asked.elapsed() < self.fresh
        {
            return answer.clone();
        }
        let answer = tokio::time::timeout(self.patience, ask)
            .await
            .unwrap_or_else(|_| Err(StoreError::Unavailable("no answer in time".to_owned())))
            .map(Arc::new)
            .map_err(Arc::new);
        *latest = Some((Instant::now(), answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn an_answer_that_never_comes_is_not_waited_for() {
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
                    .get(async {
                        tokio::task::yield_now().await;
                        Ok(asked.fetch_add(1, Ordering::Relaxed))
                    })
                    .await
                    .map(|answer| *answer)
                    .ok()
            });
        }
        assert!(tasks.join_all().await.into_iter().all(|answer| answer == Some(0)));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn failures_are_kept_and_stale_answers_are_not() {
        let away = || async { Err::<u8, _>(StoreError::Unavailable("gone".to_owned())) };
        let kept = Cached::new(MINUTE, MINUTE);
        assert!(kept.get(away()).await.is_err());
        assert!(kept.get(async { Ok(1) }).await.is_err());

        let never = Cached::new(Duration::ZERO, MINUTE);
        assert!(never.get(away()).await.is_err());
        assert_eq!(never.get(async { Ok(1) }).await.map(|answer| *answer).ok(), Some(1));
    }
}
