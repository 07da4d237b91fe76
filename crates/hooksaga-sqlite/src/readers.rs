//! The reading connections: opened once, each with a thread of its own, in three lanes.
//!
//! What the API lists may be slow; whoever looks up a key, asks for readiness or works for a delivery must not wait
//! behind it. So lists have their lane, what the metrics show has one, and everything else has another. A list that takes
//! too long is ended, and so is one whose caller has gone.
//!
//! Nothing is opened later: an open can fail where a read cannot (no descriptor left, a file that was moved).

use crate::{
    error::DbResult,
    session::{Purpose, ReadLimit, Session, Tx},
};
use hooksaga_store::{QUERY_LIMIT, Role, StoreError, StoreResult};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Instant,
};
use tokio::sync::oneshot;

/// Which connections a read runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadLane {
    /// Keys, readiness, and the components: bounded work.
    Prompt,
    /// What the API shows: ended [`QUERY_LIMIT`] after it was asked for.
    Lists,
    /// Reads for the metrics: however slow lists are, alerts have what they need.
    Watch,
}

/// How many connections each lane has. Each has a page cache of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadLanes {
    pub(crate) prompt: usize,
    pub(crate) lists: usize,
    pub(crate) watch: usize,
}

impl ReadLanes {
    /// A server's.
    pub(crate) const SERVER: Self = Self { prompt: 2, lists: 3, watch: 1 };
    /// A tool's, beside a server: one for everything.
    pub(crate) const TOOL: Self = Self { prompt: 1, lists: 0, watch: 0 };
}

type Read = Box<dyn FnOnce(&mut Session) + Send>;

/// Every reading connection of one database.
pub(crate) struct Readers {
    prompt: mpsc::Sender<Read>,
    lists: mpsc::Sender<Read>,
    watch: mpsc::Sender<Read>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Readers {
    /// Opens every connection. The schema must be current.
    pub(crate) fn start(path: &Path, lanes: ReadLanes) -> StoreResult<Self> {
        let mut threads = Vec::new();
        let prompt = start_lane(path, "sqlite-reader", lanes.prompt, &mut threads)?;
        let mut lane = |name, size| match size {
            0 => Ok(prompt.clone()),
            size => start_lane(path, name, size, &mut threads),
        };
        let (lists, watch) = (lane("sqlite-lists", lanes.lists)?, lane("sqlite-watch", lanes.watch)?);
        Ok(Self { prompt, lists, watch, threads })
    }

    /// Runs `job` as one read of `role`, on one consistent state of the database.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        lane: ReadLane,
        role: Role,
        job: impl FnOnce(&Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let (sender, returned) = oneshot::channel();
        let caller = WaitingCaller::default();
        let gone = caller.0.clone();
        let asked = Instant::now();
        let read: Read = Box::new(move |session: &mut Session| {
            if gone.load(Ordering::Relaxed) {
                return;
            }
            let result = match lane {
                ReadLane::Prompt => session.read(role, ReadLimit::endless(), job),
                // The wait counts: a queue this long consists of slow reads, and its last caller would wait forever.
                ReadLane::Lists | ReadLane::Watch => match QUERY_LIMIT.checked_sub(asked.elapsed()) {
                    Some(left) => session.read(role, ReadLimit::new(left, gone), job),
                    None => Err(StoreError::TooSlow(
                        "too many slow queries are running; try again later".to_owned(),
                    )),
                },
            };
            // The caller may have given up meanwhile.
            let _ = sender.send(result);
        });
        let line = match lane {
            ReadLane::Prompt => &self.prompt,
            ReadLane::Lists => &self.lists,
            ReadLane::Watch => &self.watch,
        };
        let stopped = || StoreError::Unavailable("the database's readers have stopped".to_owned());
        line.send(read).map_err(|_| stopped())?;
        returned.await.unwrap_or_else(|_| Err(StoreError::Other("the read was interrupted".to_owned())))
    }
}

/// Somebody who waits for a read. Dropped, nobody does.
#[derive(Default)]
struct WaitingCaller(Arc<AtomicBool>);

impl Drop for WaitingCaller {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn start_lane(
    path: &Path,
    name: &str,
    size: usize,
    threads: &mut Vec<thread::JoinHandle<()>>,
) -> StoreResult<mpsc::Sender<Read>> {
    let (line, reads) = mpsc::channel::<Read>();
    let reads = Arc::new(Mutex::new(reads));
    for _ in 0..size {
        let mut session = Session::open(path, Purpose::Read)?;
        let reads = reads.clone();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || read_all(&mut session, &reads))
            .map_err(|error| StoreError::Unavailable(format!("no thread for a reader: {error}")))?;
        threads.push(thread);
    }
    Ok(line)
}

/// A reader's life, until the engine is dropped.
fn read_all(session: &mut Session, reads: &Mutex<mpsc::Receiver<Read>>) {
    loop {
        // One of the lane's threads waits for the next read, and the others for that one.
        let next = reads.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(read) = next else { return };
        if catch_unwind(AssertUnwindSafe(|| read(session))).is_err() {
            tracing::error!("a read panicked");
        }
    }
}

impl Drop for Readers {
    /// Waits until every connection is closed.
    fn drop(&mut self) {
        // Without a sender the threads end.
        (self.prompt, self.lists, self.watch) = (mpsc::channel().0, mpsc::channel().0, mpsc::channel().0);
        for thread in self.threads.drain(..) {
            // Reads cannot make it panic, and there is nothing to do about it here.
            let _ = thread.join();
        }
    }
}
