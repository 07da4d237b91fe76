//! A process that has no file descriptor left for connections.

use crate::support::{ALL, Pipeline, WORKER, World, capture::Capture, loopback};
use async_trait::async_trait;
use hooksaga_pipeline::{DeliveryClient, DeliveryLog, Resolve, Worker};
use hooksaga_saga::{CallbackUrl, JobStatus, SagaStatus};
use hooksaga_store::SubscriptionPatch;
use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Looks names up as the operating system does when it has no descriptor to spare; else everything is loopback.
#[derive(Default)]
struct Lookups {
    recovered: AtomicBool,
}

#[async_trait]
impl Resolve for Lookups {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        const EMFILE: i32 = 24;
        if self.recovered.load(Ordering::SeqCst) {
            Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)])
        } else {
            Err(io::Error::from_raw_os_error(EMFILE))
        }
    }
}

#[tokio::test]
async fn without_descriptors_deliveries_wait_and_no_attempt_is_spent() {
    let capture = Capture::start();
    let world = World::new().await;
    let id = world.subscribe_with("a", "/hook", Some(1)).await;
    let url = world.receiver.url("/hook").replace("127.0.0.1", "localhost");
    world
        .patch(
            id,
            SubscriptionPatch {
                callback_url: Some(CallbackUrl::parse(&url, true).unwrap()),
                ..SubscriptionPatch::default()
            },
        )
        .await;
    world.verify().await;
    world.append("a", 3).await;
    let pipeline = Pipeline::new(&world);
    let lookups = Arc::new(Lookups::default());
    let worker = Worker::new(
        world.stores.worker.clone(),
        DeliveryClient::with_resolver(loopback(), None, lookups.clone()).unwrap(),
        world.key.clone(),
        WORKER,
        pipeline.signals.clone(),
        pipeline.metrics.clone(),
        DeliveryLog::All,
    );
    pipeline.prepare().await;
    assert!(worker.run_once().await.unwrap().did_work());

    let gauges = world.stores.reader.gauges().await.unwrap();
    assert_eq!((gauges.pending_jobs, gauges.leased_jobs, gauges.finished_jobs), (3, 0, 0));
    assert!(!worker.run_once().await.unwrap().did_work(), "they wait a moment, and do not spin");
    let errors: Vec<_> = capture.lines().into_iter().filter(|line| line["level"] == "ERROR").collect();
    assert_eq!(errors.len(), 1, "one line for all: {errors:?}");
    let message = errors[0]["fields"]["message"].as_str().unwrap();
    assert!(message.contains("raise the limit of open files"), "{message}");

    lookups.recovered.store(true, Ordering::SeqCst);
    let delivered = async {
        while world.receiver.deliveries("/hook").len() < 3 {
            worker.run_once().await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), delivered).await.expect("the jobs are claimed again");
    pipeline.orchestrator.apply_once().await.unwrap();
    for delivery in world.deliveries().await {
        assert_eq!((delivery.status, delivery.attempt_count), (SagaStatus::Completed, 1));
        let detail = world.stores.reader.delivery(&ALL, delivery.saga_id).await.unwrap().unwrap();
        let attempts: Vec<_> = detail.attempts.iter().map(|a| (a.status, a.lease_resets)).collect();
        assert_eq!(attempts, [(JobStatus::Completed, 0)]);
    }
}
