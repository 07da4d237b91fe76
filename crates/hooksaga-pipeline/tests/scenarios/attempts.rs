//! What an attempt tells of itself, and what an endpoint says about the next one.

use crate::support::{ALL, PAGE, Pipeline, World};
use hooksaga_saga::{ErrorCode, JobStatus, RetryPolicy, SagaStatus, Timestamp};
use hooksaga_store::{DeadLetterFilter, DeliveryDetail, SubscriptionPatch};
use hooksaga_testkit::receiver::Behaviour;
use std::time::{Duration, UNIX_EPOCH};

/// No wait worth mentioning, unless an endpoint asks for one.
const PATIENT: RetryPolicy =
    RetryPolicy { base_delay: Duration::from_millis(1), max_delay: Duration::from_secs(7200) };

async fn database_now(world: &World) -> Timestamp {
    world.stores.reader.stats(&ALL).await.unwrap().now
}

#[tokio::test]
async fn an_attempt_says_when_it_was_sent_and_where() {
    let world = World::new().await;
    let id = world.subscribe("a", "/old").await;
    world.receiver.answer("/old", [Behaviour::Slow(Duration::from_millis(20), 500)]);
    world.append("a", 1).await;
    let pipeline = Pipeline::new(&world);
    pipeline.round().await.unwrap();
    let after_first = database_now(&world).await;
    let moved = SubscriptionPatch { callback_url: Some(world.url("/new")), ..SubscriptionPatch::default() };
    world.patch(id, moved).await;
    world.verify().await;
    pipeline.settle().await;
    let after_second = database_now(&world).await;

    let detail = world.delivery().await;
    let [first, second] = detail.attempts.as_slice() else { panic!("{:?}", detail.attempts) };
    assert_eq!(first.callback_url, Some(world.receiver.url("/old")), "not where it would go now");
    assert_eq!(second.callback_url, Some(world.receiver.url("/new")));
    let (first_start, second_start) = (first.started_at.unwrap(), second.started_at.unwrap());
    assert!(first.attempt_at <= first_start && first_start <= after_first);
    assert!(after_first <= second_start && second_start <= after_second);
    assert!(after_first.since(first_start) >= Duration::from_millis(20), "it began before it ended");
}

/// One attempt, which the endpoint answers like this.
async fn after_one(answer: Behaviour, policy: RetryPolicy) -> DeliveryDetail {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    world.receiver.answer("/hook", [answer]);
    world.append("a", 1).await;
    Pipeline::with_policy(&world, policy).round().await.unwrap();
    world.delivery().await
}

/// How long after the attempt's start the next one may begin.
fn wait(detail: &DeliveryDetail) -> Duration {
    assert_eq!(detail.delivery.status, SagaStatus::PendingRetry);
    detail.delivery.next_attempt_at.since(detail.attempts[0].started_at.unwrap())
}

#[tokio::test]
async fn an_endpoint_that_asks_for_two_seconds_gets_them() {
    let world = World::new().await;
    world.subscribe("a", "/hook").await;
    world.receiver.answer("/hook", [Behaviour::RetryAfter(503, "2".to_owned()), Behaviour::Status(200)]);
    world.append("a", 1).await;
    Pipeline::with_policy(&world, PATIENT).settle().await;
    let arrivals = world.receiver.deliveries("/hook");
    let [first, second] = arrivals.as_slice() else { panic!("{arrivals:?}") };
    assert!(second.at - first.at >= Duration::from_secs(2), "{:?}", second.at - first.at);
    assert_eq!(world.statuses().await, [SagaStatus::Completed]);
}

#[tokio::test]
async fn seconds_and_dates_count_by_the_databases_clock() {
    let hour = Duration::from_secs(3600);
    for status in [429, 503] {
        let detail = after_one(Behaviour::RetryAfter(status, "3600".to_owned()), PATIENT).await;
        assert!((hour..hour * 2).contains(&wait(&detail)), "{status}: {:?}", wait(&detail));
    }
    let world = World::new().await;
    let date = UNIX_EPOCH
        + Duration::from_secs(3600 + database_now(&world).await.as_micros().unsigned_abs() / 1_000_000);
    let detail = after_one(Behaviour::RetryAfter(503, httpdate::fmt_http_date(date)), PATIENT).await;
    let asked = Timestamp::from_micros(0).after(date.duration_since(UNIX_EPOCH).unwrap());
    assert_eq!(detail.delivery.next_attempt_at, asked);
}

#[tokio::test]
async fn no_endpoint_puts_a_retry_off_for_longer_than_the_longest_backoff() {
    let policy = RetryPolicy { max_delay: Duration::from_secs(600), ..PATIENT };
    let detail = after_one(Behaviour::RetryAfter(503, "99999999999999999999".to_owned()), policy).await;
    // The cap counts from the time at which the result was applied.
    assert!((600..1200).contains(&wait(&detail).as_secs()), "{:?}", wait(&detail));
}

#[tokio::test]
async fn the_wish_counts_with_429_and_503_only_and_if_it_can_be_read() {
    for answer in [
        Behaviour::RetryAfter(500, "3600".to_owned()),
        Behaviour::RetryAfter(404, "3600".to_owned()),
        Behaviour::RetryAfter(503, "soon".to_owned()),
        Behaviour::RetryAfter(503, "-3600".to_owned()),
        Behaviour::RetryAfter(503, "Thu, 01 Jan 2004 00:00:00 GMT".to_owned()),
    ] {
        let detail = after_one(answer.clone(), PATIENT).await;
        assert!(wait(&detail) < Duration::from_secs(1800), "{answer:?}: {:?}", wait(&detail));
    }
}

#[tokio::test]
async fn an_endpoint_that_is_gone_ends_its_delivery_at_once() {
    let world = World::new().await;
    world.subscribe_with("a", "/hook", Some(5)).await;
    world.receiver.answer("/hook", [Behaviour::Status(410), Behaviour::Status(200)]);
    world.append("a", 1).await;
    Pipeline::new(&world).settle().await;
    assert_eq!(world.receiver.deliveries("/hook").len(), 1, "it is not asked again");
    let detail = world.delivery().await;
    assert_eq!((detail.delivery.status, detail.delivery.attempt_count), (SagaStatus::DeadLettered, 1));
    assert_eq!(detail.delivery.final_error_code, Some(ErrorCode::http(410)));
    assert_eq!(
        (detail.attempts[0].status, detail.attempts[0].response_status),
        (JobStatus::Failed, Some(410))
    );
    let letters =
        world.stores.reader.dead_letters(PAGE.of(&ALL, &DeadLetterFilter::default())).await.unwrap().items;
    assert_eq!(letters[0].final_error_code, ErrorCode::http(410));
    assert_eq!((letters.len(), letters[0].saga_id), (1, detail.delivery.saga_id));
}
