//! An endpoint that is gone, with one fault in what the caretaker does about it: its subscription is disabled once, and
//! operators are told once.

use super::{Fault, FaultPlan, STRIDE, faulty, sampling};
use crate::support::{ALL, Pipeline, World, backend::Backend};
use hooksaga_pipeline::{Caretaker, Metrics, Progress, Signals};
use hooksaga_saga::{SagaStatus, SubscriptionId, Tenant};
use hooksaga_store::{Stage, Stores};
use hooksaga_testkit::receiver::Behaviour;
use serde_json::Value;
use std::{sync::Arc, time::Duration};

struct Story {
    world: World,
    id: SubscriptionId,
}

impl Story {
    /// The endpoint has just said that it is gone. Nothing was announced yet, not even that it was verified.
    async fn start(backend: Backend) -> Self {
        let world = World::on(backend).await;
        world.subscribe_as(Tenant::RESERVED.parse().unwrap(), "hooksaga.*", "/operators", None).await;
        let id = world.subscribe("a", "/in").await;
        world.receiver.answer("/in", [Behaviour::Status(410)]);
        world.append("a", 1).await;
        Pipeline::new(&world).settle().await;
        Self { world, id }
    }

    async fn is_active(&self) -> bool {
        self.world.stores.reader.subscription(&ALL, self.id).await.unwrap().unwrap().active
    }

    /// The caretaker works until there is nothing left to do. As soon as the subscription is disabled, somebody resumes it:
    /// whatever disabled it a second time would be seen.
    async fn tell(&self, stores: &Stores, resumed: &mut u32) {
        let (signals, metrics) = (Signals::new(Stage::ALL), Metrics::new());
        let caretaker =
            Caretaker::new(stores.caretaker.clone(), Some(Duration::from_secs(3600)), signals, metrics);
        loop {
            let pass = caretaker.run_once().await;
            if !self.is_active().await {
                *resumed += 1;
                self.world.set_active(self.id, true).await;
            } else if *resumed > 0 && pass.is_ok_and(|progress| !Progress::did_work(progress)) {
                return;
            }
        }
    }

    async fn check_the_end(&self, resumed: u32) {
        assert_eq!(resumed, 1, "disabled once");
        assert!(self.is_active().await);
        let stores = &self.world.stores;
        assert_eq!(stores.caretaker.announcements(10).await.unwrap(), []);
        Pipeline::new(&self.world).settle().await;
        let told = self.world.receiver.deliveries("/operators");
        let payloads = told.iter().map(|arrival| serde_json::from_str::<Value>(arrival.text()).unwrap());
        let mut told: Vec<_> =
            payloads.map(|payload| (payload["type"].clone(), payload["reason"].clone())).collect();
        told.sort_unstable_by_key(|(event_type, _)| event_type.to_string());
        let expected = [
            (Value::from("hooksaga.subscription.disabled"), Value::from("GONE")),
            (Value::from("hooksaga.subscription.verified"), Value::Null),
        ];
        assert_eq!(told, expected);
        let of_operators = |status: &&SagaStatus| **status == SagaStatus::Completed;
        assert_eq!(self.world.statuses().await.iter().filter(of_operators).count(), 2);
    }
}

/// Tells it with the `n`-th call failing like this; returns whether there was such a call.
async fn tell_with(backend: Backend, n: usize, fault: Fault) -> bool {
    let story = Story::start(backend).await;
    let plan = Arc::new(FaultPlan::new(n, fault));
    let stores = faulty(&story.world.stores, &plan);
    let mut resumed = 0;
    let told = async {
        let killed = tokio::select! {
            () = story.tell(&stores, &mut resumed) => false,
            () = plan.killed() => true,
        };
        if killed {
            story.tell(&story.world.stores, &mut resumed).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), told).await;
    assert!(in_time.is_ok(), "call {n} with {fault:?} never ended");
    story.check_the_end(resumed).await;
    drop(stores);
    story.world.end().await;
    plan.happened()
}

/// Fails one call after another, in each way; on the servers every n-th, as in the other stories.
async fn tell_with_every(backend: Backend) {
    let stride = sampling::stride(backend, STRIDE);
    for fault in [Fault::ErrorBefore, Fault::ErrorAfter, Fault::KillBefore, Fault::KillAfter] {
        let (mut next, mut failed) = (sampling::first(stride, fault), 0);
        while tell_with(backend, next, fault).await {
            failed += 1;
            next += stride;
        }
        // What is gone, its end, what was verified, the notes, the events and the runs; and a pass that finds nothing.
        assert!(failed >= 10 / stride, "only {failed} calls were made to fail");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_fails_an_endpoint_that_is_gone_is_disabled_and_announced_once_on_sqlite() {
    tell_with_every(Backend::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_fails_an_endpoint_that_is_gone_is_disabled_and_announced_once_on_postgres() {
    tell_with_every(Backend::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_fails_an_endpoint_that_is_gone_is_disabled_and_announced_once_on_mysql() {
    tell_with_every(Backend::MySql).await;
}
