//! The state of the modelled world: the tables, and what each process remembers between transactions.

use hooksaga_saga::{ErrorCode, JobStatus, Saga, SagaStatus, Timestamp};

/// Rows that there is room for. A correct run needs at most three sagas with three jobs each; a broken one
/// may make one more before an invariant stops it.
pub(super) const MAX_SAGAS: usize = 4;
pub(super) const MAX_JOBS: usize = 4;
/// Two subscriptions: routed, inserted, moved, each. Whatever else is written is durable, and all before it.
pub(super) const MAX_DEFERRED: usize = 6;
/// The key of every saga's first attempt; 0 is left free for a clock that goes back.
pub(super) const FIRST_KEY: u8 = 1;

/// Everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub ingested: bool,
    /// The event's row in `unrouted_events`: to how many subscriptions it has been routed.
    pub unrouted: Option<u8>,
    /// Ghost: the subscription was active when the event came and has been ever since, so that the event
    /// must get a saga.
    pub must_route: bool,
    /// The subscription is active and verified.
    pub active: bool,
    /// The subscription is deleted: its deliveries end without a request.
    pub deleted: bool,
    pub sagas: [Option<SagaRow>; MAX_SAGAS],
    /// Commits that a crash of the database would forget, the last one last.
    pub deferred: [Option<Deferred>; MAX_DEFERRED],
    /// Ingestion remembers that it owes the queue row (only if it does not write both at once).
    pub ingest_owes: bool,
    pub routers: [Router; 2],
    pub schedulers: [Scheduler; 2],
    pub workers: [Worker; 2],
    pub appliers: [Applier; 2],
    pub buriers: [Burier; 2],
    pub operators: [Operator; 2],
}

/// A row of `webhook_delivery_sagas`, with its jobs, its letters and its row in `pending_dead_letters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SagaRow {
    pub subscription: u8,
    pub generation: u8,
    pub core: Core,
    pub jobs: [Option<JobRow>; MAX_JOBS],
    pub letter_queued: bool,
    pub letters: u8,
}

/// The columns that the state machine decides on: [`Saga`], small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Core {
    pub status: SagaStatus,
    pub attempts: u8,
    pub limit: u8,
    pub next_attempt_at: u8,
    pub failed: bool,
}

/// A row of `webhook_delivery_jobs`, with its row in `finished_jobs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct JobRow {
    pub attempt_at: u8,
    pub status: JobStatus,
    pub token: Token,
    /// Pending, and not before its subscription delivers again.
    pub parked: bool,
    /// The failure is final: `HTTP_410`, `SUBSCRIPTION_DELETED`.
    pub gone: bool,
    pub queued: bool,
    /// The result in the queue row, where queue rows carry one.
    pub carried: Option<Ending>,
    /// Ghost: how often its result changed the saga.
    pub applied: u8,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Ending {
    Delivered,
    Failed,
    /// Failed for good.
    Gone,
}

/// An acknowledged commit that is not on disk yet, as what undoes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Deferred {
    /// The event was routed: to this saga, if its subscription was active.
    Routed {
        progress: u8,
        saga: Option<u8>,
    },
    /// A saga alone (only if it is not written together with the progress).
    Saga(u8),
    Inserted(JobRef),
    Moved {
        saga: u8,
        from: SagaStatus,
    },
}

/// A lease's token, named by who drew it: a process holds one lease at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Token {
    Null,
    Of(u8),
    /// Of a process that has forgotten it.
    Lost,
}

/// A job, by its place in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct JobRef {
    pub saga: u8,
    pub job: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Router {
    Idle,
    /// Has read whether the subscription is active, but locked nothing yet.
    HasList(bool),
    /// Has read the queue row, with this progress, without locking it.
    Took(u8),
    /// The same in one snapshot with whether the subscription is active.
    Saw {
        next: u8,
        active: bool,
    },
    /// Has moved the progress past this subscription, or deleted the queue row, before writing the saga.
    Owes(u8),
}

impl Router {
    pub(super) fn without_list(self) -> Self {
        if matches!(self, Self::HasList(_)) { Self::Idle } else { self }
    }

    /// Its connection is gone, and the transaction with it.
    pub(super) fn without_transaction(self) -> Self {
        if let Self::Owes(_) = self { self } else { Self::Idle }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Scheduler {
    Idle,
    /// Has read a due saga.
    Read {
        saga: u8,
        attempt_at: u8,
    },
    /// Has made the first of its two writes: the job, if jobs come first. `session`: the connection on which it did is
    /// still there.
    HalfWay {
        saga: u8,
        attempt_at: u8,
        session: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Worker {
    Idle,
    /// Believes to hold the job's lease; the POST is under way or done.
    Holds(JobRef),
    /// Has reported but not queued the result (only if it does not write both at once).
    OwesQueueRow(JobRef),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Applier {
    Idle,
    /// Its snapshot is older than its queue lock and shows the job unfinished.
    SawUnfinished(JobRef),
    /// Has read the queue row without locking it.
    Took(JobRef),
    /// Has decided on a saga that it has not locked.
    Decided {
        job: JobRef,
        core: Core,
        promoted: bool,
        changes: bool,
    },
    /// Has written the saga but not deleted the queue row.
    OwesDelete(JobRef),
    /// Has killed the saga but not queued its letter.
    OwesLetter(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Burier {
    Idle,
    /// Has read the queue row without locking it.
    Took(u8),
    /// Has deleted the queue row before writing the letter.
    Deleted(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Operator {
    Idle,
    /// Has read a saga that has ended, to insert this generation; or the subscription of a test event, to insert
    /// generation 0.
    Requeues {
        subscription: u8,
        generation: u8,
    },
}

impl State {
    /// Nothing has happened yet.
    pub(super) fn initial(active: bool) -> Self {
        Self {
            ingested: false,
            unrouted: None,
            must_route: false,
            active,
            deleted: false,
            sagas: [None; MAX_SAGAS],
            deferred: [None; MAX_DEFERRED],
            ingest_owes: false,
            routers: [Router::Idle; 2],
            schedulers: [Scheduler::Idle; 2],
            workers: [Worker::Idle; 2],
            appliers: [Applier::Idle; 2],
            buriers: [Burier::Idle; 2],
            operators: [Operator::Idle; 2],
        }
    }

    pub(super) fn saga(&self, saga: u8) -> &SagaRow {
        self.sagas[usize::from(saga)].as_ref().unwrap()
    }

    pub(super) fn saga_mut(&mut self, saga: u8) -> &mut SagaRow {
        self.sagas[usize::from(saga)].as_mut().unwrap()
    }

    pub(super) fn job(&self, at: JobRef) -> &JobRow {
        self.saga(at.saga).jobs[usize::from(at.job)].as_ref().unwrap()
    }

    pub(super) fn job_mut(&mut self, at: JobRef) -> &mut JobRow {
        self.saga_mut(at.saga).jobs[usize::from(at.job)].as_mut().unwrap()
    }

    pub(super) fn saga_ids(&self) -> impl Iterator<Item = u8> + use<> {
        let sagas = self.sagas;
        (0_u8..).zip(sagas).filter_map(|(id, row)| row.map(|_| id))
    }

    pub(super) fn job_refs(&self) -> impl Iterator<Item = JobRef> + use<> {
        let sagas = self.sagas;
        (0_u8..).zip(sagas).filter_map(|(saga, row)| Some((saga, row?.jobs))).flat_map(|(saga, jobs)| {
            (0_u8..).zip(jobs).filter_map(move |(job, row)| row.map(|_| JobRef { saga, job }))
        })
    }

    /// Whether the event has been routed to every subscription.
    pub(super) fn routed_to_all(&self, subscriptions: u8) -> bool {
        let has_saga = |subscription| {
            self.sagas.iter().flatten().any(|saga| saga.subscription == subscription && saga.generation == 0)
        };
        (0..subscriptions).all(has_saga)
    }

    /// The database has committed something that a crash may forget. In a broken run there may be too many: the oldest is
    /// on disk by then.
    pub(super) fn defer(&mut self, commit: Deferred) {
        if self.deferred.iter().all(Option::is_some) {
            self.deferred.rotate_left(1);
            self.deferred[MAX_DEFERRED - 1] = None;
        }
        *self.deferred.iter_mut().find(|entry| entry.is_none()).unwrap() = Some(commit);
    }

    /// A crash of the database forgets its last deferred commit.
    pub(super) fn forget_last(&mut self) {
        let last = self.deferred.iter_mut().rev().find(|entry| entry.is_some()).unwrap();
        match last.take().unwrap() {
            Deferred::Routed { progress, saga } => {
                self.unrouted = Some(progress);
                if let Some(saga) = saga {
                    self.sagas[usize::from(saga)] = None;
                }
            }
            Deferred::Saga(saga) => self.sagas[usize::from(saga)] = None,
            Deferred::Inserted(job) => self.saga_mut(job.saga).jobs[usize::from(job.job)] = None,
            Deferred::Moved { saga, from } => self.saga_mut(saga).core.status = from,
        }
    }

    /// A worker's memory is gone: no lease bears a token that it knows.
    pub(super) fn forget_worker(&mut self, worker: u8) {
        self.workers[usize::from(worker)] = Worker::Idle;
        self.rename_tokens(|token| if token == Token::Of(worker) { Token::Lost } else { token });
    }

    /// The two copies of a component are interchangeable, so states that differ only in which is which
    /// are one state: this picks its representative.
    pub(super) fn canonical(mut self) -> Self {
        if self.ingested && self.unrouted.is_none() && !self.ingest_owes {
            // Whoever has a list, and finds the queue empty, does nothing with it.
            self.routers = self.routers.map(Router::without_list);
        }
        self.routers.sort_unstable();
        self.schedulers.sort_unstable();
        self.appliers.sort_unstable();
        self.buriers.sort_unstable();
        self.operators.sort_unstable();
        let [first, second] = self.workers;
        let second_holds = |job| self.job(job).token == Token::Of(1);
        let tie = first == second && matches!(first, Worker::Holds(job) if second_holds(job));
        if first > second || tie {
            self.workers = [second, first];
            self.rename_tokens(|token| match token {
                Token::Of(worker) => Token::Of(1 - worker),
                other => other,
            });
        }
        self
    }

    fn rename_tokens(&mut self, rename: impl Fn(Token) -> Token) {
        for job in self.sagas.iter_mut().flatten().flat_map(|saga| saga.jobs.iter_mut().flatten()) {
            job.token = rename(job.token);
        }
    }
}

impl JobRow {
    pub(super) fn ending(&self) -> Ending {
        match self.status {
            JobStatus::Failed if self.gone => Ending::Gone,
            JobStatus::Failed => Ending::Failed,
            _ => Ending::Delivered,
        }
    }

    pub(super) fn enqueue(&mut self, with_result: bool) {
        self.queued = true;
        self.carried = with_result.then(|| self.ending());
    }

    pub(super) fn dequeue(&mut self) {
        self.queued = false;
        self.carried = None;
    }
}

impl SagaRow {
    pub(super) fn job_rows(&self) -> impl Iterator<Item = &JobRow> {
        self.jobs.iter().flatten()
    }

    pub(super) fn has_active_job(&self) -> bool {
        self.job_rows().any(|job| job.status.is_active())
    }
}

impl Core {
    /// The row as the product's code sees it.
    pub(super) fn to_saga(self) -> Saga {
        Saga {
            status: self.status,
            attempt_count: self.attempts.into(),
            max_retry_limit: self.limit.into(),
            next_attempt_at: time(self.next_attempt_at),
            final_error_code: self.failed.then_some(ErrorCode::TIMEOUT),
        }
    }

    /// What the product's code decided, as a row.
    pub(super) fn of(saga: &Saga) -> Self {
        let small = |number: u32| u8::try_from(number).unwrap();
        Self {
            status: saga.status,
            attempts: small(saga.attempt_count),
            limit: small(saga.max_retry_limit),
            next_attempt_at: u8::try_from(saga.next_attempt_at.as_micros()).unwrap(),
            failed: saga.final_error_code.is_some(),
        }
    }
}

/// A model time as the product's code sees it.
pub(super) fn time(micros: u8) -> Timestamp {
    Timestamp::from_micros(micros.into())
}
