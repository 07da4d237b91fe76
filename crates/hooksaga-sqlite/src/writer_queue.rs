//! What waits for the writer, and what is committed together.

use crate::session::{Commit, Part, Together};
use hooksaga_store::{Role, StoreResult};
use std::{
    collections::VecDeque,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

/// How many transactions are committed together at most: the first must not wait forever, nor those that come
/// meanwhile.
const TOGETHER: usize = 4;

/// How many are committed together where steps follow from one another, with what comes while they run.
const LINKED: usize = 8;

/// The longest that a commit is delayed for the next step. Only the step itself waits for it meanwhile; anything that
/// arrives runs at once.
const FOR_NEXT: Duration = Duration::from_micros(1000);

/// What is committed together next, and who joins it.
pub(crate) struct CommitGroup<'a> {
    waiting: &'a mut WriterQueue,
    queue: &'a mpsc::Receiver<Box<dyn Part>>,
    deferred: &'a AtomicBool,
    begun: usize,
    todo: VecDeque<Box<dyn Part>>,
    /// These return after the commit; the last one may be running.
    ran: Vec<Box<dyn Part>>,
    /// How long to wait for the next step when there is nothing left to do.
    wait: Option<Duration>,
    /// One of the steps has a next one.
    linked: bool,
}

impl<'a> CommitGroup<'a> {
    pub(crate) fn new(
        parts: Vec<Box<dyn Part>>,
        waiting: &'a mut WriterQueue,
        queue: &'a mpsc::Receiver<Box<dyn Part>>,
        deferred: &'a AtomicBool,
    ) -> Self {
        Self {
            waiting,
            queue,
            deferred,
            begun: 0,
            todo: parts.into(),
            ran: Vec::new(),
            wait: None,
            linked: false,
        }
    }

    /// Completes the calls that have not returned yet, given what became of the commit.
    pub(crate) fn complete(self, committed: &StoreResult<()>) {
        self.ran.into_iter().chain(self.todo).for_each(|part| part.complete(committed));
    }
}

impl Together for CommitGroup<'_> {
    fn next(&mut self) -> Option<&mut dyn Part> {
        if self.todo.is_empty() {
            let wait = self.wait.take().filter(|_| self.begun < LINKED)?;
            self.todo.push_back(self.queue.recv_timeout(wait).ok().filter(|part| part.is_wanted())?);
        }
        self.begun += 1;
        self.ran.push(self.todo.pop_front()?);
        let part: &mut dyn Part = self.ran.last_mut()?.as_mut();
        Some(part)
    }

    fn ran(&mut self, changed: bool) {
        if !changed || !self.todo.is_empty() {
            return;
        }
        self.queue.try_iter().for_each(|part| self.waiting.push(part));
        let Some(last) = self.ran.last() else { return };
        // Somebody outside waits for each accepted event: for one that joined, and for those that have come meanwhile.
        if last.role() == Role::EventIngestWriter || self.waiting.has_events() {
            return;
        }
        let commit = last.commit();
        self.linked |= commit != Commit::AtOnce;
        if commit == Commit::Deferred {
            self.deferred.store(true, Ordering::Release);
            if let Some(part) = self.ran.pop() {
                part.complete(&Ok(()));
            }
        }
        // Steps often come before they are waited for: a claim while the sagas of its jobs are moved.
        if self.linked && self.begun < LINKED {
            self.todo.extend(self.waiting.take_others(LINKED - self.begun).filter(|part| part.is_wanted()));
        }
        self.wait = Some(FOR_NEXT).filter(|_| commit != Commit::AtOnce && self.todo.is_empty());
    }
}

/// What waits for the writer. Accepted events go first and share no commit with other work, because a client waits for
/// each of them, and for nothing else. Other work follows, a few transactions at a time, alternately with events.
#[derive(Default)]
pub(crate) struct WriterQueue {
    events: Vec<Box<dyn Part>>,
    others: VecDeque<Box<dyn Part>>,
    /// Events had the last turn.
    events_were_last: bool,
}

impl WriterQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.others.is_empty()
    }

    fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    fn take_others(&mut self, most: usize) -> impl Iterator<Item = Box<dyn Part>> {
        self.others.drain(..self.others.len().min(most))
    }

    pub(crate) fn push(&mut self, part: Box<dyn Part>) {
        if part.role() == Role::EventIngestWriter {
            self.events.push(part);
        } else {
            self.others.push_back(part);
        }
    }

    /// What is committed together next.
    pub(crate) fn next(&mut self) -> Vec<Box<dyn Part>> {
        let events = !self.events.is_empty() && (self.others.is_empty() || !self.events_were_last);
        self.events_were_last = events;
        if events { std::mem::take(&mut self.events) } else { self.take_others(TOGETHER).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Tx;
    use std::sync::Arc;

    /// A part that does nothing, and notes when it returns. Nobody waits for one of the key role.
    struct Named(Role, Commit, Arc<AtomicBool>);

    impl Part for Named {
        fn role(&self) -> Role {
            self.0
        }
        fn commit(&self) -> Commit {
            self.1
        }
        fn is_wanted(&self) -> bool {
            self.0 != Role::KeyAdmin
        }
        fn run(&mut self, _: &Tx<'_>) -> bool {
            true
        }
        fn complete(self: Box<Self>, _: &StoreResult<()>) {
            self.2.store(true, Ordering::Relaxed);
        }
    }

    fn part(role: Role, commit: Commit) -> (Box<dyn Part>, Arc<AtomicBool>) {
        let returned = Arc::<AtomicBool>::default();
        (Box::new(Named(role, commit, returned.clone())), returned)
    }

    #[test]
    fn events_go_first_and_hold_nobody_up() {
        let mut waiting = WriterQueue::default();
        let push = |waiting: &mut WriterQueue, role| waiting.push(part(role, Commit::AtOnce).0);
        let mut turns = Vec::new();
        (0..6).for_each(|_| push(&mut waiting, Role::JobWorker));
        for _ in 0..4 {
            // However many events come, all the time.
            (0..2).for_each(|_| push(&mut waiting, Role::EventIngestWriter));
            let parts = waiting.next();
            assert!(parts.iter().all(|part| part.role() == parts[0].role()));
            turns.push((parts[0].role(), parts.len()));
        }
        let (events, worker) = (Role::EventIngestWriter, Role::JobWorker);
        assert_eq!(turns, [(events, 2), (worker, TOGETHER), (events, 4), (worker, 2)]);
        assert_eq!((waiting.next().len(), waiting.is_empty()), (2, true));
    }

    /// Runs what there is, and sends `next` after the first of them. Returns how many were committed together, and whether
    /// the first returned before that.
    fn run(first: Commit, next: Option<Commit>, changed: bool) -> (usize, bool) {
        let (sender, queue) = mpsc::channel();
        let (mut waiting, deferred) = (WriterQueue::default(), AtomicBool::new(false));
        let (first, returned) = part(Role::RouterWorker, first);
        let mut group = CommitGroup::new(vec![first], &mut waiting, &queue, &deferred);
        let mut begun = 0;
        while group.next().is_some() {
            begun += 1;
            group.ran(changed);
            if let Some(next) = next.filter(|_| begun == 1) {
                sender.send(part(Role::JobWorker, next).0).unwrap();
            }
        }
        let early = returned.load(Ordering::Relaxed);
        assert_eq!(early, deferred.load(Ordering::Relaxed), "whoever reads knows of it");
        group.complete(&Ok(()));
        assert!(returned.load(Ordering::Relaxed));
        (begun, early)
    }

    #[test]
    fn a_step_shares_its_commit_with_the_one_that_follows() {
        use Commit::{AtOnce, Deferred, WithNext};
        assert_eq!(run(AtOnce, Some(AtOnce), true), (1, false));
        assert_eq!(run(WithNext, Some(AtOnce), true), (2, false));
        assert_eq!(run(Deferred, Some(AtOnce), true), (2, true));
        assert_eq!(run(Deferred, None, true), (1, true), "it is waited for, and not for ever");
        assert_eq!(run(Deferred, Some(AtOnce), false), (1, false), "nothing follows from nothing");
    }

    #[test]
    fn while_others_wait_nothing_is_put_off() {
        let (sender, queue) = mpsc::channel();
        let (mut waiting, deferred) = (WriterQueue::default(), AtomicBool::new(false));
        let (first, returned) = part(Role::RouterWorker, Commit::Deferred);
        sender.send(part(Role::EventIngestWriter, Commit::AtOnce).0).unwrap();
        let mut group = CommitGroup::new(vec![first], &mut waiting, &queue, &deferred);
        assert!(group.next().is_some());
        group.ran(true);
        assert!(group.next().is_none(), "what it tells is not needed sooner than its commit");
        assert!(!returned.load(Ordering::Relaxed));
    }

    #[test]
    fn what_came_while_a_step_ran_shares_its_commit() {
        let (sender, queue) = mpsc::channel();
        let (mut waiting, deferred) = (WriterQueue::default(), AtomicBool::new(false));
        let (first, returned) = part(Role::RouterWorker, Commit::Deferred);
        let mut group = CommitGroup::new(vec![first], &mut waiting, &queue, &deferred);
        assert!(group.next().is_some());
        // The next step, and a claim that follows from both.
        sender.send(part(Role::SagaOrchestrator, Commit::Deferred).0).unwrap();
        sender.send(part(Role::KeyAdmin, Commit::AtOnce).0).unwrap();
        sender.send(part(Role::JobWorker, Commit::AtOnce).0).unwrap();
        group.ran(true);
        assert!(returned.load(Ordering::Relaxed));
        let mut roles = Vec::new();
        while let Some(part) = group.next() {
            roles.push(part.role());
            group.ran(true);
        }
        assert_eq!(
            roles,
            [Role::SagaOrchestrator, Role::JobWorker],
            "and nothing that nobody waits for any more"
        );
    }

    #[test]
    fn an_event_that_joins_a_chain_ends_it() {
        let (sender, queue) = mpsc::channel();
        let (mut waiting, deferred) = (WriterQueue::default(), AtomicBool::new(false));
        let (first, _returned) = part(Role::RouterWorker, Commit::Deferred);
        let mut group = CommitGroup::new(vec![first], &mut waiting, &queue, &deferred);
        assert!(group.next().is_some());
        group.ran(true);
        sender.send(part(Role::EventIngestWriter, Commit::AtOnce).0).unwrap();
        assert_eq!(group.next().map(|part| part.role()), Some(Role::EventIngestWriter));
        sender.send(part(Role::JobWorker, Commit::AtOnce).0).unwrap();
        group.ran(true);
        assert!(group.next().is_none(), "whoever comes now has the next commit");
    }

    #[test]
    fn a_chain_of_steps_has_an_end() {
        let (sender, queue) = mpsc::channel();
        let (mut waiting, deferred) = (WriterQueue::default(), AtomicBool::new(false));
        let mut group = CommitGroup::new(
            vec![part(Role::RouterWorker, Commit::Deferred).0],
            &mut waiting,
            &queue,
            &deferred,
        );
        let mut begun = 0;
        while group.next().is_some() {
            begun += 1;
            group.ran(true);
            sender.send(part(Role::RouterWorker, Commit::Deferred).0).unwrap();
        }
        assert_eq!(begun, LINKED);
    }
}
