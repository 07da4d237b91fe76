//! Calls that are cancelled in the middle. Whatever they had begun is undone, and nothing stays locked.

use crate::{
    adapter::{Database, fresh, name, value},
    connecting::event,
    frozen_clients::subscribe,
};
use hooksaga_conformance::TestDatabase as _;
use hooksaga_store::{Allotted, ClaimLimits, LeaseToken, Move, RouteLimits};
use std::{
    pin::pin,
    task::Poll,
    time::{Duration, Instant},
};

const EVENTS: usize = 24;

/// What a call returns; `None` if it is given up because it has waited for the server too often.
async fn given_up_after<T>(waits: usize, call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    let mut left = waits;
    std::future::poll_fn(|context| match call.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// Waits until no transaction of the product is open.
async fn nothing_is_open(db: &Database) {
    let sql = format!(
        "SELECT COUNT(*) FROM information_schema.innodb_trx t \
         JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE p.user = '{}'",
        name(&db.url)
    );
    let began = Instant::now();
    while value(&db.url, &sql).await != "0" {
        assert!(began.elapsed() < Duration::from_secs(5), "a transaction stays open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn count(db: &Database, what: &str) -> usize {
    value(&db.url, &format!("SELECT COUNT(*) FROM {what}")).await.parse().unwrap()
}

#[tokio::test]
async fn a_call_that_is_given_up_leaves_nothing_locked_and_nothing_half_done() {
    let db = fresh().await;
    let stores = db.stores();
    let id = subscribe(&stores).await;
    for waits in 0..EVENTS {
        given_up_after(waits, stores.ingest.append(&[event("1", None)])).await;
    }
    nothing_is_open(&db).await;
    let events = count(&db, "events").await;
    assert_eq!(count(&db, "unrouted_events").await, events, "both or neither");
    let missing: Vec<_> = (events..EVENTS).map(|_| event("1", None)).collect();
    stores.ingest.append(&missing).await.unwrap();

    let one = RouteLimits { events: 1, sagas: 10 };
    for waits in 0..EVENTS {
        given_up_after(waits, stores.router.route(one, 1)).await;
    }
    nothing_is_open(&db).await;
    let sagas = count(&db, "webhook_delivery_sagas").await;
    assert_eq!(count(&db, "unrouted_events").await, EVENTS - sagas, "both or neither");
    stores.router.route(RouteLimits { events: 100, sagas: 100 }, 1).await.unwrap();
    assert_eq!(count(&db, "webhook_delivery_sagas").await, EVENTS);

    let allotted = [Allotted { subscription_id: id, jobs: 100 }];
    stores.orchestrator.create_jobs(&allotted, &|| Move::Now).await.unwrap();
    let claim = async |waits, jobs| {
        let limits = ClaimLimits { jobs, payload_bytes: 1 << 20, skip: Vec::new() };
        let lease = Duration::from_secs(60);
        given_up_after(waits, stores.worker.claim(&limits, LeaseToken(1).lasting(lease))).await
    };
    for waits in 0..EVENTS / 2 {
        claim(waits, 1).await;
    }
    nothing_is_open(&db).await;
    let left = count(&db, "webhook_delivery_jobs WHERE status = 'Pending'").await;
    let claimed = claim(usize::MAX, 100).await.unwrap().unwrap();
    assert_eq!(claimed.jobs.len(), left);
}
