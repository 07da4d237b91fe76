//! Events that very many subscriptions want: while they are routed, step by step, nobody else waits.

use crate::support::*;
use std::time::Instant;

on_every_back_end! {
    an_event_that_few_want_does_not_wait_for_a_crowd,
    events_amid_a_crowd_do_not_wait_for_it_and_it_gets_on,
}

/// So many subscriptions to the crowd's type, and events of it. `HOOKSAGA_CROWD=4000x1000` is the size of the figures in
/// docs/RELIABILITY.md; then it goes on for a minute, or until all is routed.
fn size() -> (usize, usize, Duration) {
    let asked = std::env::var("HOOKSAGA_CROWD").ok();
    let text = asked.as_deref().unwrap_or("60x600");
    let (subscriptions, events) = text.split_once('x').expect("subscriptions x events");
    let lasting = Duration::from_secs(if asked.is_some() { 60 } else { 0 });
    (subscriptions.parse().unwrap(), events.parse().unwrap(), lasting)
}

/// Subscriptions that want the events of a middle size.
const MIDDLE: usize = 30;

async fn waiting(api: &Api) -> u64 {
    api.get("/v1/stats").await.expect(200)["queue_depths"]["unrouted_events"].as_u64().unwrap()
}

/// A server with one subscription to `small` and so many to `crowd`, thirty of which are to `middle` as well. Hardly
/// anything is delivered here: what is routed waits.
async fn crowded(installation: Installation, subscriptions: usize) -> (Installation, Server) {
    let installation = installation
        .with("HOOKSAGA_CALLBACKS_ALLOW_TRUSTED", "true")
        .with("HOOKSAGA_WORKER_CONCURRENCY", "1")
        .with("HOOKSAGA_RETRY_BASE_DELAY", "1h")
        .with("HOOKSAGA_RETRY_MAX_DELAY", "1h")
        .with("HOOKSAGA_LOG_DELIVERIES", "none");
    // The embedded database has one process.
    let server = match installation.database_url() {
        Some(_) => installation.serve_only("api,verifier,router").await,
        None => installation.serve().await,
    };
    let api = server.api();
    let mut ids = vec![subscribe(&api, &["small"], "http://127.0.0.1:9/small").await];
    for n in 0..subscriptions {
        // Hosts of their own: no host is asked too often.
        let url = format!("http://127.0.{}.{}:9/", 1 + n / 250, 1 + n % 250);
        ids.push(subscribe(&api, if n < MIDDLE { &["crowd", "middle"] } else { &["crowd"] }, &url).await);
    }
    for id in ids {
        eventually("it is vouched for", || async {
            api.subscription(id).await["verified"].as_bool().unwrap().then_some(())
        })
        .await;
    }
    // Its database goes with it.
    (installation, server)
}

async fn is_routed(api: &Api, id: i64) {
    eventually("it is routed", || async {
        let event = api.get(&format!("/v1/events/{id}")).await;
        event.text().contains(r#""routed":true"#).then_some(())
    })
    .await;
}

/// In one batch, with the crowd before and behind them.
async fn events_amid_a_crowd_do_not_wait_for_it_and_it_gets_on(installation: Installation) {
    const CROWD: usize = 800;
    let (_installation, server) = crowded(installation, 60).await;
    let api = server.api();
    let event = |event_type: &str| json!({"event_type": event_type, "payload": 1});
    let mut batch = vec![event("crowd"); CROWD];
    batch.insert(CROWD / 2, event("small"));
    batch.push(event("middle"));
    batch.extend(vec![event("crowd"); 120]);
    let answer = api.post("/v1/events/batch", &json!({"events": batch})).await.expect(200);
    let posted = Instant::now();
    let id = |at: usize| answer["results"][at]["id"].as_i64().unwrap();
    for amid in [id(CROWD / 2), id(CROWD + 1)] {
        is_routed(&api, amid).await;
    }
    let took = posted.elapsed();
    let left = waiting(&api).await;
    assert!(left > CROWD as u64 / 2, "they waited for the crowd: {left} events are left after {took:?}");
    assert!(took < Duration::from_secs(2), "routed after {took:?}");
    // Small ones keep coming; the crowd gets on all the same.
    let mut small = 0;
    while waiting(&api).await + 60 > left {
        assert!(posted.elapsed() < Duration::from_secs(60), "the crowd waits for {small} small events");
        is_routed(&api, api.event("small", &json!(small)).await).await;
        small += 1;
    }
}

/// Small events that come behind the crowd.
#[expect(clippy::print_stdout, reason = "the figures of a run, for whoever asked for it")]
async fn an_event_that_few_want_does_not_wait_for_a_crowd(installation: Installation) {
    let (subscriptions, events, lasting) = size();
    let (_installation, server) = crowded(installation, subscriptions).await;
    let api = server.api();
    let crowd = vec![json!({"event_type": "crowd", "payload": 1}); events];
    api.post("/v1/events/batch", &json!({"events": crowd})).await.expect(200);
    let began = Instant::now();
    let (mut slowest_post, mut slowest_routed, mut passed) = (Duration::ZERO, Duration::ZERO, 0);
    while passed < 3 || (began.elapsed() < lasting && waiting(&api).await > 0) {
        let posted = Instant::now();
        let id = api.event("small", &json!(passed)).await;
        slowest_post = slowest_post.max(posted.elapsed());
        is_routed(&api, id).await;
        slowest_routed = slowest_routed.max(posted.elapsed());
        passed += 1;
        if passed <= 3 {
            assert!(
                waiting(&api).await > 0,
                "the crowd was routed first; {passed} small events waited for it"
            );
        }
    }
    println!(
        "{subscriptions} subscriptions x {events} events: {passed} small events meanwhile, the slowest routed after \
         {slowest_routed:.2?}, the slowest post {slowest_post:.2?}; {} events of the crowd wait after {:.0?}",
        waiting(&api).await,
        began.elapsed()
    );
    assert!(slowest_post < Duration::from_secs(1), "a post took {slowest_post:?}");
    assert!(slowest_routed < Duration::from_secs(3), "routed after {slowest_routed:?}");
}

async fn subscribe(api: &Api, topics: &[&str], url: &str) -> i64 {
    let new = json!({"event_types": topics, "callback_url": url});
    let id = api.post("/v1/subscriptions", &new).await.expect(201)["id"].as_i64().unwrap();
    let vouched = api.post(&format!("/v1/subscriptions/{id}/verify"), &json!({"trusted": true})).await;
    vouched.expect(202);
    id
}
