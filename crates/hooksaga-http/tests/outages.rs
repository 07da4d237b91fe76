//! What clients see when the database is away, and when there is too much to do.

use crate::support::TestApi;
use async_trait::async_trait;
use axum::body::Body;
use bytes::Bytes;
use hooksaga_http::ApiParts;
use hooksaga_pipeline::{DeliveryLog, Ingest, IngestLimits, Requeue};
use hooksaga_saga::{DeadLetterId, EventId, KeyId, RedriveId, SagaId, SubscriptionId};
use hooksaga_store::{
    ApiKey, Appended, AuditFilter, AuditRecord, Buried, CancelOutcome, CreateOutcome, DeadLetterDetail,
    DeadLetterFilter, DeadLetterStore, DeadLetterSummary, Delivery, DeliveryDetail, DeliveryFilter,
    EventDetail, EventFilter, EventHead, FailingEndpoints, IngestStore, Inventory, KeyCareStore,
    KeyReaderStore, KeyView, ListQuery, LivingWorker, NewAuditRecord, NewEvent, NewPortalKey, NewRedrive,
    NewSubscription, Page, PageRequest, PortalKeyStore, QueueGauges, ReaderStore, Redrive, RedriveStep,
    RedriveStore, RequeueStep, RequeuedBatch, ResendOutcome, RunningLimits, Seals, SecretRotation, SendAgain,
    SendTest, StartOutcome, Stats, StepLimits, StoreError, StoreResult, Subscription, SubscriptionAdminStore,
    SubscriptionDetail, SubscriptionFilter, SubscriptionPatch, TenantGauges, TenantScope, TestOutcome,
    UpdateOutcome,
};
use http::Request;
use serde_json::json;
use std::{sync::Arc, time::Duration};

/// A database that fails every call in one way.
pub(crate) struct Broken(pub(crate) fn() -> StoreError);

macro_rules! broken {
    ($trait:ident { $($name:ident($($arg:ty),*) -> $result:ty;)+ }) => {
        #[async_trait]
        impl $trait for Broken {
            $(async fn $name(&self, $(_: $arg),*) -> StoreResult<$result> {
                Err((self.0)())
            })+
        }
    };
}

broken!(IngestStore {
    append(&[NewEvent]) -> Vec<Appended>;
    store_payload_limit(u64) -> ();
});
broken!(PortalKeyStore {
    create(&NewPortalKey) -> ApiKey;
    newest(KeyView, PageRequest) -> Page<ApiKey>;
});
broken!(KeyCareStore {
    revoke(KeyId) -> Option<ApiKey>;
    record(&NewAuditRecord) -> ();
});
broken!(KeyReaderStore {
    find(&[u8; 32]) -> Option<ApiKey>;
    note_use(&[KeyId]) -> ();
});
broken!(DeadLetterStore {
    bury(u32) -> Vec<Buried>;
    send_again(&TenantScope, SendAgain) -> ResendOutcome;
    send_test(&TenantScope, SendTest) -> TestOutcome;
    requeue_step(&TenantScope, &RequeueStep) -> RequeuedBatch;
});
broken!(SubscriptionAdminStore {
    create(&NewSubscription, &dyn Seals) -> CreateOutcome;
    update(&TenantScope, SubscriptionId, &SubscriptionPatch) -> UpdateOutcome;
    request_verification(&TenantScope, SubscriptionId, Option<&str>) -> Option<Subscription>;
    delete(&TenantScope, SubscriptionId) -> bool;
    rotate_secret(&TenantScope, &SecretRotation) -> bool;
    secret_key_ids() -> Vec<String>;
});
broken!(RedriveStore {
    start(NewRedrive<'_>, RunningLimits) -> StartOutcome;
    cancel(&TenantScope, RedriveId) -> CancelOutcome;
    advance(StepLimits) -> Option<RedriveStep>;
    catch_up(StepLimits, Option<Duration>) -> Option<RedriveStep>;
    put_off_catch_up(Duration) -> ();
    put_off_redrive() -> ();
    running() -> u64;
});
broken!(ReaderStore {
    events(ListQuery<'_, EventFilter>) -> Page<EventHead>;
    event(&TenantScope, EventId) -> Option<EventDetail>;
    subscriptions(ListQuery<'_, SubscriptionFilter>) -> Page<Subscription>;
    subscription(&TenantScope, SubscriptionId) -> Option<Subscription>;
    callback_urls(&TenantScope, &[SubscriptionId]) -> Vec<(SubscriptionId, String)>;
    subscription_detail(&TenantScope, SubscriptionId) -> Option<SubscriptionDetail>;
    deliveries(ListQuery<'_, DeliveryFilter>) -> Page<Delivery>;
    delivery(&TenantScope, SagaId) -> Option<DeliveryDetail>;
    deliveries_of(&TenantScope, &[SagaId]) -> Vec<Delivery>;
    dead_letters(ListQuery<'_, DeadLetterFilter>) -> Page<DeadLetterSummary>;
    dead_letter(&TenantScope, DeadLetterId) -> Option<DeadLetterDetail>;
    redrives(&TenantScope, PageRequest) -> Page<Redrive>;
    redrive(&TenantScope, RedriveId) -> Option<Redrive>;
    audit(ListQuery<'_, AuditFilter>) -> Page<AuditRecord>;
    failing(&TenantScope, u32) -> FailingEndpoints;
    gauges() -> QueueGauges;
    tenant_gauges(&str) -> TenantGauges;
    stats(&TenantScope) -> Stats;
    stats_in_all(&TenantScope) -> Stats;
    workers() -> Vec<LivingWorker>;
    inventory() -> Inventory;
    ready() -> i64;
});

fn away() -> StoreError {
    StoreError::Unavailable("db-host-7 is gone".to_owned())
}

fn full() -> StoreError {
    StoreError::Unwritable("no space left on db-host-7".to_owned())
}

fn odd() -> StoreError {
    StoreError::Other("column 7 of row secret".to_owned())
}

fn outdated() -> StoreError {
    StoreError::Schema("the schema of db-host-7 is version 1".to_owned())
}

fn break_all(parts: &mut ApiParts, error: fn() -> StoreError) {
    let broken = Arc::new(Broken(error));
    let (ingest, task) = Ingest::start(
        broken.clone(),
        parts.signals.clone(),
        Arc::clone(&parts.metrics),
        IngestLimits::default(),
        DeliveryLog::None,
    );
    tokio::spawn(task.run());
    parts.ingest = ingest;
    parts.keys = broken.clone();
    parts.portal_keys = broken.clone();
    parts.requeue =
        Requeue::new(broken.clone(), 5, parts.signals.clone(), Arc::clone(&parts.metrics), DeliveryLog::None);
    parts.redrives = broken.clone();
    parts.admin = broken.clone();
    parts.probes = hooksaga_http::Probes::new(broken.clone(), Arc::clone(&parts.metrics));
    parts.reader = broken;
}

/// A good request for every route.
fn good_body(method: &str, path: &str) -> String {
    match (method, path) {
        ("POST", "/v1/events") => json!({"event_type": "t", "payload": 1}),
        ("POST", "/v1/events/batch") => json!({"events": [{"event_type": "t", "payload": 1}]}),
        ("POST", "/v1/subscriptions") => json!({"event_type": "t", "callback_url": "https://example.com"}),
        ("POST", "/v1/dead-letters/requeue") => json!({"filter": {}}),
        ("POST", "/v1/redrives") => json!({"kind": "dead_letters", "filter": {}}),
        ("POST", "/v1/portal-sessions") => json!({"tenant": "acme"}),
        _ => json!({}),
    }
    .to_string()
}

#[tokio::test]
async fn every_route_returns_503_while_the_database_is_away() {
    let api = TestApi::with(|parts| break_all(parts, away)).await;
    for (method, path, _) in crate::keys::GUARDED {
        // With a key that has to be looked up.
        api.bare(method, path, &[("authorization", "Bearer hsk_x")], "").await.expect(503);
        if path == "/v1/me" {
            continue; // The root key is known without the database.
        }
        let response =
            api.raw(method, path, &[("content-type", "application/json")], good_body(method, path)).await;
        response.expect(503);
        assert!(!response.text().contains("db-host-7"), "{method} {path}");
    }
}

#[tokio::test]
async fn other_failures_are_told_without_their_details() {
    for (error, status) in [(odd as fn() -> StoreError, 500), (outdated, 503)] {
        let api = TestApi::with(|parts| break_all(parts, error)).await;
        for (method, path, _) in crate::keys::GUARDED.into_iter().filter(|(_, path, _)| *path != "/v1/me") {
            let response =
                api.raw(method, path, &[("content-type", "application/json")], good_body(method, path)).await;
            response.expect(status);
            assert!(!response.text().contains("secret") && !response.text().contains("db-host-7"));
        }
    }
}

#[tokio::test]
async fn a_query_that_took_too_long_is_told_from_a_database_that_is_away() {
    let slow = || StoreError::TooSlow("on db-host-7".to_owned());
    let api = TestApi::with(|parts| parts.reader = Arc::new(Broken(slow))).await;
    for path in
        ["/v1/deliveries?status=Pending", "/v1/events", "/v1/subscriptions", "/v1/dead-letters", "/v1/stats"]
    {
        let response = api.get(path).await;
        let problem = response.expect(503);
        assert_eq!(problem["type"], "urn:hooksaga:problem:query-too-slow", "{path}");
        assert!(problem["detail"].as_str().unwrap().contains("narrow the filter"), "{path}");
        assert_eq!(response.header("retry-after"), "1");
        assert!(!response.text().contains("db-host-7"), "{path}");
    }
}

#[tokio::test]
async fn probes_tell_the_truth_about_the_database() {
    let api = TestApi::with(|parts| break_all(parts, away)).await;
    assert_eq!(api.bare("GET", "/healthz", &[], "").await.status, 200);
    let problem = api.bare("GET", "/readyz", &[], "").await.expect(503);
    assert!(problem["detail"].as_str().unwrap().contains("not reachable"));
    let metrics = api.bare("GET", "/metrics", &[], "").await;
    assert_eq!(metrics.status, 200);
    assert!(metrics.text().contains("hooksaga_http_requests_total"));
    assert!(!metrics.text().contains("hooksaga_queue_depth"));

    let api = TestApi::with(|parts| break_all(parts, outdated)).await;
    let problem = api.bare("GET", "/readyz", &[], "").await.expect(503);
    assert!(problem["detail"].as_str().unwrap().contains("migrate"));
}

#[tokio::test]
async fn a_database_that_takes_no_writes_makes_the_server_unready() {
    let api = TestApi::with(|parts| {
        let (signals, metrics) = (parts.signals.clone(), Arc::clone(&parts.metrics));
        let limits = IngestLimits::default();
        let (ingest, task) =
            Ingest::start(Arc::new(Broken(full)), signals, metrics, limits, DeliveryLog::None);
        tokio::spawn(task.run());
        parts.ingest = ingest;
    })
    .await;
    assert_eq!(api.bare("GET", "/readyz", &[], "").await.status, 200, "it can be read, and nobody wrote yet");
    let refused = api.post("/v1/events", &json!({"event_type": "t", "payload": 1})).await;
    assert!(!refused.header("retry-after").is_empty());
    let problem = refused.expect(503);
    assert!(problem["detail"].as_str().unwrap().contains("takes no writes"), "{problem}");
    let problem = api.bare("GET", "/readyz", &[], "").await.expect(503);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("disk is full") && !detail.contains("db-host-7"), "{detail}");
    assert_eq!(api.bare("GET", "/healthz", &[], "").await.status, 200);
}

#[tokio::test]
async fn too_many_events_are_turned_away() {
    /// A database that never comes to an end.
    struct Stuck;

    #[async_trait]
    impl IngestStore for Stuck {
        async fn append(&self, _: &[NewEvent]) -> StoreResult<Vec<Appended>> {
            std::future::pending().await
        }

        async fn store_payload_limit(&self, _: u64) -> StoreResult<()> {
            Ok(())
        }
    }

    let api = TestApi::with(|parts| {
        let limits = IngestLimits { queued_events: 2, batch_events: 1, ..IngestLimits::default() };
        let (signals, metrics) = (parts.signals.clone(), Arc::clone(&parts.metrics));
        let (ingest, task) = Ingest::start(Arc::new(Stuck), signals, metrics, limits, DeliveryLog::None);
        tokio::spawn(task.run());
        parts.ingest = ingest;
    })
    .await;
    let event = json!({"event_type": "t", "payload": 1});
    let mut waiting = Vec::new();
    loop {
        let response = tokio::time::timeout(Duration::from_millis(300), api.post("/v1/events", &event));
        match response.await {
            Ok(response) => {
                response.expect(503);
                break;
            }
            // It waits for its commit: keep one like it waiting, and try the next.
            Err(_) => {
                let app = api.app.clone();
                let request = Request::post("/v1/events")
                    .header("authorization", format!("Bearer {}", crate::support::ROOT_KEY))
                    .header("content-type", "application/json")
                    .body(Body::from(event.to_string()))
                    .unwrap();
                waiting.push(tokio::spawn(tower::ServiceExt::oneshot(app, request)));
            }
        }
        assert!(waiting.len() < 50, "memory is bounded");
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A body without a length is cut off at the limit, not collected.
#[tokio::test]
async fn an_endless_body_is_refused() {
    struct Endless;

    impl hyper::body::Body for Endless {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
            std::task::Poll::Ready(Some(Ok(hyper::body::Frame::data(Bytes::from_static(&[b' '; 65536])))))
        }
    }

    let api = TestApi::new().await;
    for (path, key) in [
        ("/v1/events", crate::support::ROOT_KEY),
        ("/v1/events/batch", crate::support::ROOT_KEY),
        ("/v1/events", "wrong"),
    ] {
        let request = Request::post(path)
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json")
            .body(Body::new(Endless))
            .unwrap();
        api.send(request).await.expect(if key == "wrong" { 401 } else { 413 });
    }
}

/// A body that never comes to an end holds its place for a while only.
#[tokio::test]
async fn a_body_that_comes_too_slowly_is_given_up() {
    /// A byte now and then.
    struct Trickle(Duration, std::pin::Pin<Box<tokio::time::Sleep>>);

    impl hyper::body::Body for Trickle {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
            std::task::ready!(self.1.as_mut().poll(context));
            let next = tokio::time::Instant::now() + self.0;
            self.1.as_mut().reset(next);
            std::task::Poll::Ready(Some(Ok(hyper::body::Frame::data(Bytes::from_static(b" ")))))
        }
    }

    let api = TestApi::new().await;
    // From here on nothing waits for anything but the clock, which may therefore run ahead.
    tokio::time::pause();
    for (pause, patience) in [(3600, 31), (10, 121)] {
        let pause = Duration::from_secs(pause);
        let request = Request::post("/v1/events")
            .header("authorization", format!("Bearer {}", crate::support::ROOT_KEY))
            .header("content-type", "application/json")
            .body(Body::new(Trickle(pause, Box::pin(tokio::time::sleep(pause)))))
            .unwrap();
        let started = tokio::time::Instant::now();
        api.send(request).await.expect(408);
        // The refusal lingers for a moment, in case the client still sends.
        assert!(started.elapsed() < Duration::from_secs(patience + 6));
    }
}

#[tokio::test]
async fn people_get_a_page_that_can_be_read_while_the_database_is_away() {
    let api = TestApi::with(|parts| break_all(parts, away)).await;
    let form = [("content-type", "application/x-www-form-urlencoded"), ("sec-fetch-site", "same-origin")];
    let signed_in = api.bare("POST", "/sign-in", &form, format!("key={}", crate::support::ROOT_KEY)).await;
    assert_eq!(signed_in.status, 303, "the root key needs no database");
    let cookie = signed_in.header("set-cookie").split(';').next().unwrap();
    for path in
        ["/", "/events", "/events/1", "/deliveries/1", "/subscriptions", "/dead-letters", "/search?q=evt_1"]
    {
        let page = api.bare("GET", path, &[("cookie", cookie)], "").await;
        assert_eq!(page.status, 503, "{path}");
        assert_eq!(page.header("retry-after"), "1");
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
        assert!(page.header("content-security-policy").starts_with("default-src 'none'"));
        assert!(page.text().contains("The database is not available"), "{path}: {}", page.text());
        assert!(!page.text().contains("db-host-7"), "{path}");
    }
    let other = api.bare("POST", "/sign-in", &form, "key=hsk_x").await;
    assert_eq!(other.status, 503);
}

#[tokio::test]
async fn a_filter_that_is_too_slow_is_no_outage() {
    let slow = || StoreError::TooSlow("on db-host-7".to_owned());
    let api = TestApi::with(|parts| parts.reader = Arc::new(Broken(slow))).await;
    let form = [("content-type", "application/x-www-form-urlencoded"), ("sec-fetch-site", "same-origin")];
    let signed_in = api.bare("POST", "/sign-in", &form, format!("key={}", crate::support::ROOT_KEY)).await;
    let cookie = signed_in.header("set-cookie").split(';').next().unwrap();
    for list in ["/events", "/deliveries", "/subscriptions", "/dead-letters"] {
        let page = api.bare("GET", &format!("{list}?event_type=rare"), &[("cookie", cookie)], "").await;
        assert_eq!(page.status, 200, "{list}");
        // It stays where it is, with the form open, so that the filter can be narrowed.
        for said in ["narrow the filter", "<details class=\"filter\" open>", "value=\"rare\""] {
            assert!(page.text().contains(said), "{list} {said}: {}", page.text());
        }
        assert!(!page.text().contains("not available") && !page.text().contains("db-host-7"), "{list}");
    }
    for path in ["/", "/events/1", "/search?q=1"] {
        let page = api.bare("GET", path, &[("cookie", cookie)], "").await;
        assert_eq!(page.status, 503, "{path}");
        assert!(page.text().contains("The query took too long"), "{path}: {}", page.text());
        assert!(!page.text().contains("not available"), "{path}: {}", page.text());
    }
}
