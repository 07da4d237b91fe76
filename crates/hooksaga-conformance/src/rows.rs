//! Reads rows from outside the product.

use super::TestDatabase;
use hooksaga_saga::{EventId, JobId, JobStatus, SagaId, SagaStatus, SubscriptionId, Timestamp};
use std::str::FromStr;

/// A row of `webhook_delivery_sagas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SagaRow {
    pub(super) event_id: EventId,
    pub(super) subscription_id: SubscriptionId,
    pub(super) generation: u32,
    pub(super) status: SagaStatus,
    pub(super) attempt_count: u32,
    pub(super) max_retry_limit: u32,
    pub(super) next_attempt_at: Timestamp,
    pub(super) final_error_code: Option<String>,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
}

/// A row of `webhook_delivery_jobs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobRow {
    pub(super) saga_id: SagaId,
    pub(super) subscription_id: SubscriptionId,
    pub(super) attempt_at: Timestamp,
    pub(super) status: JobStatus,
    pub(super) lease_until: Timestamp,
    pub(super) lease_token: Option<i64>,
    pub(super) lease_resets: u32,
    pub(super) response_status: Option<u16>,
    pub(super) error_code: Option<String>,
    pub(super) duration_ms: Option<u32>,
    pub(super) started_at: Option<Timestamp>,
    pub(super) callback_url: Option<String>,
    pub(super) retry_at: Option<Timestamp>,
    pub(super) response_excerpt: Option<String>,
}

/// One row's columns, read from left to right.
struct RowReader(std::vec::IntoIter<Option<String>>);

impl RowReader {
    fn text(&mut self) -> Option<String> {
        self.0.next().expect("the query has this column")
    }

    fn maybe<T: FromStr>(&mut self) -> Option<T> {
        self.text().map(|text| match text.parse() {
            Ok(value) => value,
            Err(_) => panic!("a {} was expected, not {text:?}", std::any::type_name::<T>()),
        })
    }

    fn some<T: FromStr>(&mut self) -> T {
        self.maybe().expect("the column is not null")
    }

    fn time(&mut self) -> Timestamp {
        Timestamp::from_micros(self.some())
    }

    fn maybe_time(&mut self) -> Option<Timestamp> {
        self.maybe().map(Timestamp::from_micros)
    }
}

/// Writes the topics of a subscription unchecked, valid or not. Routing does not use this column.
pub(super) async fn set_topics(db: &dyn TestDatabase, id: SubscriptionId, topics: &str) {
    changes(db, &format!("UPDATE subscriptions SET event_type = '{topics}' WHERE id = {id}"), 1).await;
}

async fn row(db: &dyn TestDatabase, sql: &str) -> RowReader {
    let rows = db.query_text(sql).await.unwrap();
    RowReader(super::fixture::only(rows).into_iter())
}

pub(super) async fn saga_row(db: &dyn TestDatabase, id: SagaId) -> SagaRow {
    let d = db.dialect();
    let sql = format!(
        "SELECT event_id, subscription_id, generation, status, attempt_count, max_retry_limit, {}, \
         final_error_code, {}, {} FROM webhook_delivery_sagas WHERE id = {id}",
        d.micros("next_attempt_at"),
        d.micros("created_at"),
        d.micros("updated_at"),
    );
    let mut c = row(db, &sql).await;
    SagaRow {
        event_id: EventId(c.some()),
        subscription_id: SubscriptionId(c.some()),
        generation: c.some(),
        status: c.some(),
        attempt_count: c.some(),
        max_retry_limit: c.some(),
        next_attempt_at: c.time(),
        final_error_code: c.text(),
        created_at: c.time(),
        updated_at: c.time(),
    }
}

pub(super) async fn job_row(db: &dyn TestDatabase, id: JobId) -> JobRow {
    let d = db.dialect();
    let sql = format!(
        "SELECT saga_id, subscription_id, {}, status, {}, lease_token, lease_resets, response_status, \
         error_code, duration_ms, {}, callback_url, {}, response_excerpt \
         FROM webhook_delivery_jobs WHERE id = {id}",
        d.micros("attempt_at"),
        d.micros("lease_until"),
        d.micros("started_at"),
        d.micros("retry_at"),
    );
    let mut c = row(db, &sql).await;
    JobRow {
        saga_id: SagaId(c.some()),
        subscription_id: SubscriptionId(c.some()),
        attempt_at: c.time(),
        status: c.some(),
        lease_until: c.time(),
        lease_token: c.maybe(),
        lease_resets: c.some(),
        response_status: c.maybe(),
        error_code: c.text(),
        duration_ms: c.maybe(),
        started_at: c.maybe_time(),
        callback_url: c.text(),
        retry_at: c.maybe_time(),
        response_excerpt: c.text(),
    }
}

/// The jobs of a saga, oldest first.
pub(super) async fn jobs_of(db: &dyn TestDatabase, saga: SagaId) -> Vec<JobId> {
    let sql = format!("SELECT id FROM webhook_delivery_jobs WHERE saga_id = {saga} ORDER BY attempt_at");
    ids(db, &sql).await.into_iter().map(JobId).collect()
}

/// The first column of a query, as numbers.
pub(super) async fn ids(db: &dyn TestDatabase, sql: &str) -> Vec<i64> {
    let rows = db.query_text(sql).await.unwrap();
    rows.into_iter().map(|row| RowReader(row.into_iter()).some()).collect()
}

/// How many rows `rest` ("table WHERE …") has.
pub(super) async fn count(db: &dyn TestDatabase, rest: &str) -> i64 {
    super::fixture::only(ids(db, &format!("SELECT count(*) FROM {rest}")).await)
}

/// The database's clock.
pub(super) async fn db_now(db: &dyn TestDatabase) -> Timestamp {
    let d = db.dialect();
    Timestamp::from_micros(super::fixture::only(ids(db, &format!("SELECT {}", d.micros(d.now()))).await))
}

/// All rows of a table, to show that nothing changed.
pub(super) async fn all_rows(db: &dyn TestDatabase, table: &str) -> Vec<Vec<Option<String>>> {
    db.query_text(&format!("SELECT * FROM {table} ORDER BY 1")).await.unwrap()
}

/// Runs a statement as the owner. It has to change this many rows.
#[track_caller]
pub(super) fn changes<'a>(
    db: &'a dyn TestDatabase,
    sql: &'a str,
    rows: u64,
) -> impl Future<Output = ()> + Send + 'a {
    let caller = std::panic::Location::caller();
    async move {
        match db.execute_as_owner(sql).await {
            Ok(changed) => assert_eq!(changed, rows, "{sql} ({caller})"),
            Err(error) => panic!("{sql} ({caller}): {error}"),
        }
    }
}
