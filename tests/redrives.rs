//! Redrives and catching up, as users see them: through the API and the command line, with a server that is killed.

use crate::support::*;
use std::time::Instant;

on_every_back_end! {
    a_redrive_that_is_killed_is_finished_with_each_event_once,
    a_redrive_that_is_killed_sends_each_letter_again_once,
    events_sent_before_the_challenge_is_answered_arrive,
}

/// Far ago.
const SINCE: &str = "2020-01-01T00:00:00Z";

async fn send_many(api: &Api, event_type: &str, count: usize) {
    let mut left = count;
    while left > 0 {
        let some = left.min(1000);
        let events: Vec<Value> = (0..some).map(|n| json!({"event_type": event_type, "payload": n})).collect();
        api.post("/v1/events/batch", &json!({ "events": events })).await.expect(200);
        left -= some;
    }
}

/// Waits until the router has dealt with everything.
async fn all_routed(api: &Api) {
    eventually("everything is routed", || async {
        let stats = api.get("/v1/stats").await.expect(200);
        (stats["queue_depths"]["unrouted_events"] == 0).then_some(())
    })
    .await;
}

async fn redrive(api: &Api, id: &Value) -> Value {
    api.get(&format!("/v1/redrives/{id}")).await.expect(200)
}

async fn ended(api: &Api, id: &Value) -> Value {
    eventually("the redrive has ended", || async {
        let redrive = redrive(api, id).await;
        (redrive["status"] != "running").then_some(redrive)
    })
    .await
}

/// What a redrive has stored while nobody goes on with it: its status, and how many deliveries it has created.
async fn stored(installation: &Installation, id: &Value) -> (String, u64) {
    if installation.database_url().is_none() {
        let sql = format!("SELECT status, created FROM redrives WHERE id = {id}");
        let found =
            database(installation).query_row(&sql, [], |row| Ok((row.get(0)?, row.get::<_, u32>(1)?)));
        let (status, created) = found.unwrap();
        return (status, created.into());
    }
    let server = installation.serve_only("api").await;
    let left = redrive(&server.api(), id).await;
    server.kill().await;
    (left["status"].as_str().unwrap().to_owned(), left["created"].as_u64().unwrap())
}

/// The file of an embedded database.
fn database(installation: &Installation) -> rusqlite::Connection {
    let file = installation.folder.path().join("hooksaga-data/hooksaga.db");
    let database = rusqlite::Connection::open(file).unwrap();
    database.busy_timeout(PATIENCE).unwrap();
    database
}

/// Starts a redrive of so many rows, kills the server in the middle of it, and starts another one, which ends it.
async fn interrupted(installation: &Installation, server: Server, asked: &Value, rows: u64) -> Server {
    let api = server.api();
    let started = api.post("/v1/redrives", asked).await.expect(202);
    let id = &started["id"];
    eventually("the redrive has made some", || async {
        (redrive(&api, id).await["created"].as_u64().unwrap() > 0).then_some(())
    })
    .await;
    server.kill().await;
    let (status, created) = stored(installation, id).await;
    assert!(status == "running" && (1..rows).contains(&created), "not in the middle: {status}, {created}");

    let server = installation.serve().await;
    let done = ended(&server.api(), id).await;
    assert_eq!(
        (&done["status"], &done["examined"], &done["created"], &done["skipped"]),
        (&json!("done"), &json!(rows), &json!(rows), &json!(0))
    );
    server
}

/// The events of a subscription's deliveries of one generation, each of which has only one.
async fn events_of(api: &Api, subscription: i64, generation: u64) -> std::collections::BTreeSet<i64> {
    let mut events = std::collections::BTreeSet::new();
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/deliveries?subscription_id={subscription}&limit=500{cursor}");
        let page = api.get(&path).await.expect(200);
        for item in page["items"].as_array().unwrap() {
            if item["generation"] == generation {
                assert!(events.insert(item["event_id"].as_i64().unwrap()), "{item} is there twice");
            }
        }
        let Some(next) = page["next_cursor"].as_str() else { return events };
        cursor = format!("&cursor={next}");
    }
}

async fn a_redrive_that_is_killed_is_finished_with_each_event_once(installation: Installation) {
    const EVENTS: usize = 3000;
    let receiver = Receiver::start().await;
    let server = installation.serve().await;
    let api = server.api();
    send_many(&api, "old", EVENTS).await;
    all_routed(&api).await;
    let (id, _) = api.verified_subscription("old", &receiver.url("/in")).await;
    let asked = json!({"kind": "events", "subscription_id": id, "since": SINCE});
    let server = interrupted(&installation, server, &asked, EVENTS as u64).await;
    assert_eq!(events_of(&server.api(), id, 0).await.len(), EVENTS);
}

async fn a_redrive_that_is_killed_sends_each_letter_again_once(installation: Installation) {
    const LETTERS: usize = 2000;
    let receiver = Receiver::start().await;
    let installation = installation.with("HOOKSAGA_LOG_DELIVERIES", "none");
    let server = installation.serve().await;
    let api = server.api();
    let (id, _) = api.verified_subscription("old", &receiver.url("/in")).await;
    api.patch(&format!("/v1/subscriptions/{id}"), &json!({"max_retry_limit": 1})).await.expect(200);
    receiver.answer("/in", [Behaviour::Status(500)]);
    send_many(&api, "old", LETTERS).await;
    all_routed(&api).await;
    eventually("every delivery has its letter", || async {
        let stats = api.get("/v1/stats").await.expect(200);
        let dead = &stats["per_subscription"][0]["dead_lettered"];
        (*dead == LETTERS && stats["queue_depths"]["pending_dead_letters"] == 0).then_some(())
    })
    .await;
    receiver.answer("/in", [Behaviour::Status(200)]);
    let asked = json!({"kind": "dead_letters", "filter": {"tenant": "default"}});
    let server = interrupted(&installation, server, &asked, LETTERS as u64).await;
    let api = server.api();
    assert_eq!(events_of(&api, id, 1).await.len(), LETTERS);
    assert_eq!(events_of(&api, id, 0).await.len(), LETTERS);
}

async fn events_sent_before_the_challenge_is_answered_arrive(installation: Installation) {
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    api.event("t", &json!("before it existed")).await;
    all_routed(&api).await;
    receiver.answer_challenge("/in", [Behaviour::Status(503)]);
    let body = json!({"event_type": "t", "callback_url": receiver.url("/in")});
    let id = api.post("/v1/subscriptions", &body).await.expect(201)["id"].as_i64().unwrap();
    let event = api.event("t", &json!("early")).await;
    let routed = eventually("it is routed", || async {
        let shown = api.get(&format!("/v1/events/{event}")).await.expect(200);
        (shown["routed"] == true).then_some(shown)
    })
    .await;
    assert_eq!(routed["unmatched"], json!({"paused": 0, "disabled": 0, "unverified": 1}));
    assert_eq!(routed["deliveries"], json!([]));
    eventually("the log says why", || async {
        (!server.said("matched no subscription (1 of this type: 1 unverified)").is_empty()).then_some(())
    })
    .await;

    receiver.answer_challenge("/in", [Behaviour::AnswerChallenge]);
    api.post(&format!("/v1/subscriptions/{id}/verify"), &json!({})).await.expect(202);
    eventually("it has a delivery", || async { (!api.deliveries(event).await.is_empty()).then_some(()) })
        .await;
    api.delivery_with_status(event, "Completed").await;
    let arrived: Vec<_> = receiver.deliveries("/in").iter().map(|post| post.body.to_vec()).collect();
    assert_eq!(arrived, [b"\"early\"".to_vec()], "once, and nothing from before it existed");
}

/// Posts one event after the other for a while; how long the slowest twentieth took at least.
async fn p95_of_posts(api: &Api, for_as_long: impl AsyncFn() -> bool) -> Duration {
    let mut took = Vec::new();
    while for_as_long().await || took.len() < 20 {
        for _ in 0..10 {
            let began = Instant::now();
            api.event("live", &json!(1)).await;
            took.push(began.elapsed());
        }
    }
    took.sort_unstable();
    took[took.len() * 95 / 100]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_work_on_sqlite_does_not_hold_up_live_posts() {
    const EVENTS: usize = 6_000;
    let (installation, receiver) =
        (Installation::sqlite().with("HOOKSAGA_LOG_DELIVERIES", "none"), Receiver::start().await);
    let server = installation.serve().await;
    let api = server.api();
    send_many(&api, "old", EVENTS).await;
    all_routed(&api).await;
    let (id, _) = api.verified_subscription("old", &receiver.url("/in")).await;
    let body = json!({"kind": "events", "subscription_id": id, "since": SINCE});
    let started = api.post("/v1/redrives", &body).await.expect(202);
    let p95 = p95_of_posts(&api, async || redrive(&api, &started["id"]).await["status"] == "running").await;
    assert_eq!(redrive(&api, &started["id"]).await["created"], EVENTS);
    // Alone a post takes a few milliseconds here; a single transaction of that size takes a second.
    assert!(p95 < Duration::from_millis(250), "{p95:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bulk_requeue_on_sqlite_does_not_hold_up_live_posts() {
    const LETTERS: u64 = 10_000;
    let (installation, receiver) =
        (Installation::sqlite().with("HOOKSAGA_LOG_DELIVERIES", "none"), Receiver::start().await);
    let server = installation.serve().await;
    let api = server.api();
    let (id, _) = api.verified_subscription("old", &receiver.url("/in")).await;
    give_up_many(&installation, id, LETTERS);
    let requeue = tokio::spawn({
        let api = server.api();
        async move {
            // A request ends after 5 s, which a slow machine may need more than one of.
            let mut requeued = 0;
            while requeued < LETTERS {
                let body = json!({"filter": {}, "limit": LETTERS});
                let done = api.post("/v1/dead-letters/requeue", &body).await.expect(200);
                assert!(done["requeued"].as_u64().unwrap() > 0, "{done}");
                requeued += done["requeued"].as_u64().unwrap();
            }
            requeued
        }
    });
    let p95 = p95_of_posts(&api, async || !requeue.is_finished()).await;
    assert_eq!(requeue.await.unwrap(), LETTERS);
    assert!(p95 < Duration::from_millis(250), "{p95:?}");
}

/// So many events of long ago, each with a delivery that was given up, as the server would have written them.
fn give_up_many(installation: &Installation, subscription: i64, count: u64) {
    let mut database = database(installation);
    // Nobody sees them open in between.
    let rows = database.transaction().unwrap();
    let past = 1_700_000_000_000_000_i64;
    for sql in [
        format!(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count}) \
             INSERT INTO events (event_type, created_at, payload, correlation_id) SELECT 'old', {past}, '1', 'c-1' FROM numbers"
        ),
        format!(
            "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, status, attempt_count, max_retry_limit, \
             next_attempt_at, created_at, updated_at) SELECT id, {subscription}, 'Pending', 0, 1, {past}, {past}, {past} \
             FROM events WHERE event_type = 'old'"
        ),
        "UPDATE webhook_delivery_sagas SET status = 'InProgress'".to_owned(),
        "UPDATE webhook_delivery_sagas SET status = 'DeadLettered', attempt_count = 1, final_error_code = 'HTTP_500'"
            .to_owned(),
        format!(
            "INSERT INTO dead_letters (saga_id, event_id, subscription_id, final_error_code, payload, created_at) \
             SELECT id, event_id, subscription_id, final_error_code, '1', {past} FROM webhook_delivery_sagas"
        ),
    ] {
        assert_eq!(rows.execute(&sql, []).unwrap() as u64, count, "{sql}");
    }
    rows.commit().unwrap();
}

mod two_processes {
    use super::*;

    on_every_database_server! {
        where_one_process_is_killed_the_other_ends_the_redrive,
        where_one_process_is_frozen_the_other_ends_the_redrive,
    }

    async fn where_one_process_is_killed_the_other_ends_the_redrive(installation: Installation) {
        the_other_ends_it(installation, "KILL").await;
    }

    async fn where_one_process_is_frozen_the_other_ends_the_redrive(installation: Installation) {
        the_other_ends_it(installation, "STOP").await;
    }

    /// Two processes are at work. The one that was asked for a redrive gets this signal in the middle of it.
    async fn the_other_ends_it(installation: Installation, signal: &str) {
        const EVENTS: usize = 3000;
        let receiver = Receiver::start().await;
        let installation = installation.with("HOOKSAGA_LOG_DELIVERIES", "none");
        let (first, second) = (installation.serve().await, installation.serve().await);
        let (api, other) = (first.api(), second.api());
        send_many(&api, "old", EVENTS).await;
        all_routed(&api).await;
        let (subscription, _) = api.verified_subscription("old", &receiver.url("/in")).await;
        let asked = json!({"kind": "events", "subscription_id": subscription, "since": SINCE});
        let id = api.post("/v1/redrives", &asked).await.expect(202)["id"].clone();
        eventually("the redrive has made some", || async {
            (redrive(&other, &id).await["created"].as_u64().unwrap() > 0).then_some(())
        })
        .await;
        first.signal(signal).await;
        let left = redrive(&other, &id).await;
        assert_eq!(left["status"], "running", "not in the middle: {left}");

        // A frozen process may hold the redrive's lock until the server ends its transaction, after 30 s at most.
        let done = match signal {
            "STOP" => tokio::time::timeout(PATIENCE * 2, async {
                while redrive(&other, &id).await["status"] == "running" {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                redrive(&other, &id).await
            })
            .await
            .expect("the other one ends it"),
            _ => ended(&other, &id).await,
        };
        let counts = ["status", "examined", "created", "skipped"].map(|name| done[name].clone());
        assert_eq!(counts, [json!("done"), json!(EVENTS), json!(EVENTS), json!(0)]);
        if signal == "STOP" {
            first.signal("CONT").await;
            all_routed(&api).await;
        }
        assert_eq!(events_of(&other, subscription, 0).await.len(), EVENTS);
        assert_eq!(redrive(&other, &id).await, done, "it does not change any more");
    }
}

#[tokio::test]
async fn the_command_line_starts_follows_and_cancels_redrives() {
    let (installation, receiver) = (Installation::sqlite(), Receiver::start().await);
    let server = installation.serve().await;
    let api = server.api();
    send_many(&api, "old", 30).await;
    all_routed(&api).await;
    let (id, _) = api.verified_subscription("old", &receiver.url("/in")).await;
    let installation = installation.with("HOOKSAGA_URL", &server.url()).with("HOOKSAGA_API_KEY", ROOT_KEY);
    let id = id.to_string();
    let ran =
        run(&installation, &["redrives", "start", "--events", "--subscription", &id, "--since", "1h"]).await;
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert!(said.contains("redrive 1 is done: 30 examined, 30 deliveries created, 0 skipped"), "{said}");
    let ran = run(&installation, &["redrives", "start", "--dead-letters", "--detach"]).await;
    assert!(String::from_utf8_lossy(&ran.stdout).contains("redrive 2 runs"), "{ran:?}");
    ended(&api, &json!(2)).await;
    for (arguments, expected) in [
        (["redrives", "list"].as_slice(), "events since"),
        (&["redrives", "show", "1"], "root"),
        (&["redrives", "show", "2"], "done"),
    ] {
        let ran = run(&installation, arguments).await;
        assert!(String::from_utf8_lossy(&ran.stdout).contains(expected), "{ran:?}");
    }
    let ran = run(&installation, &["redrives", "cancel", "1"]).await;
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stderr).contains("nothing to cancel"), "{ran:?}");
}

/// Where nobody works on redrives, one runs for as long as the test needs.
#[tokio::test]
async fn the_command_line_says_what_is_sent_again_and_that_it_was_cancelled() {
    let installation = Installation::postgres().await;
    let server = installation.serve_only("api").await;
    let api = server.api();
    let installation = installation.with("HOOKSAGA_URL", &server.url()).with("HOOKSAGA_API_KEY", ROOT_KEY);
    let start =
        ["redrives", "start", "--dead-letters", "--type", "t", "--error", "HTTP_503", "--since", SINCE];
    let followed = run(&installation, &start);
    let cancelled = async {
        eventually("it runs", || async {
            let redrives = api.get("/v1/redrives").await.expect(200);
            (redrives["items"] != json!([])).then_some(())
        })
        .await;
        let expected =
            format!("dead letters of type t with HTTP_503 since {}", SINCE.replace('Z', ".000000Z"));
        for arguments in [["redrives", "list"].as_slice(), &["redrives", "show", "1"]] {
            let ran = run(&installation, arguments).await;
            assert!(String::from_utf8_lossy(&ran.stdout).contains(&expected), "{ran:?}");
        }
        run(&installation, &["redrives", "cancel", "1"]).await
    };
    let (followed, cancelled) = tokio::join!(followed, cancelled);
    assert_eq!(cancelled.status.code(), Some(0), "{cancelled:?}");
    let said = String::from_utf8_lossy(&cancelled.stdout).into_owned();
    assert!(said.contains("redrive 1 is cancelled: 0 examined, 0 deliveries created, 0 skipped"), "{said}");
    assert_eq!(followed.status.code(), Some(1), "{followed:?}");
    let said = String::from_utf8_lossy(&followed.stderr).into_owned();
    assert!(said.contains("redrive 1 was cancelled"), "{said}");
}
