//! `hooksaga send --watch`: follows an event to its endpoints, and says when nobody takes it.

use super::Accepted;
use crate::{
    cli::{
        deliveries::live::{self, Seen},
        remote::{
            ApiDelivery, ApiRouting, ApiSubscription, ApiUnmatched, PatientClient, QueryString, enumerate,
        },
    },
    client::Client,
    error::{CliError, CliResult},
    output::{self, Now, Painter, a_little_before},
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
/// How many subscriptions that are switched off are named.
const MOST_NAMED: usize = 3;

#[derive(Deserialize)]
struct Items<T> {
    items: Vec<T>,
    next_cursor: Option<String>,
}

/// When the event was accepted: of a duplicate, that was earlier.
#[derive(Deserialize)]
struct Age {
    created_at: String,
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
    let (unmatched, age) = loop {
        let answer = server.get(&format!("/v1/events/{}", event.id)).await?;
        let ApiRouting { routed, unmatched, .. } = answer.json()?;
        if routed {
            break (unmatched, answer.json::<Age>()?);
        }
        wait(&mut pause).await;
    };
    let target =
        QueryString::new("/v1/deliveries").with("event_id", Some(event.id)).with("limit", Some(500)).target();
    let (mut seen, painter) = (HashMap::new(), Painter::for_stdout());
    let mut pause = FIRST_PAUSE;
    loop {
        let Items { mut items, next_cursor }: Items<ApiDelivery> = server.get(&target).await?.json()?;
        if items.is_empty() {
            return Err(nobody(client, event, unmatched, &age.created_at).await);
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
        if items.iter().all(ApiDelivery::has_ended) {
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
fn verdict(deliveries: &[ApiDelivery]) -> CliResult {
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
async fn nobody(client: &Client, event: &Accepted, unmatched: ApiUnmatched, created_at: &str) -> CliError {
    let mut matching = BTreeMap::new();
    if let Ok(event_type) = event.event_type.parse::<EventType>() {
        for topic in event_type.matching_topics().iter().rev().take(MOST_TOPICS) {
            let query = QueryString::new("/v1/subscriptions")
                .with("tenant", Some(&event.tenant))
                .with("event_type", Some(topic));
            // What cannot be found out is not said.
            let Ok(answer) = client.get(&query.target()).await else { break };
            let Ok(Items { items, .. }) = answer.json::<Items<ApiSubscription>>() else { break };
            matching.extend(items.into_iter().map(|subscription| (subscription.id, subscription)));
        }
    }
    CliError::new(why_nobody(event, unmatched, created_at, matching.values()))
}

/// Why, and what sends it after all: a redrive. To send it again would make a second event, or none with an external id.
fn why_nobody<'a>(
    event: &Accepted,
    unmatched: ApiUnmatched,
    created_at: &str,
    matching: impl Iterator<Item = &'a ApiSubscription>,
) -> String {
    let Accepted { id, event_type, tenant, .. } = event;
    let (mut off, mut unverified, mut ready) = (Vec::new(), Vec::new(), Vec::new());
    for subscription in matching {
        match (subscription.active, subscription.verified) {
            (false, _) => off.push(subscription),
            (true, false) => unverified.push(subscription.id.to_string()),
            (true, true) => ready.push(subscription.id.to_string()),
        }
    }
    let redrive = |subscription: &str| {
        let since = a_little_before(created_at);
        format!("`hooksaga redrives start --events --subscription {subscription} --since {since}` sends it")
    };
    let of_this_type = unmatched.text().map(|text| format!(" (of this type: {text})")).unwrap_or_default();
    let mut reasons: Vec<String> = off.iter().take(MOST_NAMED).map(|off| why_off(off)).collect();
    if off.len() > MOST_NAMED {
        reasons.push(format!("{} more are switched off as well", off.len() - MOST_NAMED));
    }
    if let Some(first) = off.first() {
        reasons.push(format!("then {}", redrive(&first.id.to_string())));
    }
    if let Some(first) = unverified.first() {
        reasons.push(format!(
            "the endpoint of subscription {} is not verified, and gets it once it is (`hooksaga subscriptions verify \
             {first} --wait`)",
            enumerate(&unverified)
        ));
    }
    let why = match ready.first() {
        _ if !reasons.is_empty() => reasons.join("; "),
        None => {
            let of_tenant = if tenant == "default" { String::new() } else { format!(" --tenant {tenant}") };
            format!(
                "the tenant {tenant} has no subscription to {event_type}; add one with `hooksaga subscriptions add \
                 {event_type} URL{of_tenant} --wait`, then {}",
                redrive("ID")
            )
        }
        Some(_) if unmatched.unverified > 0 => format!(
            "subscription {} was verified just now and gets it in a moment: see `hooksaga events show {id}`",
            enumerate(&ready)
        ),
        Some(first) => {
            format!("subscription {} came too late for it: {}", enumerate(&ready), redrive(first))
        }
    };
    format!("nobody takes event {id}{of_this_type}: {why}")
}

/// Who switched a subscription off, why, and how it gets deliveries again.
fn why_off(subscription: &ApiSubscription) -> String {
    let id = subscription.id;
    let why = match &subscription.disabled {
        None => "is paused".to_owned(),
        Some(disabled) => format!("was disabled because {}", disabled.because()),
    };
    let verify = if subscription.verified {
        String::new()
    } else {
        format!(" and not verified (`hooksaga subscriptions verify {id} --wait`)")
    };
    format!("subscription {id} {why} (`hooksaga subscriptions resume {id}`){verify}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::deliveries::tests::delivery;
    use serde_json::json;

    fn subscription(id: i64, active: bool, verified: bool) -> ApiSubscription {
        let value = json!({
            "id": id, "tenant": "acme", "event_types": ["a"], "callback_url": "https://x/h", "active": active,
            "verified": verified, "created_at": "", "updated_at": "", "verification": { "status": "failed" },
        });
        serde_json::from_value(value).expect("as the API returns it")
    }

    fn gone(id: i64) -> ApiSubscription {
        let disabled = json!({ "reason": "GONE", "at": "2026-01-31T12:00:00.000000Z" });
        ApiSubscription {
            disabled: serde_json::from_value(disabled).expect("as the API returns it"),
            ..subscription(id, false, true)
        }
    }

    fn why(unmatched: ApiUnmatched, subscriptions: &[ApiSubscription]) -> String {
        let event = Accepted {
            id: 17,
            tenant: "acme".into(),
            event_type: "order.created".into(),
            correlation_id: "c".into(),
            duplicate: false,
        };
        why_nobody(&event, unmatched, "2026-01-31T12:00:30.000000Z", subscriptions.iter())
    }

    #[test]
    fn it_is_said_why_nobody_takes_an_event_and_what_sends_it() {
        let since = "--since 2026-01-31T11:59:00Z` sends it";
        let none = ApiUnmatched::default();
        let said = why(none, &[]);
        assert!(
            said.contains("`hooksaga subscriptions add order.created URL --tenant acme --wait`, then"),
            "{said}"
        );
        assert!(
            said.ends_with(&format!("`hooksaga redrives start --events --subscription ID {since}")),
            "{said}"
        );
        let said = why(none, &[subscription(4, true, true)]);
        assert!(said.contains("subscription 4 came too late"), "{said}");
        assert!(said.ends_with(&format!("--subscription 4 {since}")), "{said}");
        let unverified = ApiUnmatched { unverified: 1, ..none };
        let said = why(unverified, &[subscription(4, true, true)]);
        assert!(said.contains("(of this type: 1 unverified)") && said.contains("in a moment"), "{said}");
        assert!(!said.contains("redrives"), "it gets it without one: {said}");
    }

    #[test]
    fn who_is_switched_off_gets_it_by_a_redrive_and_who_is_not_verified_by_itself() {
        let none = ApiUnmatched::default();
        let redrive = "hooksaga redrives start --events --subscription";
        let said = why(none, &[subscription(1, false, true), subscription(2, true, false)]);
        assert_eq!(
            said,
            format!(
                "nobody takes event 17: subscription 1 is paused (`hooksaga subscriptions resume 1`); then `{redrive} 1 \
                 --since 2026-01-31T11:59:00Z` sends it; the endpoint of subscription 2 is not verified, and gets it once \
                 it is (`hooksaga subscriptions verify 2 --wait`)"
            )
        );
        let said = why(ApiUnmatched { disabled: 1, ..none }, &[gone(5)]);
        assert!(
            said.contains(
                "(of this type: 1 disabled): subscription 5 was disabled because its endpoint returned 410 Gone \
                 (`hooksaga subscriptions resume 5`); then "
            ),
            "{said}"
        );
        // To be verified is not enough for it.
        let said = why(none, &[subscription(3, false, false)]);
        assert!(said.contains("resume 3`) and not verified (`hooksaga subscriptions verify 3"), "{said}");
        assert!(said.contains(redrive) && !said.contains("gets it once it is"), "{said}");
        let many: Vec<_> = (1..=9).map(gone).collect();
        let said = why(none, &many);
        assert!(said.contains("6 more are switched off") && said.matches("resume").count() == 3, "{said}");
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
