//! What must hold in the end, as the API and the receiver show it.

use crate::support::*;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Instant,
};

/// Waits until nothing is open and every queue is empty.
pub(crate) async fn wait_until_settled(api: &Api, within: Duration) {
    let began = Instant::now();
    loop {
        let stats = tokio::time::timeout(Duration::from_secs(5), api.try_get("/v1/stats")).await;
        let stats = stats.ok().flatten().filter(|answer| answer.status == 200).map(|answer| answer.json());
        let numbers = |value: &Value| value.as_object().unwrap().values().all(|number| number == 0);
        if stats
            .as_ref()
            .is_some_and(|stats| numbers(&stats["open_deliveries"]) && numbers(&stats["queue_depths"]))
        {
            return;
        }
        assert!(began.elapsed() < within, "not settled within {within:?}: {stats:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Checks everything. Returns what was found, in words.
pub(crate) async fn check(
    api: &Api,
    accepted: &[i64],
    subscriptions: &[(i64, &str)],
    receiver: &Receiver,
) -> String {
    let distinct: HashSet<i64> = accepted.iter().copied().collect();
    assert_eq!(distinct.len(), accepted.len(), "one id, one event");
    // How often each attempt of each event arrived at each path.
    let mut posts: HashMap<(&str, String, u64), u64> = HashMap::new();
    for (_, path) in subscriptions {
        for arrival in receiver.deliveries(path) {
            let header = |name: &str| arrival.header(name).unwrap_or_default().to_owned();
            let attempt = header("hooksaga-attempt").parse().unwrap();
            *posts.entry((*path, header("webhook-id"), attempt)).or_default() += 1;
        }
    }
    let mut counts: BTreeMap<i64, [u64; 3]> = BTreeMap::new();
    let (mut sagas, mut again, mut resets_seen) = (0, 0, 0);
    for event in accepted {
        let listed = api.get(&format!("/v1/deliveries?event_id={event}")).await.expect(200);
        let deliveries = listed["items"].as_array().unwrap();
        let mut of: Vec<i64> =
            deliveries.iter().map(|one| one["subscription_id"].as_i64().unwrap()).collect();
        of.sort_unstable();
        let expected: Vec<i64> = subscriptions.iter().map(|(id, _)| *id).collect();
        assert_eq!(of, expected, "event {event}: one delivery per subscription");
        for delivery in deliveries {
            sagas += 1;
            let saga = api.get(&format!("/v1/deliveries/{}", delivery["saga_id"])).await.expect(200);
            let status = saga["status"].as_str().unwrap();
            assert!(matches!(status, "Completed" | "DeadLettered"), "{saga}");
            let attempts = saga["attempts"].as_array().unwrap();
            let finished =
                |attempt: &&Value| matches!(attempt["status"].as_str(), Some("Completed" | "Failed"));
            assert_eq!(
                attempts.iter().filter(finished).count(),
                attempts.len(),
                "no attempt is open: {saga}"
            );
            assert_eq!(saga["attempt_count"], attempts.len(), "each result was applied once: {saga}");
            let subscription = saga["subscription_id"].as_i64().unwrap();
            let path = subscriptions.iter().find(|(id, _)| *id == subscription).unwrap().1;
            for (number, attempt) in (1_u64..).zip(attempts) {
                let resets = attempt["lease_resets"].as_u64().unwrap();
                let sent = posts.remove(&(path, format!("evt_{event}"), number)).unwrap_or(0);
                assert!(sent <= 1 + resets, "attempt {number} was sent {sent} times: {saga}");
                assert!(sent > 0 || attempt["status"] == "Failed", "delivered without a request: {saga}");
                again += sent.saturating_sub(1);
                resets_seen += resets;
            }
            let count = counts.entry(subscription).or_default();
            let failed = attempts.iter().filter(|attempt| attempt["status"] == "Failed").count();
            count[1] += failed as u64;
            count[if status == "Completed" { 0 } else { 2 }] += 1;
        }
    }
    assert!(posts.is_empty(), "requests that belong to no attempt: {posts:?}");

    let stats = api.get("/v1/stats").await.expect(200);
    for one in stats["per_subscription"].as_array().unwrap() {
        let shown = ["delivered", "failed", "dead_lettered"].map(|name| one[name].as_u64().unwrap());
        let id = one["subscription_id"].as_i64().unwrap();
        assert_eq!(Some(&shown), counts.get(&id), "the counters of subscription {id} are those of its rows");
    }
    let dead: u64 = counts.values().map(|count| count[2]).sum();
    let letters = letters(api).await;
    assert_eq!(letters, dead, "one letter per delivery that died");
    format!(
        "{sagas} deliveries, {dead} dead letters, {resets_seen} lease resets, {again} requests sent again"
    )
}

async fn letters(api: &Api) -> u64 {
    let (mut count, mut cursor) = (0, String::new());
    loop {
        let page = api.get(&format!("/v1/dead-letters?limit=100{cursor}")).await.expect(200);
        count += page["items"].as_array().unwrap().len() as u64;
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return count,
        }
    }
}
