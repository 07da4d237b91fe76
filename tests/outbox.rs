//! The transactional outbox as a new user would try it: an application with a table of its own, on the same server.

use crate::support::*;
use hooksaga_testkit::mariadb;
use mysql_async::prelude::Queryable as _;
use std::time::Instant;

on_every_database_server! {
    an_order_and_its_event_are_one_transaction,
    the_payload_limit_is_the_servers,
    a_held_external_id_delays_no_other_post,
    a_transaction_that_is_held_for_long_delays_no_post,
    an_event_whose_commit_is_late_arrives_as_soon_as_others,
}

/// An application that shares the server: an `orders` table, and the right to call the outbox.
enum App {
    Postgres(tokio_postgres::Client),
    MySql { connection: mysql_async::Conn, database: String },
}

impl App {
    async fn new(installation: &Installation) -> Self {
        let url = installation.database_url().unwrap();
        let (_, database) = url.rsplit_once('/').unwrap();
        let login = format!("app_{database}");
        if url.starts_with("postgres") {
            let admin = connect(url).await;
            let set_up = format!(
                "CREATE ROLE {login} LOGIN; CREATE SCHEMA shop AUTHORIZATION {login}; \
                 GRANT EXECUTE ON FUNCTION hooksaga_append TO {login}"
            );
            admin.batch_execute(&set_up).await.unwrap();
            let client = connect(&url.replace("postgres://postgres@", &format!("postgres://{login}@"))).await;
            client.batch_execute("CREATE TABLE shop.orders (id int, note text)").await.unwrap();
            Self::Postgres(client)
        } else {
            for sql in [
                format!("CREATE DATABASE `{login}`"),
                format!("CREATE USER '{login}'@'127.0.0.1'"),
                format!("GRANT ALL ON `{login}`.* TO '{login}'@'127.0.0.1'"),
                format!("GRANT EXECUTE ON PROCEDURE `{database}`.hooksaga_append TO '{login}'@'127.0.0.1'"),
            ] {
                mariadb::admin_execute(&sql).await;
            }
            let server = mariadb::admin_url().replace("mysql://admin@", &format!("mysql://{login}@"));
            let opts = mysql_async::Opts::from_url(&format!("{server}/{login}")).unwrap();
            let mut connection = mysql_async::Conn::new(opts).await.unwrap();
            connection.query_drop("CREATE TABLE orders (id INT, note TEXT)").await.unwrap();
            Self::MySql { connection, database: database.to_owned() }
        }
    }

    async fn execute(&mut self, sql: &str) {
        match self {
            Self::Postgres(client) => {
                client.batch_execute(&sql.replace("orders", "shop.orders")).await.unwrap()
            }
            Self::MySql { connection, .. } => connection.query_drop(sql).await.unwrap(),
        }
    }

    /// The id, or the SQLSTATE.
    async fn append(
        &mut self,
        event_type: &str,
        payload: &str,
        external_id: Option<&str>,
    ) -> Result<i64, String> {
        match self {
            Self::Postgres(client) => {
                let sql = "SELECT hooksaga_append($1, $2, $3)";
                let row = client.query_one(sql, &[&event_type, &payload, &external_id]).await;
                row.map(|row| row.get(0)).map_err(|error| error.code().unwrap().code().to_owned())
            }
            Self::MySql { connection, database } => {
                let sql = format!("CALL `{database}`.hooksaga_append(?, ?, ?, NULL, NULL)");
                let row: Result<Option<i64>, _> =
                    connection.exec_first(sql, (event_type, payload, external_id)).await;
                row.map(Option::unwrap).map_err(|error| match error {
                    mysql_async::Error::Server(error) => error.state,
                    other => panic!("{other:?}"),
                })
            }
        }
    }
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn an_order_and_its_event_are_one_transaction(installation: Installation) {
    let server = installation.serve().await;
    let (api, receiver) = (server.api(), Receiver::start().await);
    api.verified_subscription("order.created", &receiver.url("/in")).await;
    let mut app = App::new(&installation).await;

    // Rolled back: neither exists.
    app.execute("BEGIN").await;
    app.execute("INSERT INTO orders VALUES (1, 'never')").await;
    let undone = app.append("order.created", "{\"order\":1}", Some("order-1")).await.unwrap();
    app.execute("ROLLBACK").await;
    // Committed: both do, and the delivery comes as after a post.
    let mut slowest = Duration::ZERO;
    for order in 2..7_usize {
        app.execute("BEGIN").await;
        app.execute(&format!("INSERT INTO orders VALUES ({order}, 'yes')")).await;
        let payload = format!("{{\"order\": {order}}}");
        let id = app.append("order.created", &payload, Some(&format!("order-{order}"))).await.unwrap();
        let committed = Instant::now();
        app.execute("COMMIT").await;
        receiver.wait_for("/in", order - 1, PATIENCE).await;
        slowest = slowest.max(committed.elapsed());
        let event = api.get(&format!("/v1/events/{id}")).await.expect(200);
        assert_eq!(event["payload"]["order"], json!(order));
        assert_eq!(event["external_id"], json!(format!("order-{order}")));
        api.delivery_with_status(id, "Completed").await;
    }
    assert!(slowest < Duration::from_secs(1), "woken, not found by chance: {slowest:?}");
    let bodies: Vec<String> =
        receiver.deliveries("/in").iter().map(|arrival| arrival.text().to_owned()).collect();
    assert_eq!(bodies, (2..7).map(|order| format!("{{\"order\": {order}}}")).collect::<Vec<_>>());
    assert_eq!(api.get(&format!("/v1/events/{undone}")).await.status, 404);
    // A post of the same is the same; other content is a conflict, from either side.
    let same = json!({"event_type": "order.created", "payload": {"order": 2}, "external_id": "order-2"});
    assert_eq!(api.post("/v1/events", &same).await.status, 409, "other bytes: a blank is missing");
    assert_eq!(app.append("order.created", "2", Some("order-2")).await, Err("OX409".to_owned()));
}

async fn the_payload_limit_is_the_servers(installation: Installation) {
    let installation = installation.with("HOOKSAGA_MAX_PAYLOAD_BYTES", "2000");
    let mut app = App::new(&installation).await;
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    app.append("t", &text(2001), None).await.unwrap();
    let server = installation.serve().await;
    app.append("t", &text(2000), None).await.unwrap();
    assert_eq!(app.append("t", &text(2001), None).await, Err("OX413".to_owned()));
    drop(server);
}

async fn a_held_external_id_delays_no_other_post(installation: Installation) {
    let server = installation.serve().await;
    let api = server.api();
    let mut app = App::new(&installation).await;
    app.execute("BEGIN").await;
    let held = app.append("t", "1", Some("held")).await.unwrap();
    for more in ["held-too", "held-as-well"] {
        app.append("t", "1", Some(more)).await.unwrap();
    }
    let post = async |external_id: String| {
        let began = Instant::now();
        let event = json!({"event_type": "t", "payload": 1, "external_id": external_id});
        (api.post("/v1/events", &event).await.status, began.elapsed())
    };
    // Sixteen who want what is held, again and again, and others beside them, in the same group commits.
    let wanting = async |client: usize| {
        let id = ["held", "held-too", "held-as-well"][client % 3];
        for _ in 0..4 {
            let (status, _) = post(id.to_owned()).await;
            assert_eq!(status, 503, "{id}");
        }
    };
    let others = async |name: &str| {
        let mut slowest = Duration::ZERO;
        for n in 0..60 {
            let (status, took) = post(format!("{name}-{n}")).await;
            assert_eq!(status, 201, "{name}-{n}");
            slowest = slowest.max(took);
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        slowest
    };
    let four = async |n| tokio::join!(wanting(n), wanting(n + 1), wanting(n + 2), wanting(n + 3));
    let sixteen = async || tokio::join!(four(0), four(4), four(8), four(12));
    let (_, x, y, z) = tokio::join!(sixteen(), others("a"), others("held-not"), others("z"));
    assert!(x.max(y).max(z) < Duration::from_secs(3), "{x:?} {y:?} {z:?}");
    app.execute("COMMIT").await;
    let same = json!({"event_type": "t", "payload": 1, "external_id": "held"});
    let answer = eventually("it is let go", || async {
        let answer = api.post("/v1/events", &same).await;
        (answer.status != 503).then_some(answer)
    })
    .await;
    assert_eq!(answer.expect(200)["id"], json!(held));
}

/// `make torture` says a minute (`HOOKSAGA_HELD_SECONDS`), with posts at a steady rate all the time.
async fn a_transaction_that_is_held_for_long_delays_no_post(installation: Installation) {
    /// Ten a second.
    const EVERY: Duration = Duration::from_millis(100);
    /// A delivery may take this much longer than alone (FB-1).
    const MORE: Duration = Duration::from_millis(100);
    let asked = std::env::var("HOOKSAGA_HELD_SECONDS");
    let held_for = Duration::from_secs(asked.map_or(10, |text| text.parse().expect("a number")));
    let server = installation.serve().await;
    let (api, receiver) = (server.api(), Receiver::start().await);
    api.verified_subscription("live", &receiver.url("/live")).await;
    api.verified_subscription("held", &receiver.url("/held")).await;
    let mut posts = 0;
    let mut p95 = async |lasting: Duration| {
        let (mut took, began) = (Vec::new(), Instant::now());
        while began.elapsed() < lasting {
            let due = tokio::time::sleep(EVERY);
            let posted = Instant::now();
            let event =
                json!({"event_type": "live", "payload": posts, "external_id": format!("live-{posts}")});
            api.post("/v1/events", &event).await.expect(201);
            posts += 1;
            receiver.wait_for("/live", posts, PATIENCE).await;
            took.push(posted.elapsed());
            due.await;
        }
        took.sort_unstable();
        took[took.len() * 95 / 100]
    };
    let alone = p95(Duration::from_secs(3)).await;
    let mut app = App::new(&installation).await;
    app.execute("BEGIN").await;
    app.execute("INSERT INTO orders VALUES (1, 'held')").await;
    app.append("held", "1", Some("held-1")).await.unwrap();
    let beside = p95(held_for).await;
    assert!(beside < (alone * 2).max(alone + MORE), "{beside:?} beside it, {alone:?} alone");
    assert_eq!(receiver.deliveries("/held").len(), 0, "nobody sees it before the commit");
    let committed = Instant::now();
    app.execute("COMMIT").await;
    receiver.wait_for("/held", 1, PATIENCE).await;
    assert!(committed.elapsed() < Duration::from_secs(1), "{:?}", committed.elapsed());
}

/// By more ids than the router looks back (PostgreSQL), with others that come all the time.
async fn an_event_whose_commit_is_late_arrives_as_soon_as_others(installation: Installation) {
    /// Half of what it takes where nobody tells the router.
    const SOON: Duration = Duration::from_millis(250);
    let server = installation.serve().await;
    let (api, receiver) = (server.api(), Receiver::start().await);
    api.verified_subscription("late", &receiver.url("/late")).await;
    let batch: Vec<Value> = (0..1000).map(|n| json!({"event_type": "live", "payload": n})).collect();
    let batch = json!({ "events": batch });
    let mut app = App::new(&installation).await;
    let mut took = Vec::new();
    for order in 1..=6 {
        app.execute("BEGIN").await;
        app.append("late", "1", None).await.unwrap();
        for _ in 0..3 {
            api.post("/v1/events/batch", &batch).await.expect(200);
        }
        let traffic = async {
            loop {
                api.post("/v1/events", &json!({"event_type": "live", "payload": 1})).await.expect(201);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let late = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let committed = Instant::now();
            app.execute("COMMIT").await;
            receiver.wait_for("/late", order, PATIENCE).await;
            committed.elapsed()
        };
        tokio::select! {
            () = traffic => unreachable!("it does not end"),
            elapsed = late => took.push(elapsed),
        }
    }
    took.sort_unstable();
    assert!(took[took.len() / 2] < SOON, "{took:?}");
}
