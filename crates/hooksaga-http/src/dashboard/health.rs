//! How a subscription's endpoint has been doing: the last day in figures, how long attempts took, and the last failure.

use super::{Visitor, parts, words};
use hooksaga_saga::{Latencies, SubscriptionId};
use hooksaga_store::{Health, LastFailure};
use maud::{Markup, html};

/// The width of a bar that stands for all attempts, in units of its picture.
const WIDTH: u64 = 1000;

pub(super) fn show(visitor: &Visitor, id: SubscriptionId, health: &Health) -> Markup {
    let figure = |name: &str, count: u64, class: &str, hint: &str| {
        parts::figure(name, &parts::number(count), None, if count > 0 { class } else { "" }, hint)
    };
    let p95 = health.latencies.p95_ms();
    let waiting =
        visitor.path(&format!("/deliveries?subscription_id={id}&status=Pending&status=PendingRetry"));
    let most = if health.waiting >= Health::MOST_WAITING.into() { "+" } else { "" };
    html! {
        section.figures aria-label="The last 24 hours" {
            (figure("Delivered in 24 h", health.delivered, "", ""))
            (figure("Failed attempts", health.failed, "warn", "In the last 24 hours"))
            (figure("Given up", health.dead_lettered, "bad", "In the last 24 hours"))
            (parts::figure("95 % took at most", &p95.map_or("–".to_owned(), length), None, "", "Attempts of the last 24 hours"))
            (parts::figure("Waiting", &format!("{}{most}", parts::number(health.waiting)), Some(&waiting), "", "For their turn, their time, or this subscription"))
        }
        @if let Some(failure) = &health.last_failure { (last_failure(visitor, failure)) }
        @if p95.is_some() { (lengths(&health.latencies)) }
    }
}

fn last_failure(visitor: &Visitor, failure: &LastFailure) -> Markup {
    let meaning = words::meaning(&failure.error_code);
    html! {
        p {
            "Last failure " (parts::time(failure.at, visitor.now)) ", delivery "
            (parts::delivery_link(visitor, failure.saga_id.0)) ". " (meaning.what) " " (meaning.advice(visitor.audience())) " " code { (failure.error_code) }
            @if let Some(status) = failure.response_status.filter(|_| !meaning.what.contains("HTTP ")) { " with HTTP " (status) }
        }
    }
}

/// How many attempts took how long: a bar for each range from the first to the last that has any.
fn lengths(latencies: &Latencies) -> Markup {
    let all: u64 = latencies.ranges.iter().sum();
    let used = |range: &usize| latencies.ranges[*range] > 0;
    let first = (0..Latencies::RANGES).find(used).unwrap_or(0);
    let last = (0..Latencies::RANGES).rfind(used).unwrap_or(0);
    html! {
        section.card {
            h2 { "How long attempts took" }
            table.lengths {
                thead { tr { th { "In 24 h" } th { span.unseen { "Share" } } th.number { "Attempts" } } }
                tbody { @for range in first..=last {
                    @let count = latencies.ranges[range];
                    @let share = format!("{} of {}", parts::number(count), parts::number(all));
                    tr {
                        th scope="row" { (range_text(range)) }
                        td { svg role="img" aria-label=(share) viewBox=(format!("0 0 {WIDTH} 10")) preserveAspectRatio="none" {
                            rect.good width=(bar(count, all)) height="10" {}
                        } }
                        td.number { (parts::number(count)) }
                    }
                } }
            }
        }
    }
}

/// What happened is never invisible.
fn bar(count: u64, all: u64) -> u64 {
    match count {
        0 => 0,
        _ => u64::try_from(u128::from(count) * u128::from(WIDTH) / u128::from(all.max(1)))
            .unwrap_or(WIDTH)
            .max(4),
    }
}

fn range_text(range: usize) -> String {
    let begin = range.checked_sub(1).and_then(Latencies::end_of);
    match (begin, Latencies::end_of(range)) {
        (None, Some(end)) => format!("up to {}", length(end)),
        (Some(begin), Some(end)) => format!("{} – {}", length(begin), length(end)),
        (Some(begin), None) => format!("over {}", length(begin)),
        (None, None) => "any".to_owned(),
    }
}

/// `240 ms`, `1.2 s`, `15 s`.
fn length(ms: u32) -> String {
    match ms {
        0 => "under 1 ms".to_owned(),
        1..1_000 => format!("{ms} ms"),
        _ if ms.is_multiple_of(1_000) || ms >= 10_000 => format!("{} s", ms / 1_000),
        _ => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_ranges_are_told_shortly() {
        for (ms, text) in [
            (0, "under 1 ms"),
            (7, "7 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (1_250, "1.2 s"),
            (15_400, "15 s"),
        ] {
            assert_eq!(length(ms), text);
        }
        assert_eq!(range_text(0), "up to 10 ms");
        assert_eq!(range_text(6), "500 ms – 1 s");
        assert_eq!(range_text(Latencies::RANGES - 1), "over 20 s");
    }

    #[test]
    fn a_bar_is_in_proportion_and_never_invisible() {
        assert_eq!((bar(0, 10), bar(5, 10), bar(10, 10)), (0, 500, 1000));
        assert_eq!(bar(1, 1_000_000), 4);
        assert_eq!(bar(u64::MAX, u64::MAX), 1000);
    }

    #[test]
    fn every_range_that_has_attempts_is_shown_with_those_between() {
        let mut latencies = Latencies::default();
        for ms in [15, 15, 300] {
            latencies.add(ms);
        }
        let shown = lengths(&latencies).into_string();
        assert_eq!(shown.matches("<svg").count(), 5, "from 20 to 500 ms: {shown}");
        assert!(shown.contains("aria-label=\"2 of 3\""));
    }
}
