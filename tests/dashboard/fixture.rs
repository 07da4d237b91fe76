//! A server to look at: two customers, endpoints that work and that fail, much and little data.

use super::*;

/// What is there to be seen.
pub(super) struct Scene {
    pub(super) server: Server,
    #[expect(dead_code, reason = "the endpoints run as long as the scene does")]
    receiver: Receiver,
    pub(super) good: i64,
    pub(super) failing: i64,
    pub(super) unverified: i64,
    pub(super) switched_off: i64,
    pub(super) delivered: Value,
    pub(super) given_up: Value,
    pub(super) retrying: Value,
    pub(super) nowhere: i64,
    /// An event with everything as long as it may be.
    pub(super) long: i64,
    pub(super) letter: i64,
}

impl Scene {
    /// Every page of the dashboard, with a name for its pictures.
    pub(super) fn pages(&self) -> Vec<(&'static str, String)> {
        let saga = |delivery: &Value| delivery["saga_id"].to_string();
        let mut pages: Vec<_> = [
            ("overview", "/"),
            ("events", "/events"),
            ("events-filtered", "/events?event_type=order.created&tenant=acme"),
            ("deliveries", "/deliveries"),
            ("deliveries-filtered", "/deliveries?status=DeadLettered"),
            ("deliveries-wrong", "/deliveries?subscription_id=x"),
            ("subscriptions", "/subscriptions"),
            ("subscription-new", "/subscriptions/new"),
            ("dead-letters", "/dead-letters"),
            ("redrives", "/redrives"),
            ("redrive", "/redrives/1"),
            ("redrive-done", "/redrives/2"),
            ("nowhere", "/no/such/page"),
            ("keys", "/keys"),
            ("search-nothing", "/search?q=nothing-like-it"),
            ("search-many", "/search?q=1"),
        ]
        .into_iter()
        .map(|(name, path)| (name, path.to_owned()))
        .collect();
        pages.extend([
            ("event", format!("/events/{}", self.delivered["event_id"])),
            ("event-nowhere", format!("/events/{}", self.nowhere)),
            ("event-long", format!("/events/{}", self.long)),
            (
                "subscription-new-for",
                format!("/subscriptions/new?topics={}&tenant={}", "t".repeat(100), "u".repeat(100)),
            ),
            ("delivery", format!("/deliveries/{}", saga(&self.delivered))),
            ("delivery-given-up", format!("/deliveries/{}", saga(&self.given_up))),
            ("delivery-retrying", format!("/deliveries/{}", saga(&self.retrying))),
            ("subscription", format!("/subscriptions/{}", self.good)),
            ("subscription-failing", format!("/subscriptions/{}", self.failing)),
            ("subscription-unverified", format!("/subscriptions/{}", self.unverified)),
            ("subscription-switched-off", format!("/subscriptions/{}", self.switched_off)),
            ("subscription-edit", format!("/subscriptions/{}/edit", self.good)),
            ("dead-letter", format!("/dead-letters/{}", self.letter)),
        ]);
        pages
    }

    /// A busy hour: a shop that works, one whose endpoint fails, one that never proved itself, one that is paused.
    pub(super) async fn busy(installation: &Installation) -> Self {
        let (server, receiver) = (installation.serve().await, Receiver::start().await);
        let api = server.api();
        let url = |path: &str| receiver.url(path).replace("127.0.0.1", "hooks.localhost");
        let create = |tenant: &'static str, topics: Value, path: &'static str, more: Value| {
            let (api, url) = (api.clone(), url(path));
            async move {
                let mut body = json!({"tenant": tenant, "event_types": topics, "callback_url": url});
                body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                api.post("/v1/subscriptions", &body).await.expect(201)["id"].as_i64().unwrap()
            }
        };
        // A URL that is wider than a phone, which an event that went nowhere shows.
        let unproven = "/unproven/staging/webhooks/orders";
        receiver.answer_challenge(unproven, [Behaviour::Status(404)]);
        let oops =
            "<html><head><title>502 Bad Gateway</title></head>\n<body>upstream connect error</body></html>";
        let refuses = || [Behaviour::Body(502, oops.to_owned())];
        receiver.answer("/billing", refuses());
        receiver.answer("/warehouse", [Behaviour::Status(503)]);
        let good = create(
            "acme",
            json!(["order.*", "invoice.paid"]),
            "/acme/webhooks",
            json!({"description": "Acme's shop, production"}),
        )
        .await;
        let failing = create("acme", json!(["invoice.*"]), "/billing", json!({"max_retry_limit": 2})).await;
        let unverified =
            create("globex", json!(["*"]), unproven, json!({"description": "Globex, staging"})).await;
        let paused = create("globex", json!(["order.created"]), "/globex", json!({"active": false})).await;
        let switched_off = create("umbrella", json!(["order.*"]), "/umbrella", json!({})).await;
        let slow =
            create("initech", json!(["order.created"]), "/warehouse", json!({"max_retry_limit": 9})).await;
        for id in [good, failing, paused, slow] {
            eventually("verified", || async {
                (api.subscription(id).await["verified"] == true).then_some(())
            })
            .await;
        }
        eventually("checked", || async {
            (!api.subscription(unverified).await["verification"]["checked_at"].is_null()).then_some(())
        })
        .await;
        let mut last = Vec::new();
        for number in 1..=60 {
            let (tenant, event_type) = match number % 5 {
                0 => ("acme", "invoice.paid"),
                1 => ("initech", "order.created"),
                _ => ("acme", "order.created"),
            };
            if number == 1 || tenant == "acme" {
                let event = json!({
                    "tenant": tenant, "event_type": event_type, "external_id": format!("order-{}", 4200 + number),
                    "payload": {"order": 4200 + number, "customer": "c_918", "total": "49.90", "currency": "EUR",
                        "lines": [{"sku": "TEA-250", "quantity": 2}, {"sku": "CUP-1", "quantity": 1}]},
                });
                last.push(api.post("/v1/events", &event).await.expect(201)["id"].as_i64().unwrap());
            }
        }
        let nowhere = json!({"tenant": "globex", "event_type": "order.created", "payload": {"order": 1}});
        let nowhere = api.post("/v1/events", &nowhere).await.expect(201)["id"].as_i64().unwrap();
        let long = json!({
            "tenant": "u".repeat(100), "event_type": "t".repeat(100), "external_id": "x".repeat(200),
            "payload": {"text": "l".repeat(3000)},
        });
        let long = api.post("/v1/events", &long).await.expect(201)["id"].as_i64().unwrap();
        let of = |deliveries: &[Value], id: i64| {
            deliveries.iter().find(|delivery| delivery["subscription_id"] == id).cloned().unwrap()
        };
        let retrying = api.deliveries(last[0]).await.remove(0);
        let both = api.deliveries(last[4]).await;
        let (delivered, given_up) = (of(&both, good), of(&both, failing));
        api.saga_with_status(delivered["saga_id"].as_i64().unwrap(), "Completed").await;
        api.saga_with_status(given_up["saga_id"].as_i64().unwrap(), "DeadLettered").await;
        let letter = eventually("a dead letter", || async {
            api.get("/v1/dead-letters").await.expect(200)["items"][0]["id"].as_i64()
        })
        .await;
        // Of two that are sent again one arrives, and the other is given up again.
        let letters = eventually("three dead letters", || async {
            let letters = api.get("/v1/dead-letters").await.expect(200)["items"].as_array().unwrap().clone();
            (letters.len() >= 3).then_some(letters)
        })
        .await;
        for (letter, arrives) in [(&letters[1], true), (&letters[2], false)] {
            let expected = if arrives { "Completed" } else { "DeadLettered" };
            if arrives {
                receiver.answer("/billing", [Behaviour::Status(200)]);
            } else {
                receiver.answer("/billing", refuses());
            }
            let again =
                api.post(&format!("/v1/dead-letters/{}/requeue", letter["id"]), &json!({})).await.expect(201);
            api.saga_with_status(again["saga_id"].as_i64().unwrap(), expected).await;
        }
        a_busy_hour(installation, good, failing);
        redrives(installation, failing);
        switch_off(installation, switched_off);
        for (name, scopes, tenant) in
            [("shop", "ingest", None), ("on-call", "read,operator", None), ("acme", "read", Some("acme"))]
        {
            let tenant = tenant.map_or(vec![], |tenant| vec!["--tenant", tenant]);
            let made = [vec!["keys", "create", "--name", name, "--scopes", scopes], tenant].concat();
            assert_eq!(run(installation, &made).await.status.code(), Some(0));
        }
        Self {
            server,
            receiver,
            good,
            failing,
            unverified,
            switched_off,
            delivered,
            given_up,
            retrying,
            nowhere,
            long,
            letter,
        }
    }
}

fn database(installation: &Installation) -> rusqlite::Connection {
    let file = installation.folder.path().join("hooksaga-data/hooksaga.db");
    let database = rusqlite::Connection::open(file).unwrap();
    database.busy_timeout(PATIENCE).unwrap();
    database
}

/// What the server does after days of failures.
fn switch_off(installation: &Installation, id: i64) {
    let sql = "UPDATE subscriptions SET active = 0, disabled_reason = 'FAILING', disabled_at = created_at WHERE id = ?1";
    assert_eq!(database(installation).execute(sql, [id]).unwrap(), 1);
}

/// One that somebody cancelled, and one that is done.
fn redrives(installation: &Installation, subscription: i64) {
    const START: &str = "INSERT INTO redrives (tenant, kind, subscription_id, final_error_code, since, until, started_by, \
        created_at, updated_at) SELECT ?1, ?2, ?3, ?4, ?5, now, 'on-call', now - 95000000, now - 95000000 \
        FROM (SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER) AS now)";
    const END: &str = "UPDATE redrives SET status = ?2, examined = ?3, created = ?4, skipped = ?5, \
        updated_at = created_at + 94000000 WHERE id = ?1";
    let mut database = database(installation);
    // Nobody sees it run in between.
    let rows = database.transaction().unwrap();
    let started = (None::<&str>, "dead_letters", None::<i64>, Some("HTTP_502"), None::<i64>);
    rows.execute(START, started).unwrap();
    rows.execute(END, (rows.last_insert_rowid(), "cancelled", 1840, 1795, 45)).unwrap();
    let started = (Some("acme"), "events", Some(subscription), None::<&str>, Some(1_790_000_000_000_000_i64));
    rows.execute(START, started).unwrap();
    rows.execute(END, (rows.last_insert_rowid(), "done", 52_310, 52_310, 0)).unwrap();
    rows.commit().unwrap();
}

/// What was sent in the hour before the scene began, which no test can wait for.
fn a_busy_hour(installation: &Installation, good: i64, failing: i64) {
    const MINUTE: i64 = 60_000_000;
    const COUNTS: &str = "INSERT INTO delivery_counts (minute, subscription_id, shard, delivered, failed, \
        dead_lettered, ms_50, ms_100, ms_1000, slowest_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let mut database = database(installation);
    let now: i64 = database
        .query_row("SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER)", [], |row| row.get(0))
        .unwrap();
    let rows = database.transaction().unwrap();
    for ago in 1..60 {
        let minute = now / MINUTE * MINUTE - ago * MINUTE;
        let delivered = 180 + (ago * 37) % 50 - ago;
        let failed = if ago < 17 { 12 + (ago * 13) % 9 } else { ago % 3 };
        for (subscription, delivered, failed, dead) in
            [(good, delivered, 0, 0), (failing, 0, failed, failed / 6)]
        {
            let all = delivered + failed;
            let (slow, slower) = (all / 5, all / 19);
            let quick = all - slow - slower;
            let row = (minute, subscription, 63, delivered, failed, dead, quick, slow, slower, 870 + ago);
            rows.execute(COUNTS, row).unwrap();
        }
    }
    rows.commit().unwrap();
}
