//! Events that very many subscriptions want: while they are routed, step by step, nobody else waits.

use crate::support::*;
use std::time::Instant;

on_every_back_end! {
    an_event_that_few_want_does_not_wait_for_a_crowd,
}

/// So many subscriptions to the crowd's type, and events of it: `HOOKSAGA_CROWD=4000x1000` is the size of the table in
/// docs/RELIABILITY.md.
fn size() -> (usize, usize) {
    let text = std::env::var("HOOKSAGA_CROWD").unwrap_or_else(|_| "60x300".to_owned());
    let (subscriptions, events) = text.split_once('x').expect("subscriptions x events");
    (subscriptions.parse().unwrap(), events.parse().unwrap())
}

async fn waiting(api: &Api) -> u64 {
    api.get("/v1/stats").await.expect(200)["queue_depths"]["unrouted_events"].as_u64().unwrap()
}

/// Nobody delivers here: what is routed stays where it is.
#[expect(clippy::print_stdout, reason = "the figures of a run, for whoever asked for it")]
async fn an_event_that_few_want_does_not_wait_for_a_crowd(installation: Installation) {
    let (subscriptions, events) = size();
    let installation =
        installation.with("HOOKSAGA_CALLBACKS_ALLOW_TRUSTED", "true").with("HOOKSAGA_LOG_DELIVERIES", "none");
    let front = installation.serve_only("api,verifier").await;
    let api = front.api();
    let mut ids = vec![subscribe(&api, "small", "http://127.0.0.1:9/small").await];
    for n in 0..subscriptions {
        ids.push(subscribe(&api, "crowd", &format!("http://127.0.0.1:9/{n}")).await);
    }
    for id in ids {
        eventually("it is vouched for", || async {
            api.subscription(id).await["verified"].as_bool().unwrap().then_some(())
        })
        .await;
    }
    for _ in (0..events).step_by(100) {
        let batch = vec![json!({"event_type": "crowd", "payload": 1}); 100];
        api.post("/v1/events/batch", &json!({"events": batch})).await.expect(200);
    }
    // The embedded database has one process: the router comes with it.
    let (api, router) = if installation.database_url().is_some() {
        (api, (Some(front), installation.serve_only("router").await))
    } else {
        assert_eq!(front.terminate().await, Some(0));
        let server = installation.serve_only("api,router").await;
        (server.api(), (None, server))
    };
    let began = Instant::now();
    let (mut slowest_post, mut slowest_routed, mut passed) = (Duration::ZERO, Duration::ZERO, 0);
    while passed < 3 || (waiting(&api).await > 0 && began.elapsed() < Duration::from_secs(60)) {
        let posted = Instant::now();
        let id = api.event("small", &json!(passed)).await;
        slowest_post = slowest_post.max(posted.elapsed());
        eventually("it is routed", || async {
            let event = api.get(&format!("/v1/events/{id}")).await;
            event.text().contains(r#""routed":true"#).then_some(())
        })
        .await;
        slowest_routed = slowest_routed.max(posted.elapsed());
        passed += 1;
        if passed <= 3 {
            assert!(
                waiting(&api).await > 0,
                "the crowd was routed first, {passed} small events waited for it"
            );
        }
    }
    eventually("the crowd is routed, too", || async {
        (waiting(&api).await == 0 || began.elapsed() > Duration::from_secs(60)).then_some(())
    })
    .await;
    println!(
        "{subscriptions} subscriptions x {events} events: {passed} small events meanwhile, the slowest routed after \
         {slowest_routed:.2?}, its post answered after {slowest_post:.2?}; {} waiting after {:.0?}",
        waiting(&api).await,
        began.elapsed()
    );
    assert!(slowest_post < Duration::from_secs(1), "a post took {slowest_post:?}");
    assert!(slowest_routed < Duration::from_secs(3), "routed after {slowest_routed:?}");
    drop(router);
}

async fn subscribe(api: &Api, topics: &str, url: &str) -> i64 {
    let new = json!({"event_type": topics, "callback_url": url});
    let id = api.post("/v1/subscriptions", &new).await.expect(201)["id"].as_i64().unwrap();
    let vouched = api.post(&format!("/v1/subscriptions/{id}/verify"), &json!({"trusted": true})).await;
    vouched.expect(202);
    id
}
