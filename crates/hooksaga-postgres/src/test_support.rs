//! A view from outside for the tests: sessions exactly as a component has them, and the hot
//! statements with typical arguments.

use crate::{
    PostgresOptions,
    options::Session,
    roles::{cleaner, correlations, dead_letters, ingest, orchestrator, reader, router, verifier, worker},
};
use hooksaga_conformance::HotStatement;
use hooksaga_store::{Role, StoreResult};
use tokio_postgres::Config;

/// The configuration of a component's session.
pub fn session(options: &PostgresOptions, role: Role) -> StoreResult<Config> {
    options.session(Session::Component { role, schema: None })
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
                (ingest::APPEND, "'{t,t}', '{1,2}', '{a,NULL}', '{c,c}'"),
                (ingest::APPEND_NEW, "'{t,t}', '{1,2}', '{NULL,NULL}', '{c,c}'"),
                (ingest::EXISTING, "'{0,1}', '{t,t}', '{1,2}', '{a,b}'"),
            ],
        ),
        HotStatement::Route => (
            Role::RouterWorker,
            &[(router::ROUTE.plain, "1000, 5, 1"), (router::ROUTE.careful, "1000, 5, 1")],
        ),
        HotStatement::Schedule => (
            Role::SagaOrchestrator,
            &[
                (orchestrator::schedule::SCHEDULE.plain, r#"1000, '{"1":64}', 4"#),
                (orchestrator::schedule::SCHEDULE.careful, r#"1000, '{"1":64}', 4"#),
                (orchestrator::schedule::SCHEDULE_GIVEN.plain, "1000, '{1,2}', '{4,64}', '{-infinity,now}'"),
                (
                    orchestrator::schedule::SCHEDULE_GIVEN.careful,
                    "1000, '{1,2}', '{4,64}', '{-infinity,now}'",
                ),
                (correlations::READ, "'{1,2}'"),
            ],
        ),
        HotStatement::OpenJobs => (Role::SagaOrchestrator, &[(orchestrator::schedule::OPEN_JOBS, "")]),
        HotStatement::MarkInProgress => (
            Role::SagaOrchestrator,
            &[
                (orchestrator::schedule::MARK_IN_PROGRESS, "'{1,2}', '{now,now}'"),
                (orchestrator::schedule::MARK_WITH_JOB, "'{1,2}', '{now,now}'"),
            ],
        ),
        HotStatement::Claim => (
            Role::JobWorker,
            &[(worker::CLAIM, "512, 60000000, 1, '2000-01-01'"), (worker::TARGETS, "'{1,2}'")],
        ),
        HotStatement::HandBack => {
            (Role::JobWorker, &[(worker::HAND_BACK, "'{1,2}', '{now,now}', '{1,2}', '{1,1}', 5000000")])
        }
        HotStatement::Report => (
            Role::JobWorker,
            &[(
                worker::REPORT,
                "'{1,2}', '{now,now}', '{1,2}', '{1,1}', '{200,NULL}', '{NULL,TIMEOUT}', '{1,2}', '{NULL,NULL}'",
            )],
        ),
        HotStatement::Apply => (
            Role::SagaOrchestrator,
            &[
                (orchestrator::apply::TAKE_RESULTS, "1000, 1"),
                (correlations::READ, "'{1,2}'"),
                (orchestrator::apply::PROMOTE, "'{1,2}', '{now,now}'"),
                (
                    orchestrator::apply::WRITE_RESULTS,
                    "'{1,2}', '{now,now}', '{Completed,PendingRetry}', '{1,1}', '{now,now}', '{NULL,TIMEOUT}', \
                     '{1,2}', 0",
                ),
            ],
        ),
        HotStatement::ResetExpired => (Role::LeaseCleaner, &[(cleaner::RESET_EXPIRED, "100")]),
        HotStatement::Bury => (Role::DeadLetterOperator, &[(dead_letters::BURY, "100")]),
        HotStatement::TakeChecks => (
            Role::SubscriptionVerifier,
            &[(verifier::TAKE_CHECKS, "100, 30000000"), (verifier::SECRETS, "'{1,2}'")],
        ),
        HotStatement::Gauges => (Role::ApiReader, &[(reader::stats::GAUGES, "")]),
    };
    statements.iter().map(|&(sql, arguments)| Hot { role, sql, arguments }).collect()
}
