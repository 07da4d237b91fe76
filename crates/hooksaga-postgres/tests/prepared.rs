//! What the reader's sessions keep of the lists that callers ask for.

use crate::adapter::{fresh, options};
use hooksaga_conformance::asked;
use hooksaga_postgres::{PostgresDatabase, connect, test_support::prepared_by_the_reader};
use hooksaga_saga::{SagaStatus, SubscriptionId};
use hooksaga_store::{DeliveryFilter, PageRequest, ServerOptions, TenantScope};

/// With one connection for lists.
async fn one_session(url: &str) -> PostgresDatabase {
    connect(ServerOptions { max_connections_per_role: 1, ..options(url) }).await.unwrap()
}

async fn list(database: &PostgresDatabase, filter: DeliveryFilter) {
    let page = PageRequest { limit: 10, before: None };
    database.stores().reader.deliveries(page.of(&TenantScope::All, &filter)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_in_another_order_and_number_are_no_new_statement() {
    let db = fresh().await;
    let database = one_session(&db.url).await;
    let all = SagaStatus::ALL;
    let repeated =
        |n: usize| (0..12).map(move |i| all[(i * i + n * (i + 1)) % 3 + 1]).chain(all[1..4].iter().copied());
    let of = |statuses| DeliveryFilter { statuses, ..DeliveryFilter::default() };
    list(&database, of(repeated(0).collect())).await;
    let before = prepared_by_the_reader(&database).await.unwrap();
    for n in 1..60 {
        list(&database, of(repeated(n).rev().collect())).await;
    }
    assert_eq!(prepared_by_the_reader(&database).await.unwrap(), before);
}

/// 32 sets of statuses with 16 combinations of other filters.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_keeps_a_bounded_number_of_statements() {
    let db = fresh().await;
    let database = one_session(&db.url).await;
    let mut most = 0;
    for n in 0..512_usize {
        let bit = |bit: usize| n & (1 << bit) != 0;
        let filter = DeliveryFilter {
            statuses: (0..5).filter(|i| bit(*i)).map(|i| SagaStatus::ALL[i]).collect(),
            subscription_id: bit(5).then_some(SubscriptionId(1)),
            event_type: asked("t").filter(|_| bit(6)),
            external_id: asked("x").filter(|_| bit(7)),
            correlation_id: asked("c").filter(|_| bit(8)),
            ..DeliveryFilter::default()
        };
        list(&database, filter).await;
        most = most.max(prepared_by_the_reader(&database).await.unwrap());
    }
    assert!((100..=135).contains(&most), "{most}");
}
