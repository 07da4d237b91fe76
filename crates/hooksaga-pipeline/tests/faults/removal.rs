//! The janitor is killed, or fails, at every call that it makes, on every back end: what it removes is in the archive all
//! the same, and what is not in the archive is not removed. One of the events has so many deliveries that it goes in
//! parts; two have a dead letter.

use super::{
    Fault, FaultPlan,
    archived::{archived, archived_letters},
    faulty,
    removal_conflicts::{RETENTION, work},
    sampling,
};
use crate::support::backend::{Backend, Database};
use hooksaga_pipeline::{Archive, Janitor, Metrics, Signals};
use hooksaga_sqlite::test_support::RawConnection;
use hooksaga_store::{Stage, Stores};
use hooksaga_testkit::{mariadb, postgres, scratch::ScratchDir};
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// More rows than go in one step: each delivery has a job.
const LARGE: usize = 1001;
/// How many deliveries each event has, and whether one of them has a dead letter, which was sent again.
const EVENTS: [(usize, bool); 5] = [(2, false), (3, true), (2, false), (0, false), (LARGE, true)];
/// On the servers, only every n-th call fails.
const STRIDE: usize = 5;

/// A database with room for old history.
struct Past(Database);

impl Past {
    /// Runs a statement, with two hours ago in place of OLD.
    async fn run(&self, sql: &str) {
        let Database { url, path, .. } = &self.0;
        let url = url.as_deref().unwrap_or_default();
        match self.0.backend() {
            Backend::Sqlite => {
                let old = "(CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 7200000000)";
                let raw = RawConnection::open(path.as_ref().unwrap(), None).unwrap();
                raw.execute(&sql.replace("OLD", old)).unwrap();
            }
            Backend::Postgres => {
                postgres::execute(url, &sql.replace("OLD", "(now() - interval '2 hours')")).await
            }
            Backend::MySql => {
                mariadb::execute(url, &sql.replace("OLD", "(UTC_TIMESTAMP(6) - INTERVAL 2 HOUR)")).await
            }
        }
    }

    async fn number(&self, sql: &str) -> i64 {
        let Database { url, path, .. } = &self.0;
        let url = url.as_deref().unwrap_or_default();
        match self.0.backend() {
            Backend::Sqlite => {
                let rows = RawConnection::open(path.as_ref().unwrap(), None).unwrap().query(sql).unwrap();
                rows[0][0].as_deref().unwrap().parse().unwrap()
            }
            Backend::Postgres => postgres::number(url, sql).await,
            Backend::MySql => mariadb::number(url, sql).await,
        }
    }

    async fn count(&self, table: &str) -> i64 {
        self.number(&format!("SELECT count(*) FROM {table}")).await
    }

    /// An event with this many deliveries, which ended long ago, by steps that the schema allows. With a letter, the first one
    /// was given up, and sent again as the last one.
    async fn event(&self, number: usize, (deliveries, has_letter): (usize, bool)) {
        self.run(&format!(
            "INSERT INTO events (tenant, event_type, created_at, correlation_id, payload) \
             VALUES ('default', 'a', OLD, 'c', '{{ \"n\": {number} }}')"
        ))
        .await;
        if deliveries == 0 {
            return;
        }
        let event = self.number("SELECT max(id) FROM events").await;
        let last = deliveries - usize::from(has_letter);
        let first = (1..=last).map(|subscription| (subscription, 0));
        let sagas: Vec<String> = first
            .chain(has_letter.then_some((1, 1)))
            .map(|(subscription, generation)| {
                format!("({event}, {subscription}, {generation}, 'Pending', 0, 5, OLD, OLD, OLD)")
            })
            .collect();
        let (columns, values) = match self.0.backend() {
            Backend::Postgres => (", event_id, attempt", ", event_id, 1"),
            Backend::Sqlite | Backend::MySql => ("", ""),
        };
        let dead = format!("event_id = {event} AND subscription_id = 1 AND generation = 0 AND {has_letter}");
        let others = format!("event_id = {event} AND NOT ({dead})");
        let jobs = |sagas: &str| format!("saga_id IN (SELECT id FROM webhook_delivery_sagas WHERE {sagas})");
        for sql in [
            format!(
                "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, status, attempt_count, \
                 max_retry_limit, next_attempt_at, created_at, updated_at) VALUES {}",
                sagas.join(", ")
            ),
            format!(
                "INSERT INTO webhook_delivery_jobs (saga_id, subscription_id, attempt_at, status, lease_until, \
                 created_at, updated_at{columns}) SELECT id, subscription_id, next_attempt_at, 'Pending', OLD, OLD, \
                 OLD{values} FROM webhook_delivery_sagas WHERE event_id = {event}"
            ),
            format!(
                "UPDATE webhook_delivery_jobs SET status = 'Leased', lease_token = 1 WHERE {}",
                jobs(&format!("event_id = {event}"))
            ),
            format!(
                "UPDATE webhook_delivery_jobs SET status = 'Completed', lease_token = NULL, response_status = 200, \
                 duration_ms = 5, updated_at = OLD WHERE {}",
                jobs(&others)
            ),
            format!(
                "UPDATE webhook_delivery_jobs SET status = 'Failed', lease_token = NULL, error_code = 'TIMEOUT', \
                 duration_ms = 5, updated_at = OLD WHERE {}",
                jobs(&dead)
            ),
            format!("UPDATE webhook_delivery_sagas SET status = 'InProgress' WHERE event_id = {event}"),
            format!(
                "UPDATE webhook_delivery_sagas SET status = 'Completed', attempt_count = 1, updated_at = OLD WHERE {others}"
            ),
            format!(
                "UPDATE webhook_delivery_sagas SET status = 'DeadLettered', attempt_count = 1, \
                 final_error_code = 'TIMEOUT', updated_at = OLD WHERE {dead}"
            ),
            format!(
                "INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload, created_at) \
                 SELECT id, event_id, subscription_id, 'TIMEOUT', '1', OLD FROM webhook_delivery_sagas WHERE {dead}"
            ),
        ] {
            self.run(&sql).await;
        }
    }
}

fn janitor(stores: &Stores, folder: &Path) -> Janitor {
    Janitor::new(stores.janitor.clone(), Some(RETENTION), Signals::new(Stage::ALL), Metrics::new())
        .archive_to(Some(Archive::open(&folder.join("archive")).unwrap()))
}

/// The `n`-th call fails like this; returns whether there was such a call. In the end the database is as it was.
async fn fails_at(past: &Past, n: usize, fault: Fault) -> bool {
    let folder = ScratchDir::new("removal");
    for (number, event) in (1..).zip(EVENTS) {
        past.event(number, event).await;
    }
    assert_eq!(past.count("letter_heads WHERE requeued").await, 2);
    let plan = Arc::new(FaultPlan::new(n, fault));
    let stores = faulty(&past.0.stores, &plan);
    let working = janitor(&stores, folder.path());
    tokio::select! {
        () = work(&working) => {}
        () = plan.killed() => {
            // Whatever is gone by now is in the archive.
            let there = archived(folder.path());
            let gone = EVENTS.len() as i64 - past.count("events").await;
            assert!(there.len() as i64 >= gone, "call {n} with {fault:?}: {there:?}");
            if past.count("removals").await > 0 {
                assert_eq!(there[&5].1, LARGE, "call {n} with {fault:?}: a part of it is gone");
            }
            work(&janitor(&past.0.stores, folder.path())).await;
        }
    }
    for table in [
        "events",
        "webhook_delivery_sagas",
        "webhook_delivery_jobs",
        "dead_letters",
        "letter_heads",
        "removals",
    ] {
        assert_eq!(past.count(table).await, 0, "call {n} with {fault:?}: {table}");
    }
    let there = archived(folder.path());
    let deliveries: Vec<usize> = there.values().map(|(_, most)| *most).collect();
    assert_eq!(deliveries, EVENTS.map(|(deliveries, _)| deliveries), "call {n} with {fault:?}");
    assert_eq!(archived_letters(folder.path()), BTreeMap::from([(2, 1), (5, 1)]), "call {n} with {fault:?}");
    assert!(there.values().all(|(times, _)| (1..=2).contains(times)), "call {n} with {fault:?}: {there:?}");
    plan.happened()
}

async fn fails_at_every_call(backend: Backend) {
    let stride = sampling::stride(backend, STRIDE);
    let past = Past(Database::new(backend).await);
    for fault in [Fault::ErrorBefore, Fault::ErrorAfter, Fault::KillBefore, Fault::KillAfter] {
        let (mut next, mut failed) = (sampling::first(stride, fault), 0);
        while fails_at(&past, next, fault).await {
            failed += 1;
            next += stride;
        }
        // The scan, the reads for the archive, the removal, and that of the large one in parts.
        assert!(failed > 10 / stride, "only {failed} calls were made to fail");
    }
    past.0.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_fails_nothing_is_removed_that_is_not_archived() {
    fails_at_every_call(Backend::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_fails_nothing_is_removed_from_postgres_that_is_not_archived() {
    fails_at_every_call(Backend::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_fails_nothing_is_removed_from_mysql_that_is_not_archived() {
    fails_at_every_call(Backend::MySql).await;
}
