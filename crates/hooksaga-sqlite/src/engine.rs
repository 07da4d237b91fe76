//! Who runs transactions: one writer thread with one connection, and a few reading connections.
//!
//! SQLite has one writer at a time anyway; a thread of its own makes callers queue in memory instead of
//! fighting for the file's lock, and keeps one warm page cache. Async callers await an answer.
//!
//! Transactions that have queued up meanwhile are committed together, a few at a time: each is a savepoint of its own,
//! kept or undone by itself, and one write to disk makes all that are kept durable. Nobody is answered before that.

use crate::{
    error::DbResult,
    location::ServerLock,
    session::{Part, Purpose, Session, Tx},
};
use hooksaga_store::{Role, StoreError, StoreResult};
use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
};
use tokio::sync::{Semaphore, oneshot};

/// How many reads run at a time. Each has a connection with a page cache of its own.
const READERS: usize = 3;

/// How many transactions are committed together at the most: the first must not wait for ever, nor those that come
/// meanwhile.
const TOGETHER: usize = 4;

/// The connections of one database.
pub(crate) struct Engine {
    readers: Arc<Readers>,
    /// Nothing only while the engine is dropped.
    jobs: Option<mpsc::Sender<Box<dyn Part>>>,
    writer: Option<thread::JoinHandle<()>>,
    /// Let go of last, when no connection is open any more.
    _lock: Option<ServerLock>,
}

struct Readers {
    path: PathBuf,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Session>>,
}

impl Engine {
    /// Opens the writer; readers are opened when they are needed. The schema must be current.
    pub(crate) fn start(path: &Path, lock: Option<ServerLock>) -> StoreResult<Self> {
        let mut session = Session::open(path, Purpose::Write)?;
        let (jobs, queue) = mpsc::channel();
        let writer = thread::Builder::new()
            .name("sqlite-writer".to_owned())
            .spawn(move || write_all(&mut session, &queue))
            .map_err(|error| StoreError::Unavailable(format!("no thread for the writer: {error}")))?;
        let readers = Arc::new(Readers {
            path: path.to_owned(),
            permits: Arc::new(Semaphore::new(READERS)),
            idle: Mutex::default(),
        });
        Ok(Self { readers, jobs: Some(jobs), writer: Some(writer), _lock: lock })
    }

    /// Runs `job` as one durable transaction of `role`, after those of the role that were sent before it.
    async fn write<T: Send + 'static>(
        &self,
        role: Role,
        job: impl FnOnce(&Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { role, job: Some(job), outcome: None, answer };
        let stopped = || StoreError::Unavailable("the database's writer has stopped".to_owned());
        self.jobs.as_ref().ok_or_else(stopped)?.send(Box::new(waiting)).map_err(|_| stopped())?;
        answered.await.unwrap_or_else(|_| Err(StoreError::Other("the transaction broke off".to_owned())))
    }

    /// Runs `job` as one read of `role`, on one consistent state of the database.
    async fn read<T: Send + 'static>(
        &self,
        role: Role,
        job: impl FnOnce(&Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let stopped = || StoreError::Unavailable("the database's readers have stopped".to_owned());
        let permit = self.readers.permits.clone().acquire_owned().await.map_err(|_| stopped())?;
        let readers = self.readers.clone();
        let work = move || {
            let idle = readers.idle().pop();
            let mut session = idle.map_or_else(|| Session::open(&readers.path, Purpose::Read), Ok)?;
            let result = session.read(role, job);
            readers.idle().push(session);
            drop(permit);
            result
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(stopped()))
    }
}

/// The writer's life: what has queued up is committed together, until the engine is dropped.
fn write_all(session: &mut Session, queue: &mpsc::Receiver<Box<dyn Part>>) {
    let mut waiting = Line::default();
    loop {
        if waiting.is_empty() {
            let Ok(first) = queue.recv() else { return };
            waiting.push(first);
        }
        queue.try_iter().for_each(|part| waiting.push(part));
        let mut parts = waiting.next();
        // A caller that has given up meanwhile would not learn what was done for it: better not begun.
        parts.retain(|part| part.is_wanted());
        let committed = session.run_together(&mut parts);
        for part in parts {
            part.answer(&committed);
        }
    }
}

/// Who waits for the writer. Accepted events go first and have a commit of their own: somebody outside waits for each
/// of them, and for nothing else. Everyone else follows, a few at a time, in turn with them.
#[derive(Default)]
struct Line {
    events: Vec<Box<dyn Part>>,
    others: VecDeque<Box<dyn Part>>,
    /// Events had the last turn.
    events_were_last: bool,
}

impl Line {
    fn is_empty(&self) -> bool {
        self.events.is_empty() && self.others.is_empty()
    }

    fn push(&mut self, part: Box<dyn Part>) {
        if part.role() == Role::EventIngestWriter {
            self.events.push(part);
        } else {
            self.others.push_back(part);
        }
    }

    /// What is committed together next.
    fn next(&mut self) -> Vec<Box<dyn Part>> {
        let events = !self.events.is_empty() && (self.others.is_empty() || !self.events_were_last);
        self.events_were_last = events;
        if events {
            std::mem::take(&mut self.events)
        } else {
            self.others.drain(..self.others.len().min(TOGETHER)).collect()
        }
    }
}

/// A transaction on its way through the writer's queue.
struct Waiting<T, F> {
    role: Role,
    /// Nothing once it has begun.
    job: Option<F>,
    /// Nothing if it has not begun, or panicked.
    outcome: Option<StoreResult<T>>,
    answer: oneshot::Sender<StoreResult<T>>,
}

impl<T, F> Part for Waiting<T, F>
where
    T: Send,
    F: FnOnce(&Tx<'_>) -> DbResult<T> + Send,
{
    fn role(&self) -> Role {
        self.role
    }

    fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }

    fn run(&mut self, tx: &Tx<'_>) -> bool {
        self.outcome = self.job.take().map(|job| job(tx).map_err(StoreError::from));
        matches!(self.outcome, Some(Ok(_)))
    }

    fn answer(self: Box<Self>, committed: &StoreResult<()>) {
        let outcome = match (self.outcome, committed) {
            (Some(Err(own)), _) => Err(own),
            (_, Err(error)) => Err(error.clone()),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (None, Ok(())) => Err(StoreError::Other("the transaction broke off".to_owned())),
        };
        // The caller may have given up during the work; what was committed stays, like a lost answer.
        let _ = self.answer.send(outcome);
    }
}

impl Drop for Engine {
    /// Waits until every connection is closed, so that the lock is free when the engine is gone and the
    /// database is one tidy file.
    fn drop(&mut self) {
        self.readers.idle().clear();
        self.jobs = None;
        if let Some(writer) = self.writer.take() {
            // Jobs cannot make it panic, and there is nothing to do about it here.
            let _ = writer.join();
        }
    }
}

impl Readers {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One role's way to the database.
#[derive(Clone)]
pub(crate) struct RoleHandle {
    engine: Arc<Engine>,
    role: Role,
}

impl RoleHandle {
    pub(crate) fn new(engine: &Arc<Engine>, role: Role) -> Self {
        Self { engine: engine.clone(), role }
    }

    /// Runs `job` as one durable transaction.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.engine.write(self.role, job).await
    }

    /// Runs `job` as one consistent read.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.engine.read(self.role, job).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const COUNT: &str = "/* key_admin: count */ SELECT count(*) FROM api_keys";
    const INSERT: &str = "/* key_admin: insert */
        INSERT INTO api_keys (name, scopes, sha256, created_at) VALUES ('n', 'read', zeroblob(32), 0)";

    /// A database in a folder of its own, and the key role's way to it.
    fn database(name: &str) -> (PathBuf, RoleHandle) {
        let folder = std::env::temp_dir().join(format!("hooksaga-engine-{name}-{}", std::process::id()));
        let location = crate::location::Location::check(&folder.join("x.db")).unwrap();
        let lock = location.lock().unwrap();
        crate::schema::migrate(&location, &lock).unwrap();
        let engine = Arc::new(Engine::start(location.path(), Some(lock)).unwrap());
        (folder, RoleHandle::new(&engine, Role::KeyAdmin))
    }

    async fn keys(handle: &RoleHandle) -> i64 {
        handle.read(|tx| Ok(tx.prepare(COUNT)?.query_row([], |row| row.get(0))?)).await.unwrap()
    }

    #[tokio::test]
    async fn a_transaction_that_panics_is_rolled_back_and_the_next_one_runs() {
        let (folder, handle) = database("panic");
        let broken: StoreResult<()> = handle
            .write(|tx| {
                tx.execute(INSERT, [])?;
                panic!("as a test");
            })
            .await;
        assert!(matches!(broken, Err(StoreError::Other(_))), "{broken:?}");
        assert_eq!(keys(&handle).await, 0);
        handle.write(|tx| tx.execute(INSERT, [])).await.unwrap();
        assert_eq!(keys(&handle).await, 1);
        drop(handle);
        fs::remove_dir_all(folder).unwrap();
    }

    /// A part that only has a role.
    struct Named(Role);

    impl Part for Named {
        fn role(&self) -> Role {
            self.0
        }
        fn is_wanted(&self) -> bool {
            true
        }
        fn run(&mut self, _: &Tx<'_>) -> bool {
            true
        }
        fn answer(self: Box<Self>, _: &StoreResult<()>) {}
    }

    #[test]
    fn events_go_first_and_hold_nobody_up() {
        let mut line = Line::default();
        let push = |line: &mut Line, role| line.push(Box::new(Named(role)));
        let mut turns = Vec::new();
        (0..6).for_each(|_| push(&mut line, Role::JobWorker));
        for _ in 0..4 {
            // However many events come, all the time.
            (0..2).for_each(|_| push(&mut line, Role::EventIngestWriter));
            let parts = line.next();
            assert!(parts.iter().all(|part| part.role() == parts[0].role()));
            turns.push((parts[0].role(), parts.len()));
        }
        let (events, worker) = (Role::EventIngestWriter, Role::JobWorker);
        assert_eq!(turns, [(events, 2), (worker, TOGETHER), (events, 4), (worker, 2)]);
        assert_eq!((line.next().len(), line.is_empty()), (2, true));
    }

    #[tokio::test]
    async fn a_statement_of_one_role_never_runs_for_another() {
        let (folder, keys) = database("roles");
        let worker = RoleHandle { role: Role::JobWorker, ..keys.clone() };
        keys.write(|tx| tx.execute(INSERT, [])).await.unwrap();
        // The same text is in the writer's cache by now, checked for the other role.
        let answer = worker.write(|tx| tx.execute(INSERT, [])).await;
        assert!(matches!(answer, Err(StoreError::Denied(_))), "{answer:?}");
        let renamed = INSERT.replace("key_admin", "job_worker");
        let answer = worker.write(move |tx| tx.execute(&renamed, [])).await;
        assert!(matches!(answer, Err(StoreError::Denied(_))), "{answer:?}");
        drop((keys, worker));
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn a_reading_connection_does_not_write() {
        let (folder, handle) = database("reading");
        handle.read(|tx| tx.execute(INSERT, [])).await.unwrap_err();
        assert_eq!(keys(&handle).await, 0);
        drop(handle);
        fs::remove_dir_all(folder).unwrap();
    }
}
