//! Two nodes of a Galera Cluster, whose locks do not reach each other.

use crate::adapter::{options, owner, text_rows, value};
use hooksaga_mysql::{connect, migrate};
use hooksaga_saga::{EventId, Retention, SagaId};
use hooksaga_store::{ResendOutcome, TenantScope, Walk};
use hooksaga_testkit::{galera::GaleraCluster, mariadb};
use mysql_async::prelude::Queryable as _;
use std::time::Duration;

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

/// The janitor on one node, and whoever sends again on the other, write different rows. Without a key that both write, both
/// commits would hold, and the new saga would have no event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_is_not_removed_on_one_node_and_sent_again_on_another() {
    let cluster = tokio::task::block_in_place(|| GaleraCluster::start(2));
    mariadb::execute(&cluster.url(0), "CREATE DATABASE hooksaga").await;
    let urls = [0, 1].map(|node| format!("{}/hooksaga", cluster.url(node)));
    migrate(options(&urls[0])).await.unwrap();
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
    eprintln!("galera: {removed} removed, {sent} sent again");
}
