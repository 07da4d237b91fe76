//! The open connections, and which of them is closed when there are too many.

use super::connection::{EvictAfter, Peer, Rank};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
    time::{Duration, Instant},
};
use tokio::{sync::Notify, task::AbortHandle};

/// How many connections may be open beyond the limit because they were told to close and have not closed yet.
const MAX_LEAVING: usize = 64;

/// How often to look for somebody to evict while nobody may be.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How many victims one look at all connections finds.
const VICTIMS: usize = 64;

/// Figures that outlive the listener.
#[derive(Debug, Default)]
pub(super) struct ListenerCounters {
    connections: AtomicUsize,
    evicted: AtomicU64,
    pub(super) response_bytes: AtomicUsize,
}

impl ListenerCounters {
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    pub(super) fn response_bytes(&self) -> usize {
        self.response_bytes.load(Ordering::Relaxed)
    }
}

/// All connections of a listener.
pub(super) struct Connections {
    max: usize,
    patience: EvictAfter,
    counts: Arc<ListenerCounters>,
    table: Arc<Mutex<OpenConnections>>,
    /// A connection has ended.
    ended: Arc<Notify>,
    /// Every connection is to end.
    stopping: AtomicBool,
}

#[derive(Default)]
struct OpenConnections {
    next: u64,
    open: HashMap<u64, Arc<Peer>>,
    leaving: usize,
    /// Found by the last look at all connections; who goes first is last.
    victims: Vec<(Rank, Arc<Peer>)>,
}

impl Connections {
    pub(super) fn new(max: usize, patience: EvictAfter, counts: Arc<ListenerCounters>) -> Self {
        let stopping = AtomicBool::new(false);
        Self { max, patience, counts, table: Arc::default(), ended: Arc::default(), stopping }
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one more connection can be admitted: there is room, or another one is told to go.
    pub(super) async fn room(&self) {
        loop {
            let ended = self.ended.notified();
            if self.make_room() {
                return;
            }
            // Either way: who is being served now may be the one to go a little later, without an end.
            let _ = tokio::time::timeout(LOOK_AGAIN, ended).await;
        }
    }

    fn make_room(&self) -> bool {
        let mut table = self.lock();
        if table.open.len().saturating_sub(table.leaving) < self.max {
            return true;
        }
        if table.leaving >= MAX_LEAVING {
            return false;
        }
        match table.next_victim(self.patience) {
            Some(victim) => {
                self.tell_to_go(&mut table, &victim);
                true
            }
            None => false,
        }
    }

    /// Closes connections that have not read their response for a while, the longest first, up to this many.
    pub(super) fn evict_stalled_readers(&self, count: usize) {
        let now = Instant::now();
        let mut table = self.lock();
        let mut stalled: Vec<(Instant, Arc<Peer>)> = table
            .open
            .values()
            .filter_map(|peer| Some((peer.keeps_response(now, self.patience.stalled)?, Arc::clone(peer))))
            .collect();
        stalled.sort_unstable_by_key(|(since, _)| *since);
        for (_, peer) in stalled.iter().take(count) {
            self.tell_to_go(&mut table, peer);
        }
    }

    /// Closes every connection whose request makes no progress: a stop does not wait for those.
    pub(super) fn evict_quiet(&self) {
        let now = Instant::now();
        let mut table = self.lock();
        let quiet: Vec<Arc<Peer>> =
            table.open.values().filter(|peer| peer.is_quiet(now, self.patience)).map(Arc::clone).collect();
        quiet.iter().for_each(|peer| self.tell_to_go(&mut table, peer));
    }

    fn tell_to_go(&self, table: &mut OpenConnections, peer: &Peer) {
        if !peer.leaving.swap(true, Ordering::Relaxed) {
            table.leaving += 1;
            self.counts.evicted.fetch_add(1, Ordering::Relaxed);
            tracing::debug!("a connection is closed to make room for others");
            // If its task is not known yet, it is aborted as soon as it is.
            peer.task.get().map(AbortHandle::abort);
        }
    }

    /// Whether every connection is to end.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Gives every connection the order to end.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        let table = self.lock();
        table.open.values().filter_map(|peer| peer.waker.get()).for_each(Waker::wake_by_ref);
    }

    /// Notes how to wake the task of a connection: when the order comes later than this, it is woken.
    pub(super) fn watch(&self, peer: &Peer, waker: &Waker) {
        // Held, so that whoever gives the order either finds the waker or has set the flag before.
        let _table = self.lock();
        peer.set_waker(waker);
    }

    /// The task of a connection that was admitted.
    pub(super) fn set_task(&self, peer: &Peer, task: AbortHandle) {
        // Held, so that nobody tells it to go in between.
        let _table = self.lock();
        let task = peer.task.get_or_init(|| task);
        if peer.leaving.load(Ordering::Relaxed) {
            task.abort();
        }
    }

    /// Takes a new connection in.
    pub(super) fn admit(&self) -> Admitted {
        let peer = Arc::new(Peer::new());
        let mut table = self.lock();
        let id = table.next;
        table.next += 1;
        table.open.insert(id, Arc::clone(&peer));
        self.counts.connections.fetch_add(1, Ordering::Relaxed);
        Admitted {
            id,
            peer,
            table: Arc::clone(&self.table),
            ended: Arc::clone(&self.ended),
            counts: Arc::clone(&self.counts),
        }
    }
}

impl OpenConnections {
    /// Who goes next.
    fn next_victim(&mut self, patience: EvictAfter) -> Option<Arc<Peer>> {
        let now = Instant::now();
        // What was found may have become busy since: then its rank is another.
        while let Some((rank, peer)) = self.victims.pop() {
            if peer.rank(now, patience) == Some(rank) {
                return Some(peer);
            }
        }
        let mut found: Vec<(Rank, Arc<Peer>)> = self
            .open
            .values()
            .filter_map(|peer| Some((peer.rank(now, patience)?, Arc::clone(peer))))
            .collect();
        if found.len() > VICTIMS {
            found.select_nth_unstable_by_key(VICTIMS, |(rank, _)| *rank);
            found.truncate(VICTIMS);
        }
        found.sort_unstable_by_key(|(rank, _)| std::cmp::Reverse(*rank));
        self.victims = found;
        self.victims.pop().map(|(_, peer)| peer)
    }
}

/// A connection's place; given back when it goes.
pub(super) struct Admitted {
    id: u64,
    peer: Arc<Peer>,
    table: Arc<Mutex<OpenConnections>>,
    ended: Arc<Notify>,
    counts: Arc<ListenerCounters>,
}

impl Admitted {
    pub(super) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.open.remove(&self.id);
        // A connection that is gone is nobody's victim any more.
        if self.peer.leaving.swap(true, Ordering::Relaxed) {
            table.leaving = table.leaving.saturating_sub(1);
        }
        self.counts.connections.fetch_sub(1, Ordering::Relaxed);
        self.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALLED: Duration = Duration::from_millis(20);
    const PATIENCE: EvictAfter = EvictAfter { idle: Duration::ZERO, stalled: STALLED };

    fn full(count: usize) -> (Connections, Vec<Admitted>) {
        let connections = Connections::new(count, PATIENCE, Arc::default());
        let admitted = (0..count).map(|_| connections.admit()).collect();
        (connections, admitted)
    }

    fn left(admitted: &[Admitted]) -> Vec<usize> {
        let left = |one: &Admitted| one.peer.leaving.load(Ordering::Relaxed);
        admitted.iter().enumerate().filter(|(_, one)| left(one)).map(|(at, _)| at).collect()
    }

    #[test]
    fn who_has_been_idle_longest_goes_first() {
        let (connections, admitted) = full(4);
        admitted[0].peer.begin();
        connections.make_room();
        assert_eq!(left(&admitted), [1], "0 is busy, 1 came before 2 and 3");
        let later = connections.admit();
        connections.make_room();
        assert_eq!(left(&admitted), [1, 2]);
        drop((admitted, later));
        assert_eq!(connections.lock().leaving, 0);
        assert_eq!((connections.counts.connections(), connections.counts.evicted()), (0, 2));
    }

    #[test]
    fn whoever_is_being_served_stays_and_whoever_keeps_us_waiting_goes_after_a_while() {
        let (connections, admitted) = full(3);
        admitted.iter().for_each(|one| one.peer.begin());
        admitted[1].peer.set_waits_for_body(true);
        admitted[2].peer.respond();
        admitted[2].peer.set_write_blocked(true);
        connections.make_room();
        assert!(left(&admitted).is_empty(), "not at once");
        std::thread::sleep(STALLED);
        connections.make_room();
        assert_eq!(left(&admitted), [1]);
        let _second = connections.admit();
        admitted.iter().take(1).for_each(|one| one.peer.set_write_blocked(false));
        connections.evict_stalled_readers(10);
        assert_eq!(left(&admitted), [1, 2]);
    }

    #[test]
    fn a_victim_that_became_busy_is_passed_over() {
        let (connections, admitted) = full(3);
        connections.make_room();
        admitted[1].peer.begin();
        let _later = connections.admit();
        connections.make_room();
        assert_eq!(left(&admitted), [0, 2], "1 was found when 0 was, and is busy now");
    }

    #[test]
    fn whoever_has_just_come_has_time_to_ask() {
        let patience = EvictAfter { idle: STALLED, stalled: STALLED };
        let connections = Connections::new(1, patience, Arc::default());
        let admitted = [connections.admit()];
        connections.make_room();
        assert!(left(&admitted).is_empty());
        std::thread::sleep(STALLED);
        connections.make_room();
        assert_eq!(left(&admitted), [0]);
    }

    #[tokio::test]
    async fn with_nobody_to_evict_there_is_room_when_one_ends() {
        let (connections, mut admitted) = full(2);
        admitted.iter().for_each(|one| one.peer.begin());
        let soon = Duration::from_millis(60);
        assert!(tokio::time::timeout(soon, connections.room()).await.is_err());
        admitted.pop();
        tokio::time::timeout(soon, connections.room()).await.unwrap();
    }
}
