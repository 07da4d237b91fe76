//! Wake-ups between processes on one database.
//!
//! Sends on what [`Signals`] has marked for stages that this process does not run: the first mark at once,
//! then at most one message per 5 ms, however many wake-ups there were. Hears what other processes send and
//! wakes the stages here; a listener that breaks is opened again, and then every stage looks once, because
//! something may have been missed.
//!
//! Not promised: that every wake-up arrives. The polls of [`crate::Driver`] are there for that.

use crate::{Shutdown, Signals, backoff::Backoff};
use hooksaga_store::{Stage, StoreResult, Wakeups};
use std::{sync::Arc, time::Duration};

const COALESCE: Duration = Duration::from_millis(5);

/// Carries wake-ups to and from other processes until the order to stop. Stop it last: the other
/// components leave work for others while they stop.
pub async fn forward_wakeups(signals: &Signals, wakeups: Arc<dyn Wakeups>, shutdown: &Shutdown) {
    tokio::select! {
        () = shutdown.wait() => {}
        () = send(signals, &*wakeups) => {}
        () = hear(signals, &*wakeups) => {}
    }
    let rest = signals.take_outgoing();
    if !rest.is_empty()
        && let Err(error) = wakeups.notify(&rest).await
    {
        tracing::debug!(%error, "the last wake-ups were not sent; polls will find the work");
    }
}

async fn send(signals: &Signals, wakeups: &dyn Wakeups) {
    let mut backoff = Backoff::new();
    loop {
        signals.outgoing_ready().await;
        let stages = signals.take_outgoing();
        match wakeups.notify(&stages).await {
            Ok(()) => {
                backoff = Backoff::new();
                tokio::time::sleep(COALESCE).await;
            }
            Err(error) => {
                tracing::debug!(%error, "cannot send wake-ups to other processes; trying again");
                stages.into_iter().for_each(|stage| signals.announce(stage));
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

/// Never returns; if the back end has no signals it waits forever.
async fn hear(signals: &Signals, wakeups: &dyn Wakeups) {
    let mut backoff = Backoff::new();
    loop {
        match hear_until_broken(signals, wakeups, &mut backoff).await {
            Ok(()) => std::future::pending::<()>().await,
            Err(error) => {
                signals.set_listening(false);
                tracing::debug!(%error, "cannot receive wake-ups from other processes; trying again");
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

/// Ends without an error only where the back end has no signals.
async fn hear_until_broken(
    signals: &Signals,
    wakeups: &dyn Wakeups,
    backoff: &mut Backoff,
) -> StoreResult<()> {
    let Some(mut listener) = wakeups.listen().await? else { return Ok(()) };
    signals.set_listening(true);
    *backoff = Backoff::new();
    Stage::ALL.iter().for_each(|stage| wake_here(signals, *stage));
    loop {
        wake_here(signals, listener.next().await?);
    }
}

/// What comes from another process is never sent on.
fn wake_here(signals: &Signals, stage: Stage) {
    if signals.is_local(stage) {
        signals.wake(stage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use hooksaga_store::{StoreError, WakeListener};
    use std::{
        collections::VecDeque,
        sync::{
            Mutex,
            atomic::{AtomicU32, Ordering},
        },
    };
    use tokio::time::{Instant, timeout};

    fn away<T>() -> StoreResult<T> {
        Err(StoreError::Unavailable("away".to_owned()))
    }

    #[derive(Default)]
    struct Fake {
        /// What was sent, and when.
        sent: Mutex<Vec<(Vec<Stage>, Instant)>>,
        /// So many sends fail first.
        failing_sends: AtomicU32,
        /// What one listener after another hears before it breaks; with none left, listening fails.
        heard: Mutex<VecDeque<Vec<Stage>>>,
    }

    struct FakeListener(VecDeque<Stage>);

    #[async_trait]
    impl WakeListener for FakeListener {
        async fn next(&mut self) -> StoreResult<Stage> {
            self.0.pop_front().map_or_else(away, Ok)
        }
    }

    #[async_trait]
    impl Wakeups for Fake {
        async fn notify(&self, stages: &[Stage]) -> StoreResult<()> {
            let left = self.failing_sends.load(Ordering::SeqCst);
            if left > 0 {
                self.failing_sends.store(left - 1, Ordering::SeqCst);
                return away();
            }
            self.sent.lock().unwrap().push((stages.to_vec(), Instant::now()));
            Ok(())
        }

        async fn listen(&self) -> StoreResult<Option<Box<dyn WakeListener>>> {
            match self.heard.lock().unwrap().pop_front() {
                Some(stages) => Ok(Some(Box::new(FakeListener(stages.into())))),
                None => away(),
            }
        }
    }

    /// Runs the forwarder over these signals for a while.
    async fn forward_during(fake: &Arc<Fake>, signals: &Signals, test: impl Future<Output = ()>) {
        let shutdown = Shutdown::new();
        let stop_after = async {
            test.await;
            shutdown.trigger();
        };
        tokio::join!(forward_wakeups(signals, fake.clone(), &shutdown), stop_after);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_mark_is_sent_at_once_and_the_rest_together() {
        let (fake, signals) = (Arc::new(Fake::default()), Signals::new(&[]));
        let began = Instant::now();
        forward_during(&fake, &signals, async {
            signals.wake(Stage::Router);
            tokio::time::sleep(Duration::from_millis(1)).await;
            for _ in 0..100 {
                signals.wake(Stage::Router);
                signals.wake(Stage::Worker);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        })
        .await;
        let sent = fake.sent.lock().unwrap();
        assert_eq!(sent.len(), 2, "{sent:?}");
        assert_eq!((&sent[0].0, sent[0].1), (&vec![Stage::Router], began));
        assert_eq!(sent[1].0, [Stage::Router, Stage::Worker]);
        assert!(sent[1].1 - began >= COALESCE);
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_sent_is_sent_later_and_the_last_at_the_end() {
        let (fake, signals) = (Arc::new(Fake::default()), Signals::new(&[]));
        fake.failing_sends.store(3, Ordering::SeqCst);
        forward_during(&fake, &signals, async {
            signals.wake(Stage::Apply);
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert_eq!(fake.sent.lock().unwrap()[0].0, [Stage::Apply]);
            signals.wake(Stage::DeadLetters);
        })
        .await;
        assert_eq!(fake.sent.lock().unwrap()[1].0, [Stage::DeadLetters]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_heard_wakes_stages_here_and_is_not_sent_on() {
        let (fake, signals) = (Arc::new(Fake::default()), Signals::new(&[Stage::Worker]));
        assert!(!signals.hears_all());
        *fake.heard.lock().unwrap() = VecDeque::from([vec![], vec![Stage::Router, Stage::Worker]]);
        forward_during(&fake, &signals, async {
            // Opening a listener wakes: something may have been missed before.
            timeout(Duration::from_millis(1), signals.woken(Stage::Worker)).await.unwrap();
            // The first listener broke; the second hears.
            timeout(Duration::from_millis(60), signals.woken(Stage::Worker)).await.unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert!(!signals.hears_all(), "both listeners broke and no third one opened");
        })
        .await;
        assert!(fake.sent.lock().unwrap().is_empty());
    }
}
