//! Direct access to the database for the tests: sessions with exactly the settings of a component, and the hot
//! statements with typical arguments.

use crate::{
    PostgresDatabase,
    options::SessionKind,
    roles::{
        caretaker, cleaner, correlations, dead_letters, endpoint,
        filter::Filter,
        ingest, janitor, list_indexer,
        orchestrator::{apply, counts, limited, schedule},
        rate_limits, reader, redrives, router, verifier,
        worker::{claim, parking, report},
    },
    store_error,
};
use hooksaga_conformance::HotStatement;
use hooksaga_store::{
    BlockFilter, DeadLetterFilter, DeliveryFilter, EventFilter, ListQuery, Role, ServerOptions, StoreError,
    StoreResult, TenantScope,
};
use tokio_postgres::{Client, Config};

/// The configuration of a component's session.
pub fn session(options: &ServerOptions, role: Role) -> StoreResult<Config> {
    Ok(SessionKind::Component { role, schema: None }.configuration(options)?.config)
}

/// How many statements the reader's session for lists has prepared; there must be one session only.
pub async fn prepared_by_the_reader(database: &PostgresDatabase) -> StoreResult<i64> {
    let mut readers = database.pools.iter().filter(|(role, _)| *role == Role::ApiReader);
    let (_, lists) = readers.next_back().ok_or_else(|| StoreError::Setup("no reader".to_owned()))?;
    let sql = "SELECT count(*) FROM pg_prepared_statements";
    lists.run(|client| async move { Ok(client.query_one(sql, &[]).await?.try_get(0)?) }).await
}

/// How the server finds the first page of a list of deliveries: the statement for its blocks, if it has any, or for the rows.
pub async fn explain_deliveries(
    client: &Client,
    scope: &TenantScope,
    wanted: &DeliveryFilter,
) -> StoreResult<String> {
    let blocks = BlockFilter::of_deliveries(scope, wanted).filter(|_| wanted.statuses.is_empty());
    match blocks {
        Some(blocks) => explain(client, reader::blocks::blocks_before(&blocks, i64::MAX)).await,
        None => explain(client, reader::deliveries::page_of(scope, wanted, 51)).await,
    }
}

/// The same for a tenant's events.
pub async fn explain_events(client: &Client, tenant: &str, wanted: &EventFilter) -> StoreResult<String> {
    explain(client, reader::events::page_of_tenant(tenant, wanted, 51)).await
}

/// The same for dead letters.
pub async fn explain_letters(
    client: &Client,
    wanted: ListQuery<'_, DeadLetterFilter>,
) -> StoreResult<String> {
    explain(client, reader::dead_letters::page_of(wanted)).await
}

async fn explain(client: &Client, (sql, filter): (String, Filter)) -> StoreResult<String> {
    let rows = client.query(&format!("EXPLAIN {sql}"), &filter.parameters()).await;
    let rows = rows.map_err(|error| store_error(&error))?;
    Ok(rows.iter().map(|row| row.get::<_, &str>(0)).collect::<Vec<_>>().join("\n"))
}

/// A statement of the product.
pub struct Hot {
    /// Who runs it.
    pub role: Role,
    pub sql: &'static str,
    /// Its arguments, as SQL.
    pub arguments: &'static str,
}

/// The statements of a hot step.
pub fn hot(step: HotStatement) -> Vec<Hot> {
    let (role, statements): (Role, &[(&'static str, &'static str)]) = match step {
        HotStatement::Append => (
            Role::EventIngestWriter,
            &[
                (ingest::APPEND, "'{d,d}', '{t,t}', '{1,2}', '{a,NULL}', '{c,c}'"),
                (ingest::APPEND_NEW, "'{d,d}', '{t,t}', '{1,2}', '{NULL,NULL}', '{c,c}'"),
                (ingest::EXISTING, "'{0,1}', '{d,d}', '{t,t}', '{1,2}', '{a,b}'"),
            ],
        ),
        HotStatement::Route => (
            Role::RouterWorker,
            &[
                (router::statements::ROUTE_FEW.plain, "1000, 5, 1, 5000, 32"),
                (router::statements::ROUTE_FEW.careful, "1000, 5, 1, 5000, 32"),
                (router::statements::ROUTE_MANY.plain, "1000, 5, 1, 5000"),
                (router::statements::ROUTE_MANY.careful, "1000, 5, 1, 5000"),
                (router::statements::ROUTE_FEW_LISTED.plain, "2, 5, '{1,2}', 5000, 32"),
                (router::statements::ROUTE_FEW_LISTED.careful, "2, 5, '{1,2}', 5000, 32"),
                (router::statements::ROUTE_MANY_LISTED.plain, "2, 5, '{1,2}', 5000"),
                (router::statements::ROUTE_MANY_LISTED.careful, "2, 5, '{1,2}', 5000"),
                (router::statements::QUEUED, "17, 2500"),
                (router::statements::EXAMINE, "'{1,2}', 32"),
            ],
        ),
        HotStatement::Waiting => (Role::SagaOrchestrator, &[(schedule::WAITING, "0, 1000")]),
        HotStatement::CreateJobs => (
            Role::SagaOrchestrator,
            &[
                (schedule::CREATE_JOBS.plain, "'{1,2}', '{4,64}', '{-infinity,now}', '{3,4}'"),
                (schedule::CREATE_JOBS.careful, "'{1,2}', '{4,64}', '{-infinity,now}', '{3,4}'"),
                (schedule::CREATE_LIMITED, "'{1,2}', '{4,64}', '{-infinity,-infinity}', '{}'"),
                (limited::RATES, "'{1,2}'"),
                (rate_limits::LOCK_BUCKETS, "'{1,2}', 'admission'"),
                (rate_limits::LOCK_FREE_BUCKETS, "'{1,2}', 'admission'"),
                (rate_limits::STORE_BUCKETS, "'{1,2}', 'admission', '{now,now}'"),
                (correlations::READ, "'{1,2}'"),
            ],
        ),
        HotStatement::Load => {
            let failing = (endpoint::FAILING, "10000");
            (
                Role::SagaOrchestrator,
                &[(schedule::OPEN_JOBS, ""), (schedule::WORKERS, "15000000, 60000000"), failing],
            )
        }
        HotStatement::MarkInProgress => (
            Role::SagaOrchestrator,
            &[(schedule::MOVE, "'{1,2}', '{now,now}'"), (schedule::MOVE_WITH_JOB, "'{1,2}', '{now,now}'")],
        ),
        HotStatement::Claim => (
            Role::JobWorker,
            &[
                (claim::CLAIM, "512, 60000000, 1, '2000-01-01', 67108864"),
                (claim::CLAIM_SOME, "512, 60000000, 1, '2000-01-01', 67108864, '{}'"),
                (claim::CLAIM_SOME, "512, 60000000, 1, '2000-01-01', 67108864, '{1,2}'"),
            ],
        ),
        HotStatement::HandBack => {
            (Role::JobWorker, &[(parking::HAND_BACK, "'{1,2}', '{now,now}', '{1,2}', '{1,1}', 5000000")])
        }
        HotStatement::Park => (
            Role::JobWorker,
            &[(parking::PARK, "'{1,2}', '{now,now}', '{1,2}', '{1,1}'"), (parking::UNPARK, "1000")],
        ),
        HotStatement::Report => (
            Role::JobWorker,
            &[
                (
                    report::REPORT,
                    "'{1,2}', '{now,now}', '{1,2}', '{1,1}', '{200,NULL}', '{NULL,TIMEOUT}', '{1,2}', '{NULL,NULL}', \
                     '{now,NULL}', '{https://a.example/,NULL}', '{NULL,now}'",
                ),
                (
                    report::REPORT_DELIVERED,
                    "'{1,2}', '{now,now}', '{1,1}', '{200,200}', '{1,2}', '{now,now}', \
                     '{https://a.example/,https://a.example/}'",
                ),
            ],
        ),
        HotStatement::Apply => (
            Role::SagaOrchestrator,
            &[
                (apply::TAKE_RESULTS, "1000, 1"),
                (apply::TAKE_OTHER_RESULTS, "1000, 1, '{1,2}'"),
                (correlations::READ, "'{1,2}'"),
                (apply::PROMOTE, "'{1,2}', '{now,now}'"),
                (
                    apply::WRITE_RESULTS,
                    "'{1,2}', '{now,now}', '{Completed,PendingRetry}', '{1,1}', '{now,now}', '{NULL,TIMEOUT}', \
                     '{1,2}', 0, '{1,1,0,0,1,0,0,0,0,0,0,0,0,0,0,0,7}', '{1,2}'",
                ),
                (counts::COUNT_RESULTS, "0, '{1,1,0,0,1,0,0,0,0,0,0,0,0,0,0,0,7}'"),
                (apply::QUEUE_DEAD, "'{1,2}'"),
                (endpoint::LOCK_FAILURES, "'{1,2}', '{1}'"),
                (endpoint::IN_A_RUN, "'{1,2}'"),
                (endpoint::NOT_HELD, "'{1,2}'"),
                (endpoint::END_RUNS, "'{1,2}'"),
                (
                    endpoint::COUNT_FAILURES,
                    "'{1,2}', '{1,1}', '{1,2}', '{TIMEOUT,HTTP_410}', '{NULL,2}', '{NULL,now}'",
                ),
            ],
        ),
        HotStatement::ResetExpired => (Role::LeaseCleaner, &[(cleaner::RESET_EXPIRED, "100")]),
        HotStatement::Bury => (Role::DeadLetterOperator, &[(dead_letters::BURY, "100")]),
        HotStatement::Redrive => (
            Role::DeadLetterOperator,
            &[
                (redrives::NEXT, ""),
                (
                    redrives::missed_events::NEXT_EVENTS,
                    "now() - interval '1 day', now(), 1, 1000, 1, 'default'",
                ),
                (redrives::missed_events::INSERT, "'{1,2}', 1, 'Pending', 0, 5, now()"),
                (dead_letters::requeue::EXAMINE, "1, 1000"),
                (dead_letters::requeue::EXAMINE_OF_SUBSCRIPTION, "1, 1000, 1"),
                (dead_letters::requeue::EXAMINE_OF_TENANT, "1, 1000, 'default'"),
                (redrives::ADVANCE, "1, now(), 1, 1, 1, 0, 'running', NULL"),
                (redrives::NEXT_CATCH_UP, ""),
                (redrives::MOVE_CATCH_UP, "1, now(), now(), 1, 0"),
                (redrives::FORGET_CATCH_UP, "1"),
            ],
        ),
        HotStatement::TakeChecks => (
            Role::SubscriptionVerifier,
            &[
                (verifier::OPEN_CHECKS, "'', 100"),
                (verifier::TAKE_CHECKS, "'{1,2}', 30000000"),
                (verifier::SECRETS, "'{1,2}'"),
                (verifier::FREE_STRANDED, "1000, 120000000"),
            ],
        ),
        HotStatement::Care => (
            Role::EndpointCaretaker,
            &[
                (caretaker::GONE, "100"),
                (caretaker::TROUBLED, "1000000, '2000-01-01', 0, 100"),
                (caretaker::VERIFIED, "100"),
                (caretaker::ANNOUNCEMENTS, "100"),
            ],
        ),
        HotStatement::IndexLists => (
            Role::ListIndexer,
            &[
                (list_indexer::INDEX_DELIVERIES, "2048, 60000000"),
                (list_indexer::CEILING, ""),
                (list_indexer::WRITERS, "NULL::text[]"),
                (list_indexer::INDEX_EVENTS, "2048, 1000"),
                (list_indexer::TRIM_LOOK, "0, 2048"),
                (list_indexer::TRIM_LOOK_EVENTS, "0, 2048"),
                (list_indexer::TRIM_BLOCKS, "'{1,2}', 1::smallint, '{1,2,3}'"),
            ],
        ),
        HotStatement::Remove => (
            Role::HistoryJanitor,
            &[
                (janitor::OLD_EVENTS, "'2000-01-01', 0, 100, 60000000"),
                (janitor::LOCK, "'{1,2}'"),
                (janitor::REMAINS, "'{1,2}'"),
                (janitor::MARK, "'{1,2}'"),
                (janitor::SAGAS, "'{1,2}'"),
                (janitor::large_event::LISTED, "1"),
                (janitor::large_event::PART, "1, 0, 0, 500"),
                (janitor::DELETE_SAGAS, "'{1,2}'"),
                (janitor::DELETE_EVENTS, "'{1,2}'"),
                (janitor::UNMARK, "'{1,2}'"),
                (janitor::archived::EVENTS, "'{1,2}'"),
                (janitor::archived::DELIVERIES, "'{1,2}'"),
                (janitor::archived::PAGE, "1, 0, 0, 500"),
                (janitor::archived::ATTEMPTS, "'{1,2}'"),
                (janitor::counts::NEXT_MINUTE, "now() - interval '1 day', now()"),
                (janitor::counts::NEXT_SUBSCRIPTION, "date_trunc('hour', now()), 0"),
                (janitor::counts::ADD_HOURS, "date_trunc('hour', now()), 1, 500"),
                (janitor::counts::DELETE_MINUTES, "now() - interval '2 days', 500"),
                (janitor::counts::DELETE_TOTALS, "now() - interval '4 hours', 500"),
            ],
        ),
        HotStatement::Gauges => (
            Role::ApiReader,
            &[
                (reader::stats::GAUGES, ""),
                (reader::stats::OLDEST_DUE, ""),
                (reader::health::DAY, "1"),
                (reader::health::WAITING, "1, 10000"),
                (reader::health::LAST_FAILURE, "1"),
            ],
        ),
    };
    statements.iter().map(|&(sql, arguments)| Hot { role, sql, arguments }).collect()
}
