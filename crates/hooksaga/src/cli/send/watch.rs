//! `hooksaga send --watch`: follows an event to its endpoints, and says when nobody takes it.

use super::Accepted;
use crate::{
    cli::{
        deliveries::live::{self, Seen},
        remote::{Delivery, PatientClient, Query, Routing, Subscription, Unmatched, enumerate},
    },
    client::Client,
    error::{CliError, CliResult},
    output::{self, Now, Painter},
    signals::StopSignals,
};
use hooksaga_saga::EventType;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// The pauses between two looks grow from one to the other.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How many topics are asked for when nobody took an event.
const MOST_TOPICS: usize = 12;

#[derive(Deserialize)]
struct List<T> {
    items: Vec<T>,
    next_cursor: Option<String>,
}

/// Follows an event until every delivery has ended, or Ctrl-C. A failure if nobody takes it, or somebody does not.
pub(super) async fn watch(client: &Client, event: &Accepted) -> CliResult {
    let mut stop = StopSignals::listen();
    tokio::select! {
        ended = follow(client, event) => ended,
        () = stop.next() => {
            output::line(format!("still on its way: `hooksaga events show {}` says how it stands", event.id));
            Ok(())
        }
    }
}

async fn follow(client: &Client, event: &Accepted) -> CliResult {
    let (mut server, mut pause) = (PatientClient::reached(client), FIRST_PAUSE);
    // The event comes with its payload, the deliveries below without: this is asked only until it is routed.
    let unmatched = loop {
        let Routing { routed, unmatched, .. } =
            server.get(&format!("/v1/events/{}", event.id)).await?.json()?;
        if routed {
            break unmatched;
        }
        wait(&mut pause).await;
    };
    let target =
        Query::new("/v1/deliveries").with("event_id", Some(event.id)).with("limit", Some(500)).target();
    let (mut seen, painter) = (HashMap::new(), Painter::for_stdout());
    let mut pause = FIRST_PAUSE;
    loop {
        let List { mut items, next_cursor }: List<Delivery> = server.get(&target).await?.json()?;
        if items.is_empty() {
            return Err(nobody(client, event, unmatched).await);
        }
        if next_cursor.is_some() && seen.is_empty() {
            output::note("it goes to more than 500 endpoints: only the last 500 are shown");
        }
        items.sort_unstable_by_key(|delivery| delivery.saga_id);
        for delivery in &items {
            let before = seen.insert(delivery.saga_id, Seen::of(delivery)).unwrap_or(Seen::NEW);
            if Seen::of(delivery).is_news_after(before) {
                let (color, line) = live::line(delivery, Now::local());
                output::line(painter.paint(color, &line));
                pause = FIRST_PAUSE;
            }
        }
        if items.iter().all(Delivery::has_ended) {
            return verdict(&items);
        }
        wait(&mut pause).await;
    }
}

async fn wait(pause: &mut Duration) {
    tokio::time::sleep(*pause).await;
    *pause = (*pause * 3 / 2).min(LONGEST_PAUSE);
}

/// Every delivery has ended: how.
fn verdict(deliveries: &[Delivery]) -> CliResult {
    let all = output::count(deliveries.len() as u64, "endpoint");
    let given_up: Vec<String> = deliveries
        .iter()
        .filter(|delivery| delivery.status != "Completed")
        .map(|delivery| delivery.saga_id.to_string())
        .collect();
    if given_up.is_empty() {
        output::line(format!("delivered to {all}"));
        return Ok(());
    }
    Err(CliError::new(format!(
        "{} of {all} did not take it: see `hooksaga deliveries show {}`; once it is repaired, requeue it (`hooksaga \
         dead-letters list` shows its id)",
        given_up.len(),
        given_up[0],
    )))
}

/// Why nobody takes an event, as far as the present subscriptions tell.
async fn nobody(client: &Client, event: &Accepted, unmatched: Unmatched) -> CliError {
    let mut matching = BTreeMap::new();
    if let Ok(event_type) = event.event_type.parse::<EventType>() {
        for topic in event_type.matching_topics().iter().rev().take(MOST_TOPICS) {
            let query = Query::new("/v1/subscriptions")
                .with("tenant", Some(&event.tenant))
                .with("event_type", Some(topic));
            // What cannot be found out is not said.
            let Ok(answer) = client.get(&query.target()).await else { break };
            let Ok(List { items, .. }) = answer.json::<List<Subscription>>() else { break };
            matching.extend(items.into_iter().map(|subscription| (subscription.id, subscription)));
        }
    }
    CliError::new(why_nobody(event, unmatched, matching.values()))
}

fn why_nobody<'a>(
    event: &Accepted,
    unmatched: Unmatched,
    matching: impl Iterator<Item = &'a Subscription>,
) -> String {
    let Accepted { id, event_type, tenant, .. } = event;
    let (mut paused, mut unverified, mut ready) = (Vec::new(), Vec::new(), Vec::new());
    for subscription in matching {
        let list = match (subscription.verified, subscription.active) {
            (false, _) => &mut unverified,
            (true, false) => &mut paused,
            (true, true) => &mut ready,
        };
        list.push(subscription.id.to_string());
    }
    let of_this_type = unmatched.text().map(|text| format!(" (of this type: {text})")).unwrap_or_default();
    let mut text = format!("nobody takes event {id}{of_this_type}: ");
    match (paused.first(), unverified.first()) {
        (None, None) if ready.is_empty() => {
            let of_tenant = if tenant == "default" { String::new() } else { format!(" --tenant {tenant}") };
            text += &format!(
                "the tenant {tenant} has no subscription to {event_type}; add one with `hooksaga subscriptions add {event_type} \
                 URL{of_tenant} --wait`, then send it again"
            );
        }
        (None, None) if unmatched.unverified > 0 => {
            text += &format!(
                "subscription {} was verified just now and gets it in a moment: see `hooksaga events show {id}`",
                enumerate(&ready)
            );
        }
        (None, None) => {
            text += &format!("subscription {} came too late for it; send it again", enumerate(&ready));
        }
        (first_paused, first_unverified) => {
            let mut reasons = Vec::new();
            if let Some(first) = first_paused {
                reasons.push(format!(
                    "subscription {} is paused (`hooksaga subscriptions resume {first}`)",
                    enumerate(&paused)
                ));
            }
            if let Some(first) = first_unverified {
                reasons.push(format!(
                    "the endpoint of subscription {} is not verified, and gets it once it is (`hooksaga subscriptions \
                     verify {first} --wait`)",
                    enumerate(&unverified)
                ));
            }
            let again = if first_paused.is_some() { "; then send it again" } else { "" };
            text += &format!("{}{again}", reasons.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::deliveries::tests::delivery;
    use serde_json::json;

    fn subscription(id: i64, active: bool, verified: bool) -> Subscription {
        let value = json!({
            "id": id, "tenant": "acme", "event_types": ["a"], "callback_url": "https://x/h", "active": active,
            "verified": verified, "created_at": "", "updated_at": "", "verification": { "status": "failed" },
        });
        serde_json::from_value(value).expect("as the API returns it")
    }

    #[test]
    fn it_is_said_why_nobody_takes_an_event() {
        let event = Accepted {
            id: 17,
            tenant: "acme".into(),
            event_type: "order.created".into(),
            correlation_id: "c".into(),
            duplicate: false,
        };
        let why =
            |subscriptions: &[Subscription]| why_nobody(&event, Unmatched::default(), subscriptions.iter());
        assert!(why(&[]).contains("`hooksaga subscriptions add order.created URL --tenant acme --wait`"));
        let said =
            why(&[subscription(1, false, true), subscription(2, true, false), subscription(3, false, false)]);
        assert!(said.contains("subscription 1 is paused (`hooksaga subscriptions resume 1`)"), "{said}");
        assert!(
            said.contains(
                "of subscription 2 and 3 is not verified, and gets it once it is (`hooksaga subscriptions verify 2 --wait`)"
            ),
            "{said}"
        );
        assert!(why(&[subscription(4, true, true)]).contains("too late"));
        let unmatched = Unmatched { unverified: 1, ..Unmatched::default() };
        let said = why_nobody(&event, unmatched, [subscription(4, true, true)].iter());
        assert!(said.contains("(of this type: 1 unverified)") && said.contains("in a moment"), "{said}");
    }

    #[test]
    fn a_watched_event_fails_when_an_endpoint_did_not_take_it() {
        assert!(verdict(&[delivery(1, "Completed", 1)]).is_ok());
        let failure =
            verdict(&[delivery(1, "Completed", 1), delivery(2, "DeadLettered", 5)]).expect_err("given up");
        assert!(
            failure
                .to_string()
                .starts_with("1 of 2 endpoints did not take it: see `hooksaga deliveries show 2`")
        );
    }
}
