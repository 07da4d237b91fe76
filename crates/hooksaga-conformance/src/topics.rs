//! Topics: which event types a subscription wants, and the index that routing looks them up in.

use super::{
    TestDatabase,
    fixture::{
        ALL, DEFAULT_LIMIT, MANY, URL, append, create, new_event, new_subscription, only, sealed,
        some_events, topics, verified,
    },
    rows::count,
};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{CreateOutcome, Stores, SubscriptionPatch, UpdateOutcome};

/// The subscriptions that an event of this type reaches, in the order of their ids.
async fn reached(stores: &Stores, event_type: &str) -> Vec<SubscriptionId> {
    append(stores, new_event(event_type)).await;
    let routed = only(stores.router.route(some_events(MANY), DEFAULT_LIMIT).await.unwrap().events);
    assert!(routed.complete);
    let mut ids: Vec<_> = routed.sagas.iter().map(|saga| saga.subscription_id).collect();
    ids.sort_unstable();
    ids
}

/// The rows of the routing index: tenant, topic and subscription.
async fn index(db: &dyn TestDatabase) -> Vec<(String, String, SubscriptionId)> {
    let sql =
        "SELECT tenant, topic, subscription_id FROM subscription_topics ORDER BY subscription_id, topic";
    let rows = db.query_text(sql).await.unwrap();
    let row = |row: Vec<Option<String>>| {
        let [tenant, topic, id] = <[Option<String>; 3]>::try_from(row).unwrap().map(Option::unwrap);
        (tenant, topic, SubscriptionId(id.parse().unwrap()))
    };
    rows.into_iter().map(row).collect()
}

fn to(names: &str) -> SubscriptionPatch {
    SubscriptionPatch { topics: Some(topics(names)), ..SubscriptionPatch::default() }
}

pub async fn a_topic_is_a_type_a_prefix_or_everything(db: &dyn TestDatabase) {
    let stores = db.stores();
    let exact = verified(&stores, "a.b", URL).await;
    let prefix = verified(&stores, "a.*", URL).await;
    let deeper = verified(&stores, "a.b.*", URL).await;
    let other = verified(&stores, "b.*", URL).await;
    let any = verified(&stores, "*", URL).await;
    for (event_type, expected) in [
        ("a.b", vec![exact, prefix, any]),
        ("a.b.c", vec![prefix, deeper, any]),
        ("a.b.c.d", vec![prefix, deeper, any]),
        ("a.bc", vec![prefix, any]),
        ("a.", vec![prefix, any]),
        ("a", vec![any]),
        ("ab.c", vec![any]),
        ("A.b", vec![any]),
        ("b.a", vec![other, any]),
        (".a.b", vec![any]),
        ("a-b", vec![any]),
    ] {
        assert_eq!(reached(&stores, event_type).await, expected, "{event_type}");
    }
}

pub async fn several_topics_that_match_make_one_saga(db: &dyn TestDatabase) {
    let stores = db.stores();
    let many = verified(&stores, "*,order.*,order.paid", URL).await;
    let others = verified(&stores, "invoice.*,order.created", URL).await;
    assert_eq!(reached(&stores, "order.paid").await, [many]);
    assert_eq!(reached(&stores, "order.created").await, [many, others]);
    assert_eq!(reached(&stores, "invoice.sent").await, [many, others]);
    assert_eq!(count(db, "webhook_delivery_sagas").await, 5);
}

pub async fn a_changed_list_of_topics_is_routed_by_at_once(db: &dyn TestDatabase) {
    let stores = db.stores();
    let id = verified(&stores, "a.*,b", URL).await;
    assert_eq!(reached(&stores, "b").await, [id]);
    stores.admin.update(&ALL, id, &to("a.x,c")).await.unwrap();
    for (event_type, expected) in [("b", vec![]), ("a.y", vec![]), ("a.x", vec![id]), ("c", vec![id])] {
        assert_eq!(reached(&stores, event_type).await, expected, "{event_type}");
    }
}

pub async fn the_routing_index_is_in_step_with_the_subscriptions(db: &dyn TestDatabase) {
    let stores = db.stores();
    let row = |topic: &str, id| ("default".to_owned(), topic.to_owned(), id);
    let one = create(&stores, &new_subscription("a,b.*", URL)).await;
    assert_eq!(one.event_type, "a,b.*");
    let two = create(&stores, &new_subscription("*", URL)).await.id;
    let both = [row("a", one.id), row("b.*", one.id), row("*", two)];
    assert_eq!(index(db).await, both);

    let again = stores.admin.create(&new_subscription("a,b.*", URL), &sealed(2)).await.unwrap();
    assert_eq!(again, CreateOutcome::Exists(one.id));
    let taken = stores.admin.update(&ALL, two, &to("a,b.*")).await.unwrap();
    assert_eq!(taken, UpdateOutcome::Exists(one.id));
    stores.admin.update(&ALL, one.id, &to("a,b.*")).await.unwrap();
    let paused = SubscriptionPatch { active: Some(false), ..SubscriptionPatch::default() };
    stores.admin.update(&ALL, one.id, &paused).await.unwrap();
    assert_eq!(index(db).await, both, "nothing of this changes a topic");

    let UpdateOutcome::Updated(changed) = stores.admin.update(&ALL, one.id, &to("a,c,d.e.*")).await.unwrap()
    else {
        panic!("not updated")
    };
    assert_eq!(changed.event_type, "a,c,d.e.*");
    assert_eq!(index(db).await, [row("a", one.id), row("c", one.id), row("d.e.*", one.id), row("*", two)]);
}

pub async fn fifty_topics_of_a_thousand_characters_fit(db: &dyn TestDatabase) {
    let stores = db.stores();
    // 50 topics of 19 characters, and one comma less.
    let names: Vec<_> = (10..60).map(|n| format!("topic.number.{n}.abc")).collect();
    let text = names.join(",");
    assert_eq!(text.len(), 999);
    let url = format!("https://receiver.example/{}", "x".repeat(475));
    let id = verified(&stores, &text, &url).await;
    let shown = stores.reader.subscription(&ALL, id).await.unwrap().expect("it is there");
    assert_eq!(shown.event_type, text);
    assert_eq!(count(db, "subscription_topics").await, 50);
    for name in [&names[0], &names[49]] {
        assert_eq!(reached(&stores, name).await, [id]);
    }
    let again = stores.admin.create(&new_subscription(&text, &url), &sealed(2)).await.unwrap();
    assert_eq!(again, CreateOutcome::Exists(id), "however long its parts are");
    let longest = format!("{}.*", "t".repeat(98));
    assert_eq!(longest.len(), 100);
    let id = verified(&stores, &longest, URL).await;
    assert_eq!(reached(&stores, &format!("{}.x", "t".repeat(98))).await, [id]);
}
