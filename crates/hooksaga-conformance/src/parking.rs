//! Bounded claims, and jobs that wait for their subscription: they are parked once, no claim reads them, and they can be claimed
//! again when the subscription is resumed.

use super::{
    TestDatabase,
    fixture::{
        AT_ONCE, LEASE, MANY, TOKEN, TYPE, URL, append, append_many, claim, delivered, finish_claimable,
        leased, new_event, only, route, schedule_and_mark, set_active, up_to, verified,
    },
    rows::{all_rows, db_now, job_row, saga_row},
};
use hooksaga_saga::{JobId, JobStatus, SagaStatus, SubscriptionId, Timestamp};
use hooksaga_store::{ClaimLimits, ClaimedBatch, LeaseRef, LeaseToken, NewEvent, Stores};
use std::{collections::HashMap, sync::Arc, time::Duration};

const OTHER: LeaseToken = LeaseToken(-17);

/// Jobs of one subscription with payloads of these sizes, in the order of their admission.
async fn jobs_of_sizes(stores: &Stores, sizes: &[usize]) -> Vec<JobId> {
    verified(stores, TYPE, URL).await;
    let mut jobs = Vec::new();
    for size in sizes {
        let payload = format!("\"{}\"", "x".repeat(size - 2));
        append(stores, NewEvent { payload: Arc::from(payload), ..new_event(TYPE) }).await;
        route(stores).await;
        jobs.push(only(schedule_and_mark(stores).await).job_id.expect("it is new"));
    }
    jobs
}

async fn claim_bytes(stores: &Stores, jobs: u32, payload_bytes: u64) -> ClaimedBatch {
    stores.worker.claim(&ClaimLimits { payload_bytes, ..up_to(jobs) }, TOKEN.lasting(LEASE)).await.unwrap()
}

fn ids(batch: &ClaimedBatch) -> Vec<JobId> {
    let mut ids: Vec<_> = batch.jobs.iter().map(|job| job.job_id).collect();
    ids.sort_unstable();
    ids
}

pub async fn a_claim_stops_before_its_payloads_grow_too_large(db: &dyn TestDatabase) {
    let stores = db.stores();
    let jobs = jobs_of_sizes(&stores, &[1000, 1000, 1000, 9000, 10, 10]).await;
    for (limit, expected, cut_short) in [
        (2999, &jobs[..2], true),
        (1000, &jobs[2..3], true),
        (500, &jobs[3..4], true),
        (9000, &jobs[4..], false),
        (9000, &[], false),
    ] {
        let batch = claim_bytes(&stores, MANY, limit).await;
        assert_eq!(ids(&batch), expected, "{limit} bytes");
        assert_eq!(batch.cut_short, cut_short, "{limit} bytes");
        for job in &batch.jobs {
            assert_eq!(job_row(db, job.job_id).await.status, JobStatus::Leased);
        }
    }
}

pub async fn what_a_claim_leaves_is_not_leased(db: &dyn TestDatabase) {
    let stores = db.stores();
    let jobs = jobs_of_sizes(&stores, &[100, 100, 100]).await;
    let batch = claim_bytes(&stores, MANY, 100).await;
    assert_eq!((ids(&batch), batch.cut_short), (jobs[..1].to_vec(), true));
    for job in &jobs[1..] {
        let row = job_row(db, *job).await;
        assert_eq!((row.status, row.lease_token), (JobStatus::Pending, None));
    }
    let batch = claim_bytes(&stores, 1, 100).await;
    assert_eq!((ids(&batch), batch.cut_short), (jobs[1..2].to_vec(), false), "the limit of jobs is no cut");
}

pub async fn a_claim_passes_over_the_subscriptions_it_is_told_to(db: &dyn TestDatabase) {
    let stores = db.stores();
    let mut subscriptions = Vec::new();
    for n in 0..3 {
        subscriptions.push(verified(&stores, TYPE, &format!("https://receiver.example/{n}")).await);
    }
    append_many(&stores, 4).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    let skipping = async |skip: &[SubscriptionId], jobs: u32| {
        let limits = ClaimLimits { skip: skip.to_vec(), ..up_to(jobs) };
        let batch = stores.worker.claim(&limits, TOKEN.lasting(LEASE)).await.unwrap();
        assert!(batch.targets.keys().all(|id| !skip.contains(id)));
        batch.jobs.iter().fold(HashMap::new(), |mut counts: HashMap<_, u32>, job| {
            *counts.entry(job.held.subscription_id).or_default() += 1;
            counts
        })
    };
    assert_eq!(skipping(&subscriptions, MANY).await, HashMap::new());
    assert_eq!(skipping(&subscriptions[..2], 3).await, HashMap::from([(subscriptions[2], 3)]));
    assert_eq!(skipping(&subscriptions[..2], MANY).await, HashMap::from([(subscriptions[2], 1)]));
    let rest = HashMap::from([(subscriptions[0], 4), (subscriptions[1], 4)]);
    assert_eq!(skipping(&subscriptions[2..], MANY).await, rest, "those that were skipped are not lost");
}

pub async fn a_parked_job_is_never_claimed(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    let saga = saga_row(db, fixed.saga_id).await;
    set_active(&stores, fixed.subscription_id, false).await;
    assert_eq!(stores.worker.park(&[lease]).await.unwrap(), [lease.job_id]);
    let row = job_row(db, lease.job_id).await;
    assert_eq!((row.status, row.lease_token, row.lease_resets), (JobStatus::Pending, None, 0));
    assert_eq!(row.lease_until, Timestamp::MAX);
    assert!(claim(&stores, OTHER).await.jobs.is_empty());
    assert_eq!(stores.cleaner.reset_expired(MANY).await.unwrap(), []);
    assert_eq!(stores.worker.unpark(MANY).await.unwrap(), 0, "its subscription is still paused");
    assert_eq!(job_row(db, lease.job_id).await, row);
    assert_eq!(saga_row(db, fixed.saga_id).await, saga, "parking is nothing to the saga");
}

pub async fn a_parked_job_is_not_open_work(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    let open = async || stores.orchestrator.load().await.unwrap().open;
    assert_eq!(open().await, HashMap::from([(fixed.subscription_id, 1)]));
    set_active(&stores, fixed.subscription_id, false).await;
    stores.worker.park(&[lease]).await.unwrap();
    assert_eq!(open().await, HashMap::new());
    set_active(&stores, fixed.subscription_id, true).await;
    stores.worker.unpark(MANY).await.unwrap();
    assert_eq!(open().await, HashMap::from([(fixed.subscription_id, 1)]));
}

pub async fn a_parked_job_goes_on_when_its_subscription_does(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    set_active(&stores, fixed.subscription_id, false).await;
    stores.worker.park(&[lease]).await.unwrap();
    set_active(&stores, fixed.subscription_id, true).await;
    assert!(claim(&stores, OTHER).await.jobs.is_empty(), "not by itself");
    let before = db_now(db).await;
    assert_eq!(db.second_instance().await.worker.unpark(MANY).await.unwrap(), 1);
    let row = job_row(db, lease.job_id).await;
    assert_eq!(row.status, JobStatus::Pending);
    assert!(row.lease_until.since(before) < Duration::from_secs(60), "from now on");
    assert_eq!(stores.worker.unpark(MANY).await.unwrap(), 0, "again is a no-op");
    let again = only(finish_claimable(&stores, None, AT_ONCE).await.results);
    assert_eq!((again.job_id, again.status), (lease.job_id, SagaStatus::Completed));
}

pub async fn a_job_whose_url_is_not_verified_stays_parked(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    let to = |text: &str| hooksaga_store::SubscriptionPatch {
        callback_url: Some(super::fixture::url(text)),
        ..hooksaga_store::SubscriptionPatch::default()
    };
    let admin = &stores.admin;
    admin.update(&super::fixture::ALL, fixed.subscription_id, &to("https://new.example/")).await.unwrap();
    stores.worker.park(&[lease]).await.unwrap();
    assert_eq!(stores.worker.unpark(MANY).await.unwrap(), 0);
    super::fixture::verify(&stores, fixed.subscription_id).await;
    assert_eq!(stores.worker.unpark(MANY).await.unwrap(), 1);
    let batch = claim(&stores, OTHER).await;
    assert_eq!(only(batch.jobs).job_id, lease.job_id);
    assert_eq!(batch.targets[&fixed.subscription_id].callback_url, "https://new.example/");
}

pub async fn a_job_whose_subscription_has_resumed_is_not_parked(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    set_active(&stores, fixed.subscription_id, false).await;
    // It resumes after the worker has seen it paused and before the worker parks the job.
    set_active(&stores, fixed.subscription_id, true).await;
    assert_eq!(stores.worker.park(&[lease]).await.unwrap(), [lease.job_id]);
    assert_eq!(only(claim(&stores, OTHER).await.jobs).job_id, lease.job_id, "it can be claimed at once");
}

pub async fn only_the_holder_can_park_and_only_once(db: &dyn TestDatabase) {
    let stores = db.stores();
    let (fixed, lease) = leased(db).await;
    set_active(&stores, fixed.subscription_id, false).await;
    let before = all_rows(db, "webhook_delivery_jobs").await;
    let wrong = LeaseRef { token: OTHER, ..lease };
    let unknown = LeaseRef { job_id: JobId(999_999), saga_id: hooksaga_saga::SagaId(999_999), ..lease };
    assert_eq!(stores.worker.park(&[wrong, unknown]).await.unwrap(), []);
    assert_eq!(stores.worker.park(&[]).await.unwrap(), []);
    assert_eq!(all_rows(db, "webhook_delivery_jobs").await, before);
    assert_eq!(stores.worker.park(&[wrong, lease]).await.unwrap(), [lease.job_id]);
    let parked = all_rows(db, "webhook_delivery_jobs").await;
    assert_eq!(stores.worker.park(&[lease]).await.unwrap(), []);
    assert_eq!(stores.worker.hand_back(&[lease], Duration::ZERO).await.unwrap(), []);
    assert_eq!(stores.worker.report(&[delivered(lease)]).await.unwrap(), []);
    assert_eq!(all_rows(db, "webhook_delivery_jobs").await, parked);
}

pub async fn many_that_stay_parked_are_in_nobodys_way(db: &dyn TestDatabase) {
    let stores = db.stores();
    let paused = verified(&stores, TYPE, "https://paused.example/").await;
    append_many(&stores, 7).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    let resumed = verified(&stores, "another.type", "https://resumed.example/").await;
    append(&stores, new_event("another.type")).await;
    route(&stores).await;
    schedule_and_mark(&stores).await;
    set_active(&stores, paused, false).await;
    set_active(&stores, resumed, false).await;
    let leases: Vec<_> = claim(&stores, TOKEN).await.jobs.iter().map(hooksaga_store::Lease::as_ref).collect();
    assert_eq!(stores.worker.park(&leases).await.unwrap().len(), 8);
    set_active(&stores, resumed, true).await;
    // Two of eight are examined at a time: the one that can be delivered is found within a round.
    let mut unparked = 0;
    for _ in 0..6 {
        unparked += stores.worker.unpark(2).await.unwrap();
    }
    assert_eq!(unparked, 1);
    assert_eq!(only(claim(&stores, OTHER).await.jobs).held.subscription_id, resumed);
    set_active(&stores, paused, true).await;
    let mut unparked = 0;
    for _ in 0..10 {
        let some = stores.worker.unpark(2).await.unwrap();
        assert!(some <= 2);
        unparked += some;
    }
    assert_eq!(unparked, 7);
}
