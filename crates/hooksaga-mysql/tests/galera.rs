//! Two nodes of a Galera Cluster, whose locks do not reach each other.

use crate::adapter::{fresh, options, owner, text_rows, value};
use hooksaga_mysql::{connect, migrate, test_support::Transactions};
use hooksaga_saga::{EventId, Retention, SagaId};
use hooksaga_store::{ResendOutcome, Role, RoleMode, ScanStep, ServerOptions, TenantScope};
use hooksaga_testkit::{galera::GaleraCluster, mariadb, proxy::Proxy};
use mysql_async::{Conn, Error, OptsBuilder, prelude::Queryable as _};
use std::{collections::BTreeSet, time::Duration};

const EVENTS: u32 = 60;
const HOUR_AGO: &str = "(UTC_TIMESTAMP(6) - INTERVAL 1 HOUR)";
const RETENTION: Retention = Retention { finished: Duration::from_secs(600), dead_letters: None };

/// Events that were delivered an hour ago, by steps that the schema allows.
async fn deliver_long_ago(url: &str) {
    let mut connection = owner(url).await;
    let all =
        (1..=EVENTS).map(|n| format!("('default', 't', {HOUR_AGO}, '{n}', 'c-{n}')")).collect::<Vec<_>>();
    for sql in [
        "INSERT INTO subscriptions (tenant, event_type, callback_url) VALUES ('default', 't', 'https://a.example/')"
            .to_owned(),
        "UPDATE subscriptions SET verified_url = callback_url, active = TRUE".to_owned(),
        format!(
            "INSERT INTO events (tenant, event_type, created_at, payload, correlation_id) VALUES {}",
            all.join(", ")
        ),
        format!(
            "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, generation, max_retry_limit, \
             next_attempt_at, created_at, updated_at) \
             SELECT e.id, s.id, 0, 5, {HOUR_AGO}, {HOUR_AGO}, {HOUR_AGO} FROM events e JOIN subscriptions s"
        ),
        "UPDATE webhook_delivery_sagas SET status = 'InProgress'".to_owned(),
        format!(
            "UPDATE webhook_delivery_sagas SET status = 'Completed', attempt_count = 1, updated_at = {HOUR_AGO}"
        ),
    ] {
        connection.query_drop(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_nodes_that_want_the_same_one_wins() {
    let cluster = tokio::task::block_in_place(|| GaleraCluster::start(2));
    mariadb::execute(&cluster.url(0), "CREATE DATABASE hooksaga").await;
    let urls = [0, 1].map(|node| format!("{}/hooksaga", cluster.url(node)));
    migrate(options(&urls[0])).await.unwrap();
    whoever_was_told_that_it_has_a_row_has_it(&urls).await;
    the_next_command_tells_that_a_transaction_was_ended(&urls).await;
    an_event_is_not_removed_on_one_node_and_sent_again_on_another(&urls).await;
    a_letter_stored_on_one_node_and_sent_again_on_another_is_listed_as_sent_again(&urls).await;
    an_external_id_that_both_append_is_stored_once(&urls).await;
}

/// Applications on both nodes append the same in a transaction with a row of their own. The nodes' locks do not reach each other:
/// one commit fails, and its application begins again, as docs/OUTBOX.md says.
async fn an_external_id_that_both_append_is_stored_once(urls: &[String; 2]) {
    const ROUNDS: usize = 20;
    mariadb::execute(&urls[0], "CREATE TABLE orders (id INT AUTO_INCREMENT PRIMARY KEY)").await;
    let place = async |url: &str, external_id: &str| {
        let mut connection = owner(url).await;
        for tries in 0..20 {
            let id = async {
                for sql in ["BEGIN", "INSERT INTO orders VALUES ()"] {
                    connection.query_drop(sql).await?;
                }
                let call = "CALL hooksaga_append('order.created', '1', ?, NULL, NULL)";
                let id: Option<i64> = connection.exec_first(call, (external_id,)).await?;
                connection.query_drop("COMMIT").await?;
                Ok::<_, Error>(id.unwrap())
            };
            match id.await {
                Ok(id) => return (id, tries),
                Err(Error::Server(error)) if ["40001", "OX423"].contains(&error.state.as_str()) => {
                    connection.query_drop("ROLLBACK").await.unwrap();
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        panic!("{external_id} is never stored")
    };
    let mut again = 0;
    for round in 0..ROUNDS {
        let external_id = format!("both-{round}");
        let (one, other) = tokio::join!(place(&urls[0], &external_id), place(&urls[1], &external_id));
        assert_eq!(one.0, other.0, "{external_id}");
        again += one.1 + other.1;
    }
    assert!(again > 0, "they never met");
    let stored = "SELECT CONCAT((SELECT COUNT(*) FROM events WHERE external_id LIKE 'both-%'), ' ', (SELECT COUNT(*) FROM orders))";
    assert_eq!(value(&urls[0], stored).await, format!("{ROUNDS} {}", 2 * ROUNDS));
}

/// The janitor on one node and an operator who sends again on the other write different rows. Without a key that both write, both
/// commits would succeed, and the new saga would have no event.
async fn an_event_is_not_removed_on_one_node_and_sent_again_on_another(urls: &[String; 2]) {
    deliver_long_ago(&urls[0]).await;
    let janitor = connect(options(&urls[0])).await.unwrap().stores().janitor;
    let sender = connect(options(&urls[1])).await.unwrap().stores().dead_letters;
    let there = "SELECT event_id, id FROM webhook_delivery_sagas ORDER BY event_id";
    let sagas = text_rows(&mut owner(&urls[1]).await, there).await.unwrap();
    assert_eq!(sagas.len(), EVENTS as usize);
    let as_of = janitor.old_events(&RETENTION, ScanStep { after: None, limit: 1 }).await.unwrap().as_of;

    let (mut removed, mut sent) = (0, 0);
    for (number, saga) in (0_u64..).zip(sagas) {
        let [event, saga] = [0, 1].map(|column| saga[column].as_ref().unwrap().parse::<i64>().unwrap());
        let going = [EventId(event)];
        let removing = janitor.remove(&going, RETENTION.as_of(as_of));
        // A little later each time: else the same one would always come first.
        let sending = async {
            tokio::time::sleep(Duration::from_millis(number % 8 * 2)).await;
            sender.resend(&TenantScope::All, SagaId(saga), 5).await
        };
        let (gone, outcome) = tokio::join!(removing, sending);
        let (gone, outcome) = (gone.unwrap().events, outcome.unwrap());
        let is_sent = matches!(outcome, ResendOutcome::Created(..));
        removed += gone;
        sent += u64::from(is_sent);
        assert!(!(gone == 1 && is_sent), "event {event} was removed and sent again");
    }
    let orphans = "SELECT COUNT(*) FROM webhook_delivery_sagas s LEFT JOIN events e ON e.id = s.event_id WHERE e.id IS NULL";
    assert_eq!(value(&urls[0], orphans).await, "0");
    assert_eq!(value(&urls[0], "SELECT COUNT(*) FROM event_locks").await, "0");
    assert_eq!(removed + sent, u64::from(EVENTS), "one of the two has won each time");
}

/// Deliveries that have just died, and whose letters are still to be stored; their ids, oldest first.
async fn let_die(url: &str) -> Vec<i64> {
    let mut connection = owner(url).await;
    let all = (1..=EVENTS).map(|n| format!("('default', 'dead', '{n}', 'd-{n}')")).collect::<Vec<_>>();
    let new = "event_id IN (SELECT id FROM events WHERE event_type = 'dead')";
    for sql in [
        format!("INSERT INTO events (tenant, event_type, payload, correlation_id) VALUES {}", all.join(", ")),
        "INSERT INTO webhook_delivery_sagas (event_id, subscription_id, max_retry_limit, next_attempt_at) \
         SELECT e.id, s.id, 1, UTC_TIMESTAMP(6) FROM events e JOIN subscriptions s WHERE e.event_type = 'dead'"
            .to_owned(),
        format!("UPDATE webhook_delivery_sagas SET status = 'InProgress' WHERE {new}"),
        format!(
            "UPDATE webhook_delivery_sagas SET status = 'DeadLettered', attempt_count = 1, \
             final_error_code = 'TIMEOUT' WHERE {new}"
        ),
        format!("INSERT INTO pending_dead_letters SELECT id FROM webhook_delivery_sagas WHERE {new}"),
    ] {
        connection.query_drop(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    connection.query("SELECT saga_id FROM pending_dead_letters ORDER BY saga_id").await.unwrap()
}

/// The transaction that stores the letter does not see the new delivery, and the one that creates that has no letter to mark.
async fn a_letter_stored_on_one_node_and_sent_again_on_another_is_listed_as_sent_again(urls: &[String; 2]) {
    let sagas = let_die(&urls[0]).await;
    // Until the other node has them, too.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(sagas.len(), EVENTS as usize);
    let burier = connect(options(&urls[0])).await.unwrap().stores().dead_letters;
    let sender = connect(options(&urls[1])).await.unwrap().stores().dead_letters;
    let mut buried = 0;
    for (number, saga) in (0_u64..).zip(sagas) {
        // The oldest is next.
        let burying = burier.bury(1);
        // A little later each time: else the same one would always come first.
        let sending = async {
            tokio::time::sleep(Duration::from_millis(number % 6)).await;
            sender.resend(&TenantScope::All, SagaId(saga), 5).await
        };
        let (stored, outcome) = tokio::join!(burying, sending);
        let stored = stored.unwrap();
        assert!(stored.iter().all(|letter| letter.saga_id == SagaId(saga)), "{stored:?}");
        assert!(matches!(outcome, Ok(ResendOutcome::Created(..))), "{outcome:?}");
        buried += stored.len();
    }
    assert_eq!(buried, EVENTS as usize, "each had its letter while it was sent again");
    let open = "SELECT COUNT(*) FROM letter_heads WHERE NOT requeued";
    tokio::time::sleep(Duration::from_millis(500)).await;
    for url in urls {
        assert_eq!(value(url, "SELECT COUNT(*) FROM letter_heads").await, EVENTS.to_string());
        assert_eq!(value(url, open).await, "0", "listed as not sent again for ever");
    }
    assert_eq!(value(&urls[0], "SELECT COUNT(*) FROM event_locks").await, "0");
}

/// Of the transactions that the other node's commit ends, a few in a thousand are between two statements at that moment.
const ROWS: u32 = 4000;
const AT_ONCE: u32 = 8;

/// Whether this node was told that it has this thing now.
async fn take(transactions: &Transactions, node: u32, thing: u32) -> bool {
    let free = format!("WHERE id = {thing} AND owner IS NULL");
    let lock = format!("SELECT id FROM things {free} FOR UPDATE");
    let write = format!("UPDATE things SET owner = {node} {free}");
    let read = "SELECT COUNT(*) FROM things WHERE id < 200";
    let queue = format!("INSERT INTO taken (thing, owner) VALUES ({thing}, {node})");
    transactions.take(&lock, &write, read, &queue).await.unwrap()
}

/// A thing and its owner, in each row.
async fn stored(url: &str, sql: &str) -> BTreeSet<String> {
    let rows = text_rows(&mut owner(url).await, sql).await.unwrap();
    let text = |row: Vec<Option<String>>| row.into_iter().flatten().collect::<Vec<_>>().join(" ");
    rows.into_iter().map(text).collect()
}

/// If all statements of a transaction succeeded, including COMMIT, the whole transaction was done.
async fn whoever_was_told_that_it_has_a_row_has_it(urls: &[String; 2]) {
    let mut connection = owner(&urls[0]).await;
    for sql in [
        "CREATE TABLE things (id BIGINT NOT NULL PRIMARY KEY, owner BIGINT NULL)".to_owned(),
        "CREATE TABLE taken (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, thing BIGINT NOT NULL, owner BIGINT NOT NULL)"
            .to_owned(),
        format!("INSERT INTO things (id) SELECT seq FROM seq_0_to_{}", ROWS - 1),
    ] {
        connection.query_drop(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    // Until the other node has it, too.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let of_node = |url: &String| {
        let options = ServerOptions { roles: RoleMode::Off, ..options(url) };
        Transactions::new(&options, Role::JobWorker).unwrap()
    };
    let nodes = urls.each_ref().map(of_node);
    let competing = (0..AT_ONCE).map(|first| {
        let nodes = nodes.clone();
        tokio::spawn(async move {
            let mut won = Vec::new();
            for thing in (first..ROWS).step_by(AT_ONCE as usize) {
                let winners = tokio::join!(take(&nodes[0], 0, thing), take(&nodes[1], 1, thing));
                won.extend(winners.0.then(|| format!("{thing} 0")));
                won.extend(winners.1.then(|| format!("{thing} 1")));
            }
            won
        })
    });
    let mut won = BTreeSet::new();
    for competing in competing.collect::<Vec<_>>() {
        won.extend(competing.await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let has = stored(&urls[1], "SELECT id, owner FROM things").await;
    let queued = stored(&urls[1], "SELECT thing, owner FROM taken").await;
    assert_eq!(
        won.difference(&has).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "told to have it, and had it not"
    );
    assert_eq!(
        queued.difference(&has).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "half of a transaction is there"
    );
    assert_eq!((won.len(), queued.len()), (ROWS as usize, ROWS as usize));
    let of = |node: &str| has.iter().filter(|row| row.ends_with(node)).count();
    assert!(of(" 0") > 0 && of(" 1") > 0, "both nodes had a chance");
}

/// Whatever the next command is, the rest of the transaction is not done.
async fn the_next_command_tells_that_a_transaction_was_ended(urls: &[String; 2]) {
    const MARK: &str = "INSERT INTO marks (text) VALUES ('after the end')";
    let mut other = owner(&urls[1]).await;
    other
        .query_drop("CREATE TABLE marks (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, text TEXT NOT NULL)")
        .await
        .unwrap();
    for (thing, how) in
        (0..).zip(["a query", "a statement to prepare", "a prepared one", "one for which another is closed"])
    {
        // Space for one prepared statement.
        let opts = OptsBuilder::from_opts(owner(&urls[0]).await.opts().clone()).stmt_cache_size(1);
        let mut connection = Conn::new(opts).await.unwrap();
        match how {
            "a prepared one" => drop(connection.prep(MARK).await.unwrap()),
            "one for which another is closed" => drop(connection.prep("SELECT 1").await.unwrap()),
            _ => {}
        }
        connection.query_drop("START TRANSACTION").await.unwrap();
        connection.query_drop(format!("UPDATE things SET owner = 8 WHERE id = {thing}")).await.unwrap();
        other.query_drop(format!("UPDATE things SET owner = 9 WHERE id = {thing}")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let next = match how {
            "a query" => connection.query_drop(MARK).await,
            _ => connection.exec_drop(MARK, ()).await,
        };
        let told = matches!(&next, Err(mysql_async::Error::Server(error)) if error.code == 1213);
        assert!(told, "{how}: {next:?}");
    }
    assert_eq!(value(&urls[1], "SELECT COUNT(*) FROM marks").await, "0");
}

/// On any other server, statements that belong together cost one round trip.
#[tokio::test]
async fn outside_a_cluster_what_goes_together_is_one_message() {
    let database = fresh().await;
    mariadb::execute(
        &database.url,
        "CREATE TABLE things (id BIGINT NOT NULL PRIMARY KEY, owner BIGINT NULL)",
    )
    .await;
    let (proxy, url) = Proxy::for_url(&database.url).await;
    let options = ServerOptions { roles: RoleMode::Off, ..options(&url) };
    let transactions = Transactions::new(&options, Role::JobWorker).unwrap();
    let read = "SELECT id FROM things";
    let take = || transactions.take(read, "INSERT INTO things (id) VALUES (1)", read, "DELETE FROM things");
    assert!(take().await.unwrap());
    // The connection goes back to the pool meanwhile: a new one would say more.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = proxy.said();
    assert!(take().await.unwrap());
    assert_eq!(proxy.said() - before, 2, "one until the commit, one with it");
}
