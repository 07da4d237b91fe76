//! A view from outside for the tests: sessions exactly as a component has them, and the hot
//! statements with typical arguments.

use crate::{
    MySqlOptions,
    options::Session,
    roles::{cleaner, dead_letters, ingest, orchestrator, reader, router, verifier, worker},
    time::Time,
};
use hooksaga_conformance::HotStatement;
use hooksaga_saga::Timestamp;
use hooksaga_store::{LeaseToken, Role, StoreResult};
use mysql_async::Opts;

/// The configuration of a component's session.
pub fn session(options: &MySqlOptions, role: Role) -> StoreResult<Opts> {
    options.session(Session::Component(role))
}

/// The statements of a hot step, with their arguments, and who runs them.
pub fn hot(step: HotStatement) -> (Role, Vec<String>) {
    const NOW: &str = "UTC_TIMESTAMP(6)";
    const IDS: &str = "'[[1],[2]]'";
    const SAGAS: &str = r#"'[[1,1,"2026-01-01 00:00:00.000001","2026-01-01 00:00:00.000001"]]'"#;
    let now = Time(Timestamp::from_micros(1_800_000_000_000_000));
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
                with(ingest::EXISTING, &[r#"'[["61"],["62"]]'"#]),
                format!("{} WHERE id IN (1,2)", ingest::PAYLOADS),
                with(ingest::READ_BACK, &["1", "2"]),
            ],
        ),
        HotStatement::Route => (
            Role::RouterWorker,
            vec![
                router::PEEK.to_owned(),
                with(router::LOCK, &["1000"]),
                format!("{} WHERE id IN (1,2)", router::EVENTS),
                with(router::SUBSCRIPTIONS, &[r#"'[["61"],["62"]]'"#]),
                with(router::SAGAS, &[IDS]),
                with(router::INSERT, &[r#"'[[1,1,5,"2026-01-01 00:00:00.000001"]]'"#]),
                format!("{} WHERE event_id IN (1,2)", router::FORGET),
            ],
        ),
        HotStatement::Schedule => {
            use orchestrator::schedule::{ACTIVE_JOBS, ADMISSIBLE, DUE, INSERT, JOBS, WAITING};
            let statements = vec![
                with(WAITING, &["0"]),
                with(ADMISSIBLE, &[IDS]),
                with(DUE, &["1", NOW, "64", "0"]),
                with(JOBS, &[SAGAS]),
                with(ACTIVE_JOBS, &[SAGAS]),
                with(INSERT, &[SAGAS]),
            ];
            (Role::SagaOrchestrator, statements)
        }
        HotStatement::OpenJobs => {
            (Role::SagaOrchestrator, vec![orchestrator::schedule::OPEN_JOBS.to_owned()])
        }
        HotStatement::MarkInProgress => {
            let rows = r#"'[[1,"2026-01-01 00:00:00.000001"]]'"#;
            (Role::SagaOrchestrator, vec![with(orchestrator::schedule::MARK_IN_PROGRESS, &[rows])])
        }
        HotStatement::Claim => (
            Role::JobWorker,
            vec![
                with(worker::PEEK, &["60000000"]),
                with(worker::PICK, &[NOW, "512"]),
                worker::lease("1,2", now, LeaseToken(1), now),
                with(worker::JOBS, &[IDS]),
                with(worker::EVENTS, &[IDS]),
                with(worker::TARGETS, &[IDS]),
            ],
        ),
        HotStatement::HandBack => (
            Role::JobWorker,
            vec![
                format!("{}(1,2) ORDER BY id FOR UPDATE", worker::HELD),
                with(worker::HAND_BACK, &["'[[1,1],[2,1]]'", "5000000"]),
            ],
        ),
        HotStatement::Report => (
            Role::JobWorker,
            vec![
                format!("{}(1,2) ORDER BY id FOR UPDATE", worker::HELD),
                with(worker::REPORT, &["'[[1,1,0,200,null,3,null],[2,1,1,null,\"61\",3,\"61\"]]'"]),
            ],
        ),
        HotStatement::Apply => {
            use orchestrator::apply::{
                FORGET_RESULTS, LOCK_RESULTS, LOCK_SAGAS, PEEK, READ_JOBS, WRITE_RESULTS, count_statement,
            };
            let at = r#""2026-01-01 00:00:00.000001""#;
            let statements = vec![
                PEEK.to_owned(),
                with(LOCK_RESULTS, &["1000"]),
                with(READ_JOBS, &[IDS]),
                format!("{LOCK_SAGAS} WHERE id IN (1,2) ORDER BY id FOR UPDATE"),
                with(WRITE_RESULTS, &[&format!(r#"'[[1,{at},"61",1,{at},null,{at}]]'"#)]),
                count_statement("('2026-01-01 00:00:00',1,1,1,0,0)"),
                format!("{FORGET_RESULTS} WHERE job_id IN (1,2)"),
            ];
            (Role::SagaOrchestrator, statements)
        }
        HotStatement::ResetExpired => (
            Role::LeaseCleaner,
            vec![
                cleaner::PEEK.to_owned(),
                with(cleaner::PICK, &[NOW, "100"]),
                cleaner::reset_statement("1,2", now),
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
                format!("{} WHERE saga_id IN (1,2)", dead_letters::FORGET),
            ],
        ),
        HotStatement::TakeChecks => (
            Role::SubscriptionVerifier,
            vec![
                with(verifier::PEEK, &["30000000"]),
                with(verifier::PICK, &[NOW, "100"]),
                verifier::hold("1,2", now),
                with(verifier::SECRETS, &[IDS]),
            ],
        ),
        HotStatement::Gauges => (Role::ApiReader, vec![reader::stats::GAUGES.to_owned()]),
    }
}
