//! A subscription in words.

use super::One;
use crate::{
    cli::remote::{ApiSubscription, advice, explain},
    error::CliResult,
    output::{self, Cell, Color, Now, well_before},
};
use hooksaga_saga::DisabledReason;

pub(super) const TITLES: [&str; 7] =
    ["ID", "TENANT", "TOPICS", "ENDPOINT", "STATE", "CREATED", "DESCRIPTION"];

pub(super) fn row(subscription: &ApiSubscription, now: Now) -> Vec<Cell> {
    vec![
        subscription.id.into(),
        (&subscription.tenant).into(),
        topics(&subscription.event_types).into(),
        (&subscription.callback_url).into(),
        state(subscription),
        now.relative(&subscription.created_at).into(),
        (subscription.description.as_deref().unwrap_or_default()).into(),
    ]
}

/// The first topics, and how many more there are: all 50 would push the other columns off the screen.
fn topics(topics: &[String]) -> String {
    const SHOWN: usize = 3;
    match topics.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{} and {more} more", topics[..SHOWN].join(",")),
        _ => topics.join(","),
    }
}

/// Whether it gets deliveries, in as few words as possible.
fn state(subscription: &ApiSubscription) -> Cell {
    if let Some(disabled) = &subscription.disabled {
        return Cell::new(Color::Bad, format!("disabled: {}", disabled.reason));
    }
    let error = subscription.verification.last_error.as_deref();
    match (subscription.active, subscription.verified, subscription.verification.status.as_str()) {
        (true, true, _) => Cell::new(Color::Good, "active"),
        (false, true, _) => Cell::new(Color::Open, "paused"),
        (_, false, "failed") => Cell::new(Color::Bad, format!("unverified: {}", error.unwrap_or("failed"))),
        (_, false, _) => Cell::new(Color::Open, "being verified"),
    }
}

pub(super) async fn run(one: One) -> CliResult {
    let answer = one.remote.connect()?.get(&format!("/v1/subscriptions/{}", one.id)).await?;
    one.remote.print(&answer, |subscription| print(&subscription))
}

/// Everything about one.
pub(super) fn print(subscription: &ApiSubscription) {
    let now = Now::local();
    let default_limit = || "the server's setting".to_owned();
    let unlimited = || "not limited".to_owned();
    let mut facts = vec![
        ("subscription", subscription.id.into()),
        ("tenant", (&subscription.tenant).into()),
        ("topics", subscription.event_types.join(", ").into()),
        ("endpoint", (&subscription.callback_url).into()),
        ("state", state(subscription)),
        ("verification", verification(subscription, now).into()),
        (
            "attempts at most",
            subscription.max_retry_limit.map_or_else(default_limit, |limit| limit.to_string()).into(),
        ),
        (
            "attempts per second",
            subscription.rate_limit.map_or_else(unlimited, |limit| limit.to_string()).into(),
        ),
        ("created", now.both(&subscription.created_at).into()),
        ("updated", now.both(&subscription.updated_at).into()),
    ];
    if !subscription.headers.is_empty() {
        facts.insert(facts.len() - 2, ("headers", subscription.headers.join(", ").into()));
    }
    if let Some(description) = &subscription.description {
        facts.insert(1, ("description", description.into()));
    }
    facts.extend(doing(subscription, now));
    output::facts(facts).iter().for_each(output::line);
    for hint in hints(subscription, now) {
        output::line(format!("\n{hint}"));
    }
}

/// How its endpoint has been doing; nothing where the server does not say.
fn doing(subscription: &ApiSubscription, now: Now) -> Vec<(&'static str, Cell)> {
    let mut facts = Vec::new();
    if let Some(health) = &subscription.health {
        let took = health.p95_ms.map(|ms| format!(", 95 % of attempts within {ms} ms")).unwrap_or_default();
        let text = format!(
            "{} delivered, {} failed, {} given up{took}",
            health.delivered,
            output::count(health.failed, "attempt"),
            health.dead_lettered
        );
        facts.push(("last 24 hours", text.into()));
    }
    if let Some(waiting) = subscription.waiting {
        let more = if waiting >= 10_000 { " or more" } else { "" };
        facts.push(("waiting", format!("{}{more}", output::count(waiting, "delivery")).into()));
    }
    if let Some(failure) = &subscription.last_failure {
        let text = format!(
            "{}, delivery {}: {}",
            now.relative(&failure.at),
            failure.saga_id,
            explain(&failure.error_code)
        );
        facts.push(("last failure", text.into()));
    }
    facts
}

fn verification(subscription: &ApiSubscription, now: Now) -> String {
    let verification = &subscription.verification;
    let checked = verification.checked_at.as_deref().map(|at| format!(", checked {}", now.relative(at)));
    let trusted = verification
        .trusted
        .as_ref()
        .map(|trusted| format!(", vouched for by {} {}", trusted.by, now.relative(&trusted.at)));
    // A URL that was verified stays so, whatever a later check finds.
    let but = if subscription.verified { "; a later check failed with " } else { ": " };
    let error = verification.last_error.as_deref().map(|code| format!("{but}{}", explain(code)));
    let details = [trusted.or(checked), error].map(Option::unwrap_or_default).concat();
    format!("{}{details}", verification.status)
}

/// What keeps deliveries from it, and what to do about that.
fn hints(subscription: &ApiSubscription, now: Now) -> Vec<String> {
    let id = subscription.id;
    let mut hints = Vec::new();
    if let Some(disabled) = &subscription.disabled {
        let advice = DisabledReason::from_name(&disabled.reason).map(|reason| reason.wording().advice);
        hints.push(format!(
            "The server switched it off {} because {}. What to do: {} (`hooksaga subscriptions resume {id}`).",
            now.relative(&disabled.at),
            disabled.because(),
            advice.unwrap_or("resume it once its endpoint is well again"),
        ));
    } else if !subscription.active {
        hints.push(format!("It is paused: `hooksaga subscriptions resume {id}` lets deliveries go on."));
    }
    if !subscription.active {
        let since = subscription
            .disabled
            .as_ref()
            .map_or_else(|| "TIME".to_owned(), |it| well_before(&it.at, &subscription.created_at));
        hints.push(format!(
            "Events that come meanwhile do not wait for it: once it is active, `hooksaga redrives start --events \
             --subscription {id} --since {since}` sends them, each once."
        ));
    }
    if !subscription.verified && subscription.verification.status == "failed" {
        let code = subscription.verification.last_error.as_deref().unwrap_or("CHALLENGE_MISMATCH");
        hints.push(format!(
            "Its endpoint is not verified, so nothing is delivered. What to do: {}; then run \
             `hooksaga subscriptions verify {id} --wait`.",
            advice(code)
        ));
    }
    hints
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::output::{Painter, Table};
    use serde_json::json;

    pub(in crate::cli::subscriptions) fn subscription(active: bool, status: &str) -> ApiSubscription {
        let value = json!({
            "id": 3, "tenant": "acme", "event_types": ["a", "b.*"], "event_type": "a,b.*",
            "callback_url": "https://x/h", "description": null, "active": active, "verified": status == "verified",
            "max_retry_limit": 7, "created_at": "2026-01-31T12:00:00.000000Z", "updated_at": "2026-01-31T12:00:00.000000Z",
            "verification": {
                "status": status, "checked_at": "2026-01-31T12:00:01.000000Z",
                "last_error": if status == "failed" { Some("HTTP_404") } else { None },
            },
            "health": { "delivered": 12, "failed": 1, "dead_lettered": 0, "p95_ms": 240 },
            "waiting": 10000,
            "last_failure": {
                "saga_id": 21, "error_code": "HTTP_503", "response_status": 503, "at": "2026-01-31T12:00:00.000000Z",
            },
            "some_new_field": {},
        });
        serde_json::from_value(value).expect("as the API returns it")
    }

    pub(in crate::cli::subscriptions) fn gone() -> ApiSubscription {
        let disabled = json!({ "reason": "GONE", "at": "2026-01-31T12:00:00.000000Z" });
        ApiSubscription {
            disabled: serde_json::from_value(disabled).expect("as the API returns it"),
            ..subscription(false, "verified")
        }
    }

    #[test]
    fn a_row_says_whether_it_gets_deliveries() {
        let now = Now::at("2026-01-31T12:05:00Z");
        let mut table = Table::new(&TITLES);
        for (active, status) in [(true, "verified"), (false, "verified"), (true, "pending"), (true, "failed")]
        {
            table.row(row(&subscription(active, status), now));
        }
        table.row(row(&gone(), now));
        let lines = table.lines(Painter::new(false));
        assert_eq!(lines[0], "ID  TENANT  TOPICS  ENDPOINT     STATE                 CREATED");
        assert_eq!(lines[1], "3   acme    a,b.*   https://x/h  active                5m ago");
        let states = ["paused", "being verified", "unverified: HTTP_404", "disabled: GONE"];
        for (line, state) in lines[2..].iter().zip(states) {
            assert!(line.contains(state), "{line}");
        }
    }

    #[test]
    fn many_topics_leave_room_for_the_rest() {
        let some = |count: usize| topics(&["a", "b", "c", "d", "e"].map(str::to_owned)[..count]);
        assert_eq!([some(1), some(3), some(5)], ["a", "a,b,c", "a,b,c and 2 more"]);
    }

    #[test]
    fn a_check_that_fails_later_does_not_read_like_the_verification() {
        let now = Now::at("2026-01-31T12:05:01Z");
        let mut one = subscription(true, "failed");
        assert!(verification(&one, now).starts_with("failed, checked 5m ago: HTTP_404: "));
        (one.verified, one.verification.status) = (true, "verified".to_owned());
        assert!(
            verification(&one, now)
                .starts_with("verified, checked 5m ago; a later check failed with HTTP_404: ")
        );
    }

    #[test]
    fn how_it_is_doing_is_said_where_the_server_says_so() {
        let now = Now::at("2026-01-31T12:05:00Z");
        let said = doing(&subscription(true, "verified"), now);
        let lines: Vec<String> = output::facts(said);
        assert_eq!(
            lines,
            [
                "last 24 hours  12 delivered, 1 attempt failed, 0 given up, 95 % of attempts within 240 ms",
                "waiting        10000 deliveries or more",
                "last failure   5m ago, delivery 21: HTTP_503: the endpoint's proxy or load balancer could not reach it, or it is overloaded",
            ]
        );
        let older = ApiSubscription {
            health: None,
            waiting: None,
            last_failure: None,
            ..subscription(true, "verified")
        };
        assert!(doing(&older, now).is_empty());
    }

    #[test]
    fn what_keeps_deliveries_away_is_said_with_what_to_do() {
        let now = Now::at("2026-01-31T12:05:00Z");
        let hints = |it: &ApiSubscription| hints(it, now);
        assert!(hints(&subscription(true, "verified")).is_empty());
        assert!(hints(&subscription(false, "verified"))[0].contains("subscriptions resume 3"));
        assert!(hints(&gone())[0].contains("switched it off 5m ago because its endpoint returned 410 Gone."));
        assert!(
            hints(&gone())[1].contains("--subscription 3 --since 2026-01-31T12:00:00.000000Z` sends them")
        );
        let failed = hints(&subscription(true, "failed")).remove(0);
        assert!(
            failed.contains("subscriptions verify 3 --wait") && failed.contains("path in the callback URL"),
            "{failed}"
        );
        let said = verification(&subscription(true, "failed"), now);
        assert_eq!(
            said,
            "failed, checked 4m ago: HTTP_404: the endpoint has nothing at this path that takes a POST"
        );
    }
}
