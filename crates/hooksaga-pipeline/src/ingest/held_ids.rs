//! Submits whose `external_id` another open transaction is storing. That transaction may stay open for long.
//! Such submits are tried apart from the others, so that no batch waits for them or fails with them. Each try holds a
//! connection for as long as the database waits for the other transaction, so only a few run at a time: batches need
//! connections, too.

use super::{Submit, Writer};
use hooksaga_store::{Appended, NewEvent, StoreError, StoreResult};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};

/// How long a submit is tried before its caller gets an error and may repeat it.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);
/// An id that was held a moment ago is taken to be so still. Longer than a caller pauses before it tries again, and than
/// dozens of ids take that are tried one after another.
const REMEMBERED: Duration = Duration::from_secs(30);
/// The most ids that are remembered; the others cost their neighbours a second commit.
const MOST_REMEMBERED: usize = 1000;
/// The most submits that are under way apart; beyond that their writer waits for them.
const MOST_APART: usize = 2000;
/// How many tries run at a time: of submits that were in a batch with one that is held, and of those that are known to be
/// held. Together fewer than a role has connections.
const TRIES_OF_SUSPECTS: usize = 2;
const TRIES_OF_HELD: usize = 1;

/// What is known of ids that are held.
pub(super) struct HeldIds {
    /// The ids that were held, and when that was seen.
    ids: Mutex<HashMap<(String, String), Instant>>,
    suspects: Semaphore,
    held: Semaphore,
}

impl Default for HeldIds {
    fn default() -> Self {
        Self {
            ids: Mutex::default(),
            suspects: Semaphore::new(TRIES_OF_SUSPECTS),
            held: Semaphore::new(TRIES_OF_HELD),
        }
    }
}

impl HeldIds {
    fn ids(&self) -> MutexGuard<'_, HashMap<(String, String), Instant>> {
        // Nothing panics while it is held.
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one of these events has an id that was held a moment ago.
    pub(super) fn has(&self, events: &[NewEvent]) -> bool {
        self.has_since(events, REMEMBERED)
    }

    /// The same, for a moment of this length.
    fn has_since(&self, events: &[NewEvent], moment: Duration) -> bool {
        let mut ids = self.ids();
        if ids.is_empty() {
            return false;
        }
        ids.retain(|_, seen| seen.elapsed() < REMEMBERED);
        let is_held = |key| ids.get(&key).is_some_and(|seen| seen.elapsed() < moment);
        events.iter().filter_map(key).any(is_held)
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

    /// A turn to try what is held, within this time. Whoever's id was tried a moment ago lets the others go first: else
    /// one id that many want would be tried all the time, and the others be forgotten.
    async fn turn(&self, events: &[NewEvent], within: Duration) -> Option<SemaphorePermit<'_>> {
        let until = Instant::now() + within;
        loop {
            if let Ok(turn) = self.held.try_acquire() {
                return Some(turn);
            }
            if !self.has_since(events, PATIENCE)
                && let Ok(turn) = timeout_at(until, self.held.acquire()).await.ok()?
                && !self.has_since(events, PATIENCE)
            {
                return Some(turn);
            }
            timeout_at(until, sleep(PAUSE)).await.ok()?;
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
        match try_in_turn(writer, events, began).await {
            Err(StoreError::Contended(_)) if began.elapsed() < PATIENCE => sleep(PAUSE).await,
            done => return done,
        }
    }
}

/// One try, when it is its turn. One that is known to be held does not wait for its turn for longer than it is tried; one
/// that probably is not does.
async fn try_in_turn(writer: &Writer, events: &[NewEvent], began: Instant) -> StoreResult<Vec<Appended>> {
    let held = &writer.held;
    let mut turn = None;
    if !held.has(events) {
        turn = held.suspects.acquire().await.ok();
    }
    // Perhaps another one has found out meanwhile that the same id is held.
    if held.has(events) {
        drop(turn);
        turn = held.turn(events, PATIENCE.saturating_sub(began.elapsed())).await;
    }
    let Some(turn) = turn else {
        return Err(StoreError::Contended("an open transaction holds an external_id".to_owned()));
    };
    let tried = writer.append(events).await;
    // Before the next one has its turn: it may want the same.
    match &tried {
        Ok(_) => held.forget(events),
        Err(StoreError::Contended(_)) => held.note(events),
        Err(_) => {}
    }
    drop(turn);
    tried
}
