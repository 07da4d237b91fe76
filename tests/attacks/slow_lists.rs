//! Lists that look at every row and find nothing, by many clients.

use super::{note, responds_for, size};
use crate::support::*;
use mysql_async::prelude::Queryable as _;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};
use tokio::time::sleep;

on_every_back_end! { clients_that_list_without_matches_delay_nobody }

/// 16 clients that list what is not there, by filters for which every waiting delivery of a subscription is read
/// (docs/PLANS.md): those that wait are found by index, but not by when they were created.
async fn clients_that_list_without_matches_delay_nobody(installation: Installation) {
    let installation = installation.with("HOOKSAGA_LOG_DELIVERIES", "none");
    let server = installation.serve().await;
    let letters = size("HOOKSAGA_ATTACK_LETTERS", 100_000);
    let subscription = dead_letters(&installation, &server.api(), letters).await;
    let list = format!(
        "/v1/deliveries?status=Pending&subscription_id={subscription}&created_before=2020-01-01T00:00:00Z"
    );
    let before = server.resident_mib();
    let lists: Arc<Mutex<Vec<(u16, Duration)>>> = Arc::default();
    let (over, mut attackers) = (Arc::new(AtomicBool::new(false)), tokio::task::JoinSet::new());
    for _ in 0..16 {
        let (api, list, lists, over) = (server.api(), list.clone(), lists.clone(), over.clone());
        attackers.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let asked = Instant::now();
                let listed = api.get(&list).await;
                if listed.status == 200 {
                    assert_eq!(listed.json()["items"], json!([]));
                } else {
                    assert!(listed.expect(503)["type"].as_str().unwrap().ends_with("query-too-slow"));
                }
                lists.lock().unwrap().push((listed.status, asked.elapsed()));
            }
        });
    }
    sleep(Duration::from_millis(500)).await;
    let attack = format!("16 clients that list without matches, {letters} dead letters");
    let lasts = Duration::from_secs(size("HOOKSAGA_ATTACK_SECONDS", 2) as u64);
    responds_for(lasts, &server, &server.api_with(None), &attack, before).await;
    over.store(true, Ordering::Relaxed);
    while let Some(attacker) = attackers.join_next().await {
        attacker.unwrap();
    }
    let mut lists = std::mem::take(&mut *lists.lock().unwrap());
    lists.sort_unstable_by_key(|(_, took)| *took);
    let ended = lists.iter().filter(|(status, _)| *status == 503).count();
    let [fastest, median, slowest] = [0, lists.len() / 2, lists.len() - 1].map(|at| lists[at].1);
    note(&format!(
        "{attack}: {} lists took {fastest:?} to {slowest:?}, half of them {median:?} or less; {ended} ended with 503",
        lists.len()
    ));
    assert!(
        ended > lists.len() / 2 || median > SLOW_LIST,
        "an attack that costs nothing shows nothing: {median:?}"
    );
}

/// What half of the lists take at least, or it was no attack: sixteen wait for each other.
const SLOW_LIST: Duration = Duration::from_millis(100);

/// So many dead letters, none of them sent again, of a subscription that is paused.
async fn dead_letters(installation: &Installation, api: &Api, count: usize) -> Value {
    const STEP: usize = 10_000;
    let paused = json!({"event_type": "dead", "callback_url": "http://127.0.0.1:9/"});
    let subscription = api.post("/v1/subscriptions", &paused).await.expect(201)["id"].clone();
    api.patch(&format!("/v1/subscriptions/{subscription}"), &json!({"active": false})).await.expect(200);
    let event = api.event("dead", &json!(1)).await;
    let digits = (0..10).map(|digit| format!("SELECT {digit} AS d")).collect::<Vec<_>>().join(" UNION ALL ");
    let mut database = Database::open(installation).await;
    let past = database.past();
    for first in (0..count).step_by(STEP) {
        // Only each second generation: the next one of a delivery is what it was sent again as.
        let sagas = format!(
            "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, status, attempt_count, \
             max_retry_limit, next_attempt_at, created_at, updated_at) \
             SELECT {event}, {subscription}, 2 * ({first} + n), 'Pending', 0, 1, {past}, {past}, {past} FROM \
             (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n FROM ({digits}) a CROSS JOIN ({digits}) b \
             CROSS JOIN ({digits}) c CROSS JOIN ({digits}) e) numbers WHERE {first} + n < {count}"
        );
        let letters = format!(
            "INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload, created_at) \
             SELECT id, event_id, subscription_id, 'TIMEOUT', '1', {past} FROM webhook_delivery_sagas \
             WHERE event_id = {event} AND subscription_id = {subscription} AND generation >= 2 * {first}"
        );
        database.execute(&sagas).await;
        database.execute(&letters).await;
    }
    subscription
}

/// The installation's database, by its owner.
enum Database {
    Sqlite(rusqlite::Connection),
    Postgres(tokio_postgres::Client),
    MySql(mysql_async::Conn),
}

impl Database {
    async fn open(installation: &Installation) -> Self {
        match installation.database_url() {
            None => {
                let path = installation.folder.path().join("hooksaga-data/hooksaga.db");
                Self::Sqlite(rusqlite::Connection::open(path).unwrap())
            }
            Some(url) if url.starts_with("postgres") => {
                let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                Self::Postgres(client)
            }
            Some(url) => Self::MySql(mysql_async::Conn::from_url(url).await.unwrap()),
        }
    }

    /// A time long ago.
    fn past(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "1700000000000000",
            Self::Postgres(_) => "timestamptz '2023-11-14'",
            Self::MySql(_) => "TIMESTAMP'2023-11-14 00:00:00'",
        }
    }

    async fn execute(&mut self, sql: &str) {
        match self {
            Self::Sqlite(database) => database.execute_batch(sql).unwrap(),
            Self::Postgres(client) => client.batch_execute(sql).await.unwrap(),
            Self::MySql(connection) => connection.query_drop(sql).await.unwrap(),
        }
    }
}
