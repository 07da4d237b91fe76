//! Two nodes of a Galera Cluster, whose locks do not reach each other.

use crate::adapter::{fresh, options, owner, text_rows, value};
use hooksaga_mysql::{connect, migrate, test_support::Transactions};
use hooksaga_saga::{EventId, Retention, SagaId};
use hooksaga_store::{ResendOutcome, Role, RoleMode, ServerOptions, TenantScope, Walk};
use hooksaga_testkit::{galera::GaleraCluster, mariadb, proxy::Proxy};
use mysql_async::{Conn, OptsBuilder, prelude::Queryable as _};
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
}

/// The janitor on one node, and whoever sends again on the other, write different rows. Without a key that both write, both
/// commits would hold, and the new saga would have no event.
async fn an_event_is_not_removed_on_one_node_and_sent_again_on_another(urls: &[String; 2]) {
    deliver_long_ago(&urls[0]).await;
    let janitor = connect(options(&urls[0])).await.unwrap().stores().janitor;
    let sender = connect(options(&urls[1])).await.unwrap().stores().dead_letters;
    let there = "SELECT event_id, id FROM webhook_delivery_sagas ORDER BY event_id";
    let sagas = text_rows(&mut owner(&urls[1]).await, there).await.unwrap();
    assert_eq!(sagas.len(), EVENTS as usize);
    let as_of = janitor.old_events(&RETENTION, Walk { after: None, limit: 1 }).await.unwrap().as_of;

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

/// Of transactions that are ended by the other node's commit, a few in a thousand are in between two statements then.
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

/// A transaction whose statements were all done, COMMIT too, was done as a whole.
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

/// Whatever the next command is: what follows in the transaction is not done.
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

/// On any other server statements that go together cost one round trip.
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
