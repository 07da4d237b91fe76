//! Appending events: deduplication, order of the results, and what concurrent writers see.

use super::{
    TestDatabase,
    fixture::{
        DEFAULT_LIMIT, MANY, TYPE, append, append_many, correlation, external_id, new_event, only, route,
        some_events, verified,
    },
    rows::{all_rows, count, db_now, ids},
};
use hooksaga_saga::{EventId, ExternalId};
use hooksaga_store::{Appended, NewEvent};
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinSet;

fn external(type_name: &str, payload: &str, id: &str) -> NewEvent {
    NewEvent {
        payload: Arc::from(payload),
        external_id: Some(external_id(id)),
        correlation_id: correlation(&format!("correlation-of-{id}")),
        ..new_event(type_name)
    }
}

pub async fn an_event_is_appended_and_queued_for_routing(db: &dyn TestDatabase) {
    let before = db_now(db).await;
    let head = append(&db.stores(), external(TYPE, r#"{"a":1}"#, "x-1")).await;
    assert_eq!(head.event_type, TYPE);
    assert_eq!(head.external_id.as_deref(), Some("x-1"));
    assert_eq!(head.correlation_id, "correlation-of-x-1");
    assert!(head.created_at.since(before) < Duration::from_secs(60), "by the database's clock");
    assert_eq!(ids(db, "SELECT event_id FROM unrouted_events").await, [head.id.0]);
    let stored = only(db.query_text("SELECT event_type, payload, external_id FROM events").await.unwrap());
    assert_eq!(stored, [TYPE, r#"{"a":1}"#, "x-1"].map(|text| Some(text.to_owned())));
}

pub async fn an_empty_batch_is_nothing(db: &dyn TestDatabase) {
    assert_eq!(db.stores().ingest.append(&[]).await.unwrap(), []);
    assert_eq!(count(db, "events").await, 0);
}

pub async fn the_same_content_again_returns_the_original(db: &dyn TestDatabase) {
    let stores = db.stores();
    let first = append(&stores, external(TYPE, "[1]", "x-1")).await;
    let again = NewEvent { correlation_id: correlation("another"), ..external(TYPE, "[1]", "x-1") };
    for _ in 0..2 {
        let answer = only(stores.ingest.append(std::slice::from_ref(&again)).await.unwrap());
        assert_eq!(answer, Appended::Duplicate(first.clone()));
    }
    assert_eq!(count(db, "events").await, 1);
    assert_eq!(count(db, "unrouted_events").await, 1);
}

pub async fn a_duplicate_of_a_routed_event_is_not_queued_again(db: &dyn TestDatabase) {
    let stores = db.stores();
    append(&stores, external(TYPE, "[1]", "x-1")).await;
    route(&stores).await;
    stores.ingest.append(&[external(TYPE, "[1]", "x-1")]).await.unwrap();
    assert_eq!(count(db, "unrouted_events").await, 0);
}

pub async fn other_content_under_the_same_external_id_is_a_conflict(db: &dyn TestDatabase) {
    let stores = db.stores();
    let first = append(&stores, external(TYPE, r#"{"a":1}"#, "x-1")).await;
    let before = all_rows(db, "events").await;
    for (event_type, payload) in [
        (TYPE, r#"{"a":2}"#),
        (TYPE, r#"{"a": 1}"#),
        (TYPE, r#"{"A":1}"#),
        (TYPE, "{\"a\":1}\n"),
        ("order.Created", r#"{"a":1}"#),
        ("order", r#"{"a":1}"#),
    ] {
        let answer = only(stores.ingest.append(&[external(event_type, payload, "x-1")]).await.unwrap());
        assert_eq!(answer, Appended::Conflict { existing: first.id }, "{event_type} {payload:?}");
    }
    assert_eq!(all_rows(db, "events").await, before);
    assert_eq!(count(db, "unrouted_events").await, 1);
}

pub async fn external_ids_differ_by_case(db: &dyn TestDatabase) {
    let stores = db.stores();
    for id in ["abc", "ABC", "abC", "abc."] {
        append(&stores, external(TYPE, "1", id)).await;
    }
    assert_eq!(count(db, "events").await, 4);
}

pub async fn events_without_an_external_id_never_conflict(db: &dyn TestDatabase) {
    let stores = db.stores();
    let first = append_many(&stores, 3).await;
    let second = append_many(&stores, 2).await;
    let distinct: HashSet<EventId> = first.into_iter().chain(second).collect();
    assert_eq!(distinct.len(), 5);
    assert_eq!(count(db, "events WHERE external_id IS NULL").await, 5);
}

pub async fn an_external_id_twice_in_a_batch_is_created_once(db: &dyn TestDatabase) {
    let batch = [
        external(TYPE, "1", "same"),
        external(TYPE, "1", "same"),
        external(TYPE, "1", "other"),
        external(TYPE, "2", "other"),
        external("another.type", "1", "same"),
    ];
    let answers = db.stores().ingest.append(&batch).await.unwrap();
    let [Appended::Created(same), Appended::Duplicate(again), Appended::Created(other), rest @ ..] =
        answers.as_slice()
    else {
        panic!("{answers:?}")
    };
    assert_eq!(same, again);
    assert_eq!(rest, [Appended::Conflict { existing: other.id }, Appended::Conflict { existing: same.id }]);
    assert_eq!(count(db, "events").await, 2);
    assert_eq!(count(db, "unrouted_events").await, 2);
}

pub async fn results_come_in_order_and_a_conflict_leaves_its_neighbours_alone(db: &dyn TestDatabase) {
    let stores = db.stores();
    let taken = append(&stores, external(TYPE, "1", "m")).await;
    let batch = [
        external("type.z", "1", "z"),
        external(TYPE, "other", "m"),
        new_event("type.null"),
        external("type.a", "1", "a"),
        external(TYPE, "1", "m"),
        external("type.b", "1", "b"),
    ];
    let answers = stores.ingest.append(&batch).await.unwrap();
    assert_eq!(answers.len(), batch.len());
    assert_eq!(answers[1], Appended::Conflict { existing: taken.id });
    assert_eq!(answers[4], Appended::Duplicate(taken));
    for i in [0, 2, 3, 5] {
        let Appended::Created(head) = &answers[i] else { panic!("{i}: {:?}", answers[i]) };
        assert_eq!(head.event_type, batch[i].event_type.as_str());
        assert_eq!(head.external_id.as_deref(), batch[i].external_id.as_ref().map(ExternalId::as_str));
        let sql = format!("SELECT event_type FROM events WHERE id = {}", head.id);
        let stored = only(only(db.query_text(&sql).await.unwrap()));
        assert_eq!(stored.as_deref(), Some(batch[i].event_type.as_str()));
    }
    assert_eq!(count(db, "events").await, 5);
}

pub async fn a_thousand_events_go_into_one_batch(db: &dyn TestDatabase) {
    let stores = db.stores();
    let batch: Vec<_> = (0..1000)
        .map(|n| match n % 2 {
            0 => external(TYPE, &format!("{{\"n\":{n}}}"), &format!("x-{n}")),
            _ => NewEvent { correlation_id: correlation(&format!("c-{n}")), ..new_event(TYPE) },
        })
        .collect();
    let answers = stores.ingest.append(&batch).await.unwrap();
    for (event, answer) in batch.iter().zip(&answers) {
        let Appended::Created(head) = answer else { panic!("{answer:?}") };
        assert_eq!(head.external_id.as_deref(), event.external_id.as_ref().map(ExternalId::as_str));
        assert_eq!(head.correlation_id, event.correlation_id.as_str());
    }
    assert_eq!(count(db, "events").await, 1000);
    assert_eq!(count(db, "unrouted_events").await, 1000);

    let again = stores.ingest.append(&batch).await.unwrap();
    let duplicates = again.iter().filter(|answer| matches!(answer, Appended::Duplicate(_))).count();
    assert_eq!(duplicates, 500);
}

pub async fn many_writers_of_one_external_id_create_one_event(db: &dyn TestDatabase) {
    let instances = [db.stores(), db.second_instance().await];
    let mut tasks = JoinSet::new();
    for n in 0..16_usize {
        let stores = instances[n % 2].clone();
        // Half of the writers name the ids in the opposite order, which could deadlock.
        let mut batch: Vec<_> = (0..20).map(|id| external(TYPE, "1", &format!("x-{id:02}"))).collect();
        if n % 4 < 2 {
            batch.reverse();
        }
        tasks.spawn(async move { stores.ingest.append(&batch).await.unwrap() });
    }
    let answers = tasks.join_all().await.concat();
    let created = answers.iter().filter(|answer| matches!(answer, Appended::Created(_))).count();
    let duplicates = answers.iter().filter(|answer| matches!(answer, Appended::Duplicate(_))).count();
    assert_eq!((created, duplicates), (20, 15 * 20));
    assert_eq!(count(db, "events").await, 20);
    assert_eq!(count(db, "unrouted_events").await, 20);
}

pub async fn events_that_commit_out_of_order_are_all_routed_once_while_routers_run(db: &dyn TestDatabase) {
    const WRITERS: usize = 8;
    const BATCHES: usize = 12;
    let instances = [db.stores(), db.second_instance().await];
    verified(&instances[0], TYPE, "https://one.example/").await;
    verified(&instances[0], TYPE, "https://two.example/").await;

    let done = Arc::new(AtomicBool::new(false));
    let mut routers = JoinSet::new();
    for stores in instances.clone() {
        let done = Arc::clone(&done);
        routers.spawn(async move {
            let mut routed = 0;
            loop {
                let finished = done.load(Ordering::SeqCst);
                let events = stores.router.route(some_events(7), DEFAULT_LIMIT).await.unwrap().events;
                routed += events.len();
                match (events.is_empty(), finished) {
                    (true, true) => return routed,
                    (true, false) => tokio::task::yield_now().await,
                    (false, _) => {}
                }
            }
        });
    }
    let mut writers = JoinSet::new();
    for n in 0..WRITERS {
        let stores = instances[n % 2].clone();
        writers.spawn(async move {
            for size in 1..=BATCHES {
                append_many(&stores, size).await;
            }
        });
    }
    writers.join_all().await;
    done.store(true, Ordering::SeqCst);
    routers.join_all().await;
    // A router may have found an empty queue, because the rows were locked by the other one just before it gave up.
    instances[0].router.route(some_events(MANY), DEFAULT_LIMIT).await.unwrap();

    let events = i64::try_from(WRITERS * BATCHES * (BATCHES + 1) / 2).unwrap();
    assert_eq!(count(db, "events").await, events);
    assert_eq!(count(db, "unrouted_events").await, 0);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 2 * events);
    let odd = "SELECT event_id FROM webhook_delivery_sagas GROUP BY event_id HAVING count(*) <> 2";
    assert_eq!(ids(db, odd).await, [] as [i64; 0]);
}
