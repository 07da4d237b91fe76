//! Room for request bodies: a budget of bytes, and the clients that hold parts of it.
//!
//! Room is held from the moment a request announces its size. Clients that announce a body and then keep the server
//! waiting would block others, so when there is no room left, those that have stalled longest lose theirs.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// A client that has not sent its body after this long may lose its room while others want it.
const STALLED: Duration = Duration::from_secs(1);

/// How often, while there is no room, to look for somebody who has stalled meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A client that sends a body, and that may be waited for.
pub(crate) struct BodySender {
    began: Instant,
    waits: AtomicBool,
    evicted: Notify,
}

impl BodySender {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), waits: AtomicBool::new(false), evicted: Notify::new() })
    }

    /// Waits for what the client sends. `None`: its room is given to others.
    pub(crate) async fn wait_for<T>(&self, sent: impl Future<Output = T>) -> Option<T> {
        self.waits.store(true, Ordering::Relaxed);
        let sent = tokio::select! {
            biased;
            sent = sent => Some(sent),
            () = self.evicted.notified() => None,
        };
        self.waits.store(false, Ordering::Relaxed);
        sent
    }

    fn has_stalled(&self) -> bool {
        self.waits.load(Ordering::Relaxed) && self.began.elapsed() >= STALLED
    }
}

/// So many bytes.
pub(crate) struct Room {
    free: Arc<Semaphore>,
    holders: Mutex<Holders>,
}

/// In the order in which they came.
#[derive(Default)]
struct Holders {
    next: u64,
    by_number: BTreeMap<u64, (usize, Arc<BodySender>)>,
}

impl Room {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS)));
        Arc::new(Self { free, holders: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Holders> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes this many bytes if they are free.
    pub(crate) fn try_take(self: &Arc<Self>, bytes: usize) -> Option<RoomPermit> {
        let permits = u32::try_from(bytes).ok()?;
        let permit = Arc::clone(&self.free).try_acquire_many_owned(permits).ok()?;
        Some(RoomPermit { room: Arc::clone(self), bytes, number: None, permit })
    }

    /// Takes this many bytes; clients that stall lose theirs. Waits no longer than `wait` says, or only while somebody is
    /// waited for who may stall.
    pub(crate) async fn take(self: &Arc<Self>, bytes: usize, wait: Wait) -> Option<RoomPermit> {
        if let Some(held) = self.try_take(bytes) {
            return Some(held);
        }
        let permits = u32::try_from(bytes).ok()?;
        let (Wait::ForAnybody(most) | Wait::ForStalled(most)) = wait;
        let until = Instant::now() + most;
        let mut acquire = std::pin::pin!(Arc::clone(&self.free).acquire_many_owned(permits));
        loop {
            let awaited = self.evict_stalled(bytes);
            if Instant::now() >= until || (matches!(wait, Wait::ForStalled(_)) && !awaited) {
                return None;
            }
            if let Ok(permit) = tokio::time::timeout(LOOK_AGAIN, acquire.as_mut()).await {
                let permit = permit.ok()?;
                return Some(RoomPermit { room: Arc::clone(self), bytes, number: None, permit });
            }
        }
    }

    /// Tells clients to go that keep the server waiting, the longest first, until this many bytes will be free. Returns
    /// whether anybody is being waited for, stalled or not.
    fn evict_stalled(&self, bytes: usize) -> bool {
        let mut holders = self.lock();
        let mut wanted = bytes.saturating_sub(self.free.available_permits());
        let mut evicted = Vec::new();
        for (number, (held, sender)) in &holders.by_number {
            if wanted == 0 {
                break;
            }
            if sender.has_stalled() {
                wanted = wanted.saturating_sub(*held);
                sender.evicted.notify_one();
                evicted.push(*number);
            }
        }
        let awaited = holders.by_number.values().any(|(_, sender)| sender.waits.load(Ordering::Relaxed));
        for number in &evicted {
            holders.by_number.remove(number);
        }
        if !evicted.is_empty() {
            tracing::debug!(
                senders = evicted.len(),
                "requests whose body stalled were ended to free memory for others"
            );
        }
        awaited
    }
}

/// How long to wait for room.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Until anybody gives room back.
    ForAnybody(Duration),
    /// While those that hold it are themselves waited for: not for the ones whose requests are being handled.
    ForStalled(Duration),
}

/// Room that a body has taken; given back when this goes.
pub(crate) struct RoomPermit {
    room: Arc<Room>,
    bytes: usize,
    number: Option<u64>,
    permit: OwnedSemaphorePermit,
}

impl RoomPermit {
    /// Takes more if it is free.
    pub(crate) fn grow(&mut self, bytes: usize) -> Option<()> {
        let mut more = self.room.try_take(bytes)?;
        self.permit.merge(more.permit.split(bytes)?);
        self.bytes += bytes;
        if let Some(number) = self.number
            && let Some((held, _)) = self.room.lock().by_number.get_mut(&number)
        {
            *held = self.bytes;
        }
        Some(())
    }

    /// Says whose it is: from now on it may be lost to others.
    pub(crate) fn belongs_to(&mut self, sender: &Arc<BodySender>) {
        if self.number.is_none() {
            let mut holders = self.room.lock();
            let number = holders.next;
            holders.next += 1;
            holders.by_number.insert(number, (self.bytes, Arc::clone(sender)));
            self.number = Some(number);
        }
    }
}

impl Drop for RoomPermit {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.room.lock().by_number.remove(&number);
        }
    }
}

#[cfg(test)]
impl Room {
    pub(crate) fn free(&self) -> usize {
        self.free.available_permits()
    }
}
