//! Direct access to the database for the tests: sessions with exactly the settings of a component, and the hot
//! statements with typical arguments.

use crate::{
    options::SessionKind,
    pool::RolePool,
    roles::{
        caretaker, cleaner, dead_letters, endpoint, event_locks, ingest, janitor, list_indexer, orchestrator,
        rate_limits, reader, redrives, router, verifier, worker,
    },
    time::SqlTime,
    transaction::BatchedTransaction,
};
use hooksaga_conformance::HotStatement;
use hooksaga_saga::{SubscriptionId, Timestamp};
use hooksaga_store::{Allotted, ClaimLimits, LeaseToken, Role, ServerOptions, StoreResult};
use mysql_async::Opts;
use std::time::Duration;

/// The configuration of a component's session.
pub fn session(options: &ServerOptions, role: Role) -> StoreResult<Opts> {
    Ok(SessionKind::Component(role).configuration(options)?.first().clone())
}

/// Transactions on a component's connections, as its stores run them.
#[derive(Clone)]
pub struct Transactions(RolePool);

impl Transactions {
    /// Connects to nothing yet.
    pub fn new(options: &ServerOptions, role: Role) -> StoreResult<Self> {
        Ok(Self(RolePool::new(SessionKind::Component(role).configuration(options)?)))
    }

    /// Takes a row: locks it, writes it, reads what belongs to it, and queues it with the commit. False if the write changed
    /// nothing.
    pub async fn take(&self, lock: &str, write: &str, read: &str, queue: &str) -> StoreResult<bool> {
        self.0
            .run(|connection| async move {
                let mut unit = BatchedTransaction::on(connection);
                let statements = [BatchedTransaction::START, lock, write, read, read, read, read];
                let [_, _, written, ..] = unit.run(statements).await?;
                if written.changed == 0 {
                    unit.rollback().await?;
                    return Ok(false);
                }
                unit.commit(&[queue.to_owned()]).await?;
                Ok(true)
            })
            .await
    }
}

/// The statements of a hot step, with their arguments, and who runs them.
pub fn hot(step: HotStatement) -> (Role, Vec<String>) {
    const NOW: &str = "UTC_TIMESTAMP(6)";
    const IDS: &str = "'[[1],[2]]'";
    const SAGAS: &str = r#"'[[1,1,"2026-01-01 00:00:00.000001","2026-01-01 00:00:00.000001"]]'"#;
    let with = |sql: &str, arguments: &[&str]| {
        let mut parts = sql.split('?');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for (part, argument) in parts.zip(arguments) {
            text.push_str(argument);
            text.push_str(part);
        }
        text
    };
    match step {
        HotStatement::Append => (
            Role::EventIngestWriter,
            vec![
                with(ingest::EXISTING, &[r#"'[["61","62"],["61","63"]]'"#]),
                format!("{} WHERE id IN (1,2)", ingest::PAYLOADS),
                with(ingest::READ_BACK, &["1", "2"]),
            ],
        ),
        HotStatement::Route => {
            use router::candidates::{OF_MANY, OF_ONE};
            let statements = vec![
                with(router::PEEK, &["1000"]),
                router::lock(1000),
                router::lock_listed("[[1],[2]]"),
                with(router::QUEUED, &["17", "2500"]),
                with(router::EVENTS, &[IDS]),
                with(OF_MANY, &[r#"'[[1,"64656661756c74","61"],[2,"64656661756c74","62"]]'"#, "5001"]),
                with(OF_ONE, &["'default'", "'a'", "1", "17", "5001"]),
                with(router::SAGAS, &["'[[1,1],[2,1]]'"]),
                with(router::INSERT, &[r#"'[[1,1,5,"2026-01-01 00:00:00.000001"]]'"#]),
                with(router::NOTE_UNMATCHED, &["'[[1,1,0,0]]'"]),
                with(
                    router::QUEUE_GAPS,
                    &[r#"'[[1,"2026-01-01 00:00:00.000001","2026-01-01 00:00:00.000002"]]'"#],
                ),
                router::resume(17, 1),
                router::forget("[[1],[2]]"),
            ];
            (Role::RouterWorker, statements)
        }
        HotStatement::Waiting => {
            use orchestrator::waiting::{ADMISSIBLE, WAITING};
            (Role::SagaOrchestrator, vec![with(WAITING, &["0"]), with(ADMISSIBLE, &[IDS])])
        }
        HotStatement::CreateJobs => {
            use orchestrator::schedule::{ACTIVE_JOBS, INSERT, JOBS, due_statement};
            let allotted = [1, 2].map(|id| Allotted { subscription_id: SubscriptionId(id), jobs: 64 });
            let statements = vec![
                due_statement(&allotted),
                with(JOBS, &[SAGAS]),
                with(ACTIVE_JOBS, &[SAGAS]),
                with(INSERT, &[SAGAS]),
                with(rate_limits::LOCK_BUCKET, &["1", "'admission'"]),
                with(rate_limits::STORE_BUCKET, &[NOW, "1", "'admission'"]),
            ];
            (Role::SagaOrchestrator, statements)
        }
        HotStatement::Load => (
            Role::SagaOrchestrator,
            vec![orchestrator::waiting::OPEN_JOBS.to_owned(), with(endpoint::FAILING, &["10000"])],
        ),
        HotStatement::MarkInProgress => {
            let rows = r#"'[[1,"2026-01-01 00:00:00.000001"]]'"#;
            (Role::SagaOrchestrator, vec![with(orchestrator::schedule::MARK_IN_PROGRESS, &[rows])])
        }
        HotStatement::Claim => {
            use worker::claim::{JOBS, events_statement, lease, lock, peek, pick, targets_statement};
            let now = SqlTime(Timestamp::from_micros(1_800_000_000_000_000));
            let limits = |skip: &[SubscriptionId]| ClaimLimits {
                jobs: 512,
                payload_bytes: 1 << 20,
                skip: skip.to_vec(),
            };
            let (all, some) = (limits(&[]), limits(&[SubscriptionId(1)]));
            let ids = "[[1],[2]]";
            let statements = vec![
                peek(Duration::from_secs(60), &all),
                peek(Duration::from_secs(60), &some),
                pick(now, &all),
                pick(now, &some),
                with(JOBS, &[IDS]),
                lock(ids, now),
                lease(ids, now, LeaseToken(1), now),
                events_statement(ids),
                targets_statement(ids),
            ];
            (Role::JobWorker, statements)
        }
        HotStatement::HandBack => {
            let given = r#"'[[1,1,"2026-01-01 00:00:00.000001"]]'"#;
            let statements =
                vec![worker::held_statement("[[1],[2]]"), with(worker::parking::GIVE_BACK, &[given])];
            (Role::JobWorker, statements)
        }
        HotStatement::Park => {
            use worker::parking::{DELIVERABLE, PARKED, UNPARK};
            let end = "'9999-12-31 23:59:59.999999'";
            let statements =
                vec![with(DELIVERABLE, &[IDS]), with(PARKED, &[end, "0", "1000"]), with(UNPARK, &[IDS, end])];
            (Role::JobWorker, statements)
        }
        HotStatement::Report => {
            let reports = "'[[1,1,0,200,null,3,null,\"2026-01-01 00:00:00.000001\",\"61\",null],\
                           [2,1,1,null,\"61\",3,\"61\",null,null,\"2026-01-01 00:00:00.000001\"]]'";
            let statements =
                vec![worker::held_statement("[[1],[2]]"), with(worker::report::REPORT, &[reports])];
            (Role::JobWorker, statements)
        }
        HotStatement::Apply => {
            use orchestrator::{
                apply::{LOCK_SAGAS, PEEK, READ_JOBS, WRITE_RESULTS, forget_results, lock_results},
                counts::count_statement,
            };
            let at = r#""2026-01-01 00:00:00.000001""#;
            let statements = vec![
                PEEK.to_owned(),
                lock_results(1000),
                with(READ_JOBS, &[IDS]),
                with(LOCK_SAGAS, &[IDS]),
                with(WRITE_RESULTS, &[&format!(r#"'[[1,{at},"61",1,{at},null,{at}]]'"#)]),
                count_statement("('2026-01-01 00:00:00',1,1,1,0,0,1,0,0,0,0,0,0,0,0,0,0,0,7)"),
                endpoint::deleted_statement("1,2"),
                with(endpoint::END_RUN, &["1"]),
                with(endpoint::GONE_URL, &["1", NOW]),
                forget_results("[[1],[2]]"),
            ];
            (Role::SagaOrchestrator, statements)
        }
        HotStatement::ResetExpired => (
            Role::LeaseCleaner,
            vec![
                cleaner::PEEK.to_owned(),
                with(cleaner::PICK, &[NOW, "100"]),
                with(cleaner::RESET, &[IDS, NOW, NOW]),
                with(cleaner::READ, &[IDS]),
            ],
        ),
        HotStatement::Bury => (
            Role::DeadLetterOperator,
            vec![
                dead_letters::PEEK.to_owned(),
                with(dead_letters::LOCK, &["100"]),
                with(dead_letters::DEAD, &[IDS]),
                with(dead_letters::BURY, &[IDS]),
                with(dead_letters::FORGET, &[IDS]),
            ],
        ),
        HotStatement::Redrive => {
            use redrives::{catching_up, missed_events};
            let statements = vec![
                redrives::PEEK.to_owned(),
                redrives::NEXT.to_owned(),
                with(
                    missed_events::NEXT_EVENTS,
                    &["'default'", "1", "'2026-01-01'", NOW, "'2026-01-01'", "1", "1000"],
                ),
                with(dead_letters::requeue::PAGE, &["1", "1000"]),
                with(dead_letters::requeue::PAGE_OF_SUBSCRIPTION, &["1", "1", "1000"]),
                with(dead_letters::requeue::PAGE_OF_TENANT, &["'default'", "1", "1000"]),
                with(event_locks::INSERT, &[IDS]),
                with(event_locks::DELETE, &[IDS]),
                with(missed_events::INSERT, &["1", "'Pending'", "0", "5", NOW, IDS]),
                with(missed_events::MADE, &[IDS, "1"]),
                with(redrives::ADVANCE, &[NOW, "1", "1", "1", "0", "'running'", "NULL", "1"]),
                with(catching_up::PEEK, &["120000000"]),
                catching_up::NEXT.to_owned(),
                with(catching_up::NEXT_STRANDED, &["120000000"]),
                with(catching_up::MOVE, &[NOW, NOW, "1", "0", "1"]),
                with(catching_up::FORGET, &["1"]),
            ];
            (Role::DeadLetterOperator, statements)
        }
        HotStatement::TakeChecks => (
            Role::SubscriptionVerifier,
            vec![
                with(verifier::PEEK, &["30000000"]),
                with(verifier::OPEN_CHECKS, &[NOW, "''", "100"]),
                with(verifier::PICK, &[IDS, NOW]),
                with(verifier::HOLD, &[IDS, NOW]),
                with(verifier::SECRETS, &[IDS]),
                with(verifier::PICK_STRANDED, &["120000000", "1000"]),
                with(verifier::FREE, &[IDS]),
            ],
        ),
        HotStatement::Care => (
            Role::EndpointCaretaker,
            vec![
                with(caretaker::GONE, &["100"]),
                with(caretaker::TROUBLED, &["'2000-01-01'", "1000000", "'2000-01-01'", "0", "100"]),
                caretaker::ANY_VERIFIED.to_owned(),
                with(caretaker::VERIFIED, &["100"]),
                with(caretaker::ANNOUNCEMENTS, &["100"]),
            ],
        ),
        HotStatement::IndexLists => (
            Role::ListIndexer,
            vec![
                with(list_indexer::PROGRESS, &["1"]),
                with(list_indexer::DELIVERIES, &["1", "2048"]),
                with(list_indexer::EVENTS, &["1", "2048"]),
                with(list_indexer::COMMITTED_EVENTS, &["1", "2048"]),
                with(list_indexer::INSERT_BLOCKS, &["'[[1,\"31\",0]]'"]),
                with(list_indexer::MOVE, &["1", "1"]),
                with(list_indexer::TRIM_LOOK, &["0", "2048"]),
                with(list_indexer::TRIM_LOOK_EVENTS, &["0", "2048"]),
                with(list_indexer::TRIM_BLOCKS, &["'[[1,1],[2,1]]'"]),
                with(list_indexer::TRIM_TIMES, &[IDS, "1"]),
            ],
        ),
        HotStatement::Remove => {
            use janitor::archived;
            let statements = vec![
                with(janitor::OLD_EVENTS, &["'2026-01-01'", NOW, "'2026-01-01'", "1", "100"]),
                with(janitor::REMAINS, &[IDS]),
                with(janitor::LOCK, &[IDS]),
                with(janitor::MARK, &[IDS]),
                with(janitor::SAGAS, &[IDS]),
                with(janitor::large_event::LISTED, &["1"]),
                with(janitor::large_event::PART, &["1", "0", "0", "0", "500"]),
                with(janitor::DELETE_LETTERS, &[IDS]),
                with(janitor::DELETE_JOBS, &[IDS]),
                with(janitor::DELETE_SAGAS, &[IDS]),
                with(janitor::large_event::HAS_SAGAS, &["1"]),
                with(janitor::DELETE_EVENTS, &[IDS]),
                with(janitor::DELETE_UNMATCHED, &[IDS]),
                with(janitor::UNMARK, &[IDS]),
                with(archived::EVENTS, &[IDS]),
                with(archived::DELIVERIES, &[IDS]),
                with(archived::PAGE, &["1", "0", "0", "0", "500"]),
                with(archived::ATTEMPTS, &[IDS]),
            ];
            (Role::HistoryJanitor, statements)
        }
        HotStatement::Gauges => (
            Role::ApiReader,
            vec![
                reader::stats::GAUGES.to_owned(),
                reader::stats::OLDEST_DUE.to_owned(),
                with(reader::stats::TENANT_WAITING, &["'default'"]),
                with(reader::stats::TENANT_OPEN, &["'default'"]),
                with(reader::health::DAY, &["1"]),
                with(reader::health::WAITING, &["1", "1"]),
                with(reader::health::LAST_FAILURE, &["1"]),
            ],
        ),
    }
}
