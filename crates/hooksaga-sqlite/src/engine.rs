//! Runs transactions: one writer thread with one connection, and the readers (`readers`).
//!
//! SQLite has one writer at a time anyway. With a writer thread, callers queue in memory instead of fighting for the file's
//! lock, and share one warm page cache. Async callers await the result.
//!
//! Transactions that have queued up meanwhile are committed together, a few at a time. Each is a savepoint, which is kept or
//! undone by itself, and one write to disk makes all that are kept durable. None of them returns before that.
//!
//! While nobody else waits, consecutive steps of one delivery share a commit: route, schedule, move and claim; report
//! and apply. The first three return before the commit ([`Commit::Deferred`]); the claim never does, because a request
//! is sent on the strength of it. If the commit fails, all of them are rolled back, and run again because their queue
//! rows are still there.

use crate::{
    error::DbResult,
    location::ServerLock,
    readers::{ReadLane, ReadLanes, Readers},
    session::{Commit, Part, Purpose, Session, Tx},
    writer_queue::{CommitGroup, WriterQueue},
};
use hooksaga_store::{Role, StoreError, StoreResult};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};
use tokio::sync::oneshot;

/// The connections of one database.
pub(crate) struct Engine {
    /// `None` only during drop.
    readers: Option<Readers>,
    /// `None` only during drop.
    jobs: Option<mpsc::Sender<Box<dyn Part>>>,
    writer: Option<thread::JoinHandle<()>>,
    /// Something has returned and is not committed yet.
    deferred: Arc<AtomicBool>,
    /// Let go of last, when no connection is open any more.
    _lock: Option<ServerLock>,
}

impl Engine {
    /// Opens every connection. The schema must be current.
    pub(crate) fn start(path: &Path, lanes: ReadLanes, lock: Option<ServerLock>) -> StoreResult<Self> {
        let mut session = Session::open(path, Purpose::Write)?;
        let (jobs, queue) = mpsc::channel();
        let deferred = Arc::<AtomicBool>::default();
        let of_writer = Arc::clone(&deferred);
        let writer = thread::Builder::new()
            .name("sqlite-writer".to_owned())
            .spawn(move || write_all(&mut session, &queue, &of_writer))
            .map_err(|error| StoreError::Unavailable(format!("no thread for the writer: {error}")))?;
        let readers = Some(Readers::start(path, lanes)?);
        Ok(Self { readers, jobs: Some(jobs), writer: Some(writer), deferred, _lock: lock })
    }

    /// Runs `job` as one transaction of `role`, after those of the role that were sent before it.
    async fn write<T: Send + 'static>(
        &self,
        role: Role,
        commit: Commit,
        job: impl FnOnce(&Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let (result, returned) = oneshot::channel();
        let waiting = QueuedTransaction { role, commit, job: Some(job), outcome: None, result };
        let stopped = || StoreError::Unavailable("the database's writer has stopped".to_owned());
        self.jobs.as_ref().ok_or_else(stopped)?.send(Box::new(waiting)).map_err(|_| stopped())?;
        returned
            .await
            .unwrap_or_else(|_| Err(StoreError::Other("the transaction was interrupted".to_owned())))
    }

    /// Runs `job` as one read of `role`, on one consistent state of the database, with everything in it that has returned
    /// before.
    async fn read<T: Send + 'static>(
        &self,
        lane: ReadLane,
        role: Role,
        job: impl FnOnce(&Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        if self.deferred.load(Ordering::Acquire) {
            self.write(role, Commit::AtOnce, |_| Ok(())).await?;
        }
        let stopped = || StoreError::Unavailable("the database's readers have stopped".to_owned());
        self.readers.as_ref().ok_or_else(stopped)?.read(lane, role, job).await
    }
}

/// The writer's life: what has queued up is committed together, until the engine is dropped.
fn write_all(session: &mut Session, queue: &mpsc::Receiver<Box<dyn Part>>, deferred: &AtomicBool) {
    let mut waiting = WriterQueue::default();
    loop {
        if waiting.is_empty() {
            let Ok(first) = queue.recv() else { return };
            waiting.push(first);
        }
        queue.try_iter().for_each(|part| waiting.push(part));
        let mut parts = waiting.next();
        // A caller that has given up meanwhile would not learn what was done for it: better not begun.
        parts.retain(|part| part.is_wanted());
        let Some(role) = parts.first().map(|part| part.role()) else { continue };
        let mut group = CommitGroup::new(parts, &mut waiting, queue, deferred);
        let committed = session.run_together(role, &mut group);
        group.complete(&committed);
        if deferred.swap(false, Ordering::AcqRel)
            && let Err(error) = committed
        {
            tracing::warn!(%error, "a commit failed; its steps will be repeated");
        }
    }
}

/// A transaction on its way through the writer's queue.
struct QueuedTransaction<T, F> {
    role: Role,
    commit: Commit,
    /// `None` once it has begun.
    job: Option<F>,
    /// `None` until it has run, and if it panicked.
    outcome: Option<StoreResult<T>>,
    result: oneshot::Sender<StoreResult<T>>,
}

impl<T, F> Part for QueuedTransaction<T, F>
where
    T: Send,
    F: FnOnce(&Tx<'_>) -> DbResult<T> + Send,
{
    fn role(&self) -> Role {
        self.role
    }

    fn commit(&self) -> Commit {
        self.commit
    }

    fn is_wanted(&self) -> bool {
        !self.result.is_closed()
    }

    fn run(&mut self, tx: &Tx<'_>) -> bool {
        self.outcome = self.job.take().map(|job| job(tx).map_err(StoreError::from));
        matches!(self.outcome, Some(Ok(_)))
    }

    fn complete(self: Box<Self>, committed: &StoreResult<()>) {
        let outcome = match (self.outcome, committed) {
            (Some(Err(own)), _) => Err(own),
            (_, Err(error)) => Err(error.clone()),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (None, Ok(())) => Err(StoreError::Other("the transaction was interrupted".to_owned())),
        };
        // The caller may have given up during the work; what was committed stays, like a lost response.
        let _ = self.result.send(outcome);
    }
}

impl Drop for Engine {
    /// Waits until every connection is closed, so that the lock is free when the engine is gone and the
    /// database is one tidy file.
    fn drop(&mut self) {
        self.readers = None;
        self.jobs = None;
        if let Some(writer) = self.writer.take() {
            // Jobs cannot make it panic, and there is nothing to do about it here.
            let _ = writer.join();
        }
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
        self.engine.write(self.role, Commit::AtOnce, job).await
    }

    /// Runs `job` as a step from which another follows, with which it may share a commit.
    pub(crate) async fn write_linked<T: Send + 'static>(
        &self,
        commit: Commit,
        job: impl FnOnce(&Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.engine.write(self.role, commit, job).await
    }

    /// Runs `job` as one consistent read.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.engine.read(ReadLane::Prompt, self.role, job).await
    }

    /// Runs `job` as a read that may be slow: it delays nobody but its like, and ends after
    /// [`QUERY_LIMIT`](hooksaga_store::QUERY_LIMIT).
    pub(crate) async fn list<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.engine.read(ReadLane::Lists, self.role, job).await
    }

    /// Runs `job` as a read for the metrics, which waits behind no list.
    pub(crate) async fn watch<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.engine.read(ReadLane::Watch, self.role, job).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_store::QUERY_LIMIT;
    use std::{
        fs,
        path::PathBuf,
        time::{Duration, Instant},
    };

    const COUNT: &str = "/* keys.count */ SELECT count(*) FROM api_keys";
    /// The same row, however often.
    const INSERT_ONE: &str = "/* keys.insert_one */
        INSERT INTO api_keys (name, scopes, sha256, created_at, by_admin)
        SELECT 'n', 'read', zeroblob(32), 0, 1 WHERE NOT EXISTS (SELECT 1 FROM api_keys)";
    const DELETE: &str = "/* keys.delete */ DELETE FROM api_keys";
    const INSERT: &str = "/* keys.insert */
        INSERT INTO api_keys (name, scopes, sha256, created_at, by_admin) VALUES ('n', 'read', zeroblob(32), 0, 1)";

    /// A database in a folder of its own, and the key role's way to it.
    fn database(name: &str) -> (PathBuf, RoleHandle) {
        let folder = std::env::temp_dir().join(format!("hooksaga-engine-{name}-{}", std::process::id()));
        let location = crate::location::Location::check(&folder.join("x.db")).unwrap();
        let lock = location.lock().unwrap();
        crate::schema::migrate(&location, &lock).unwrap();
        let engine = Arc::new(Engine::start(location.path(), ReadLanes::SERVER, Some(lock)).unwrap());
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

    #[tokio::test]
    async fn whoever_reads_sees_what_returned_before_its_commit() {
        let (folder, handle) = database("deferred");
        handle.write_linked(Commit::Deferred, |tx| tx.execute(INSERT, [])).await.unwrap();
        assert_eq!(keys(&handle).await, 1);
        drop(handle);
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn what_nothing_follows_is_committed_all_the_same() {
        let (folder, handle) = database("alone");
        handle.write_linked(Commit::Deferred, |tx| tx.execute(INSERT, [])).await.unwrap();
        let outside = rusqlite::Connection::open(folder.join("x.db")).unwrap();
        let count = || outside.query_row(COUNT, [], |row| row.get::<_, i64>(0)).unwrap();
        let started = std::time::Instant::now();
        while count() == 0 {
            assert!(started.elapsed() < std::time::Duration::from_secs(10));
            tokio::task::yield_now().await;
        }
        // One that waits for the next step returns, too.
        handle.write_linked(Commit::WithNext, |tx| tx.execute(DELETE, [])).await.unwrap_err();
        drop(handle);
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn a_step_learns_that_one_that_returned_was_undone() {
        let (folder, handle) = database("undone");
        let before = handle.write(|tx| Ok(tx.undone)).await.unwrap();
        // As SQLite does by itself when the disk is full.
        handle.write(|tx| tx.execute("/* keys.rollback */ ROLLBACK", [])).await.unwrap_err();
        assert_eq!(handle.write(|tx| Ok(tx.undone)).await.unwrap(), before + 1);
        drop(handle);
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn a_statement_of_one_role_never_runs_for_another() {
        let (folder, keys) = database("roles");
        let worker = RoleHandle { role: Role::JobWorker, ..keys.clone() };
        keys.write(|tx| tx.execute(INSERT, [])).await.unwrap();
        // The same text is in the writer's cache by now, checked for the other role.
        let result = worker.write(|tx| tx.execute(INSERT, [])).await;
        assert!(matches!(result, Err(StoreError::Denied(_))), "{result:?}");
        let renamed = INSERT.replace("keys.", "worker.");
        let result = worker.write(move |tx| tx.execute(&renamed, [])).await;
        assert!(matches!(result, Err(StoreError::Denied(_))), "{result:?}");
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

    /// Would take forever.
    const ENDLESS: &str = "/* keys.endless */
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n";

    fn endless(tx: &Tx<'_>) -> DbResult<i64> {
        Ok(tx.prepare(ENDLESS)?.query_row([], |row| row.get(0))?)
    }

    #[tokio::test]
    async fn slow_lists_end_in_time_and_delay_neither_reads_nor_writes() {
        let (folder, handle) = database("slow");
        let begun = Instant::now();
        let mut lists = tokio::task::JoinSet::new();
        for _ in 0..2 * ReadLanes::SERVER.lists {
            let handle = handle.clone();
            lists.spawn(async move { handle.list(endless).await });
        }
        for _ in 0..20 {
            let asked = Instant::now();
            keys(&handle).await;
            handle
                .watch(|tx| Ok(tx.prepare(COUNT)?.query_row([], |row| row.get::<_, i64>(0))?))
                .await
                .unwrap();
            handle.write(|tx| tx.execute(INSERT_ONE, [])).await.unwrap();
            assert!(asked.elapsed() < QUERY_LIMIT / 2, "{:?}", asked.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for list in lists.join_all().await {
            assert!(matches!(list, Err(StoreError::TooSlow(_))), "{list:?}");
        }
        // The second half has waited for so long that hardly any time was left.
        assert!(begun.elapsed() >= QUERY_LIMIT);
        assert!(begun.elapsed() < QUERY_LIMIT + Duration::from_secs(3), "{:?}", begun.elapsed());
        assert_eq!(
            handle.list(|tx| Ok(tx.prepare(COUNT)?.query_row([], |row| row.get(0))?)).await.ok(),
            Some(1)
        );
        drop(handle);
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn a_list_ends_when_its_caller_has_gone() {
        let (folder, handle) = database("gone");
        for _ in 0..ReadLanes::SERVER.lists {
            let patience = Duration::from_millis(50);
            assert!(tokio::time::timeout(patience, handle.list(endless)).await.is_err(), "it runs");
        }
        let asked = Instant::now();
        handle.list(|tx| Ok(tx.prepare(COUNT)?.query_row([], |row| row.get::<_, i64>(0))?)).await.unwrap();
        assert!(asked.elapsed() < QUERY_LIMIT / 2, "{:?}", asked.elapsed());
        drop(handle);
        fs::remove_dir_all(folder).unwrap();
    }
}
