//! Submits that somebody else's open transaction holds up: it stores the same `external_id`, and may stay open for long.
//! They are kept apart from the others, so that no batch waits for them, or fails with them.

use super::{Submit, Writer};
use hooksaga_store::{Appended, NewEvent, StoreError, StoreResult};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};

/// How long a submit is tried before its caller is told to come again.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);
/// An id that was held a moment ago is taken to be so still. Longer than a caller pauses before it tries again.
const REMEMBERED: Duration = Duration::from_secs(5);
/// The most ids that are remembered; the others cost their neighbours a second commit.
const MOST_REMEMBERED: usize = 1000;
/// The most submits that are under way apart; beyond that their writer waits for them.
const MOST_APART: usize = 2000;

/// The ids that were held, and when that was seen.
#[derive(Default)]
pub(super) struct Held(Mutex<HashMap<(String, String), Instant>>);

impl Held {
    fn ids(&self) -> MutexGuard<'_, HashMap<(String, String), Instant>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one of these events has an id that was held a moment ago.
    pub(super) fn has(&self, events: &[NewEvent]) -> bool {
        let mut ids = self.ids();
        if ids.is_empty() {
            return false;
        }
        ids.retain(|_, seen| seen.elapsed() < REMEMBERED);
        events.iter().filter_map(key).any(|key| ids.contains_key(&key))
    }

    /// A submit of a single event is to blame itself; of several it is not known which.
    fn note(&self, events: &[NewEvent]) {
        let mut ids = self.ids();
        if let [event] = events
            && let Some(key) = key(event)
            && ids.len() < MOST_REMEMBERED
        {
            ids.insert(key, Instant::now());
        }
    }

    fn forget(&self, events: &[NewEvent]) {
        let mut ids = self.ids();
        if !ids.is_empty() {
            for key in events.iter().filter_map(key) {
                ids.remove(&key);
            }
        }
    }
}

fn key(event: &NewEvent) -> Option<(String, String)> {
    Some((event.tenant.to_string(), event.external_id.as_ref()?.to_string()))
}

/// Stores each submit in a transaction of its own, beside whatever else goes on.
pub(super) async fn store_apart(
    writer: &Arc<Writer>,
    submits: impl Iterator<Item = (Submit, Vec<NewEvent>)>,
    apart: &mut JoinSet<()>,
) {
    for (submit, events) in submits {
        while apart.try_join_next().is_some() {}
        while apart.len() >= MOST_APART {
            apart.join_next().await;
        }
        let writer = Arc::clone(writer);
        apart.spawn(async move { submit.answer(patiently(&writer, &events).await) });
    }
}

async fn patiently(writer: &Writer, events: &[NewEvent]) -> StoreResult<Vec<Appended>> {
    let began = Instant::now();
    loop {
        match writer.append(events).await {
            Err(StoreError::Contended(_)) if began.elapsed() < PATIENCE => {
                writer.held.note(events);
                tokio::time::sleep(PAUSE).await;
            }
            done => {
                if done.is_ok() {
                    writer.held.forget(events);
                }
                return done;
            }
        }
    }
}
