//! Small parts that pages are made of.

use super::{Visitor, words};
use crate::time::ApiTime;
use hooksaga_saga::{SagaStatus, SubscriptionId, Timestamp};
use hooksaga_store::{Delivery, Subscription, VerificationStatus};
use maud::{Markup, html};
use std::time::Duration;

/// An id of this many characters fits beside others.
const LONG: usize = 40;

/// A time relative to now, with the exact one on hover.
pub(super) fn time(at: Timestamp, now: Timestamp) -> Markup {
    html! {
        time datetime=(ApiTime(at)) title=(exact(at)) data-ms=(at.as_micros() / 1000) { (relative(at, now)) }
    }
}

/// When something is to happen next; that it is late says nothing to a reader but that it is due.
pub(super) fn due(at: Timestamp, now: Timestamp) -> Markup {
    // The script, too, counts down to a second.
    let soon = at.since(now) < Duration::from_secs(1);
    let text = if soon { "due now".to_owned() } else { relative(at, now) };
    html! { time datetime=(ApiTime(at)) title=(exact(at)) data-ms=(at.as_micros() / 1000) data-due { (text) } }
}

/// To the millisecond, in UTC.
pub(super) fn exact(at: Timestamp) -> String {
    let civil = ApiTime(at).civil();
    format!("{} {:.3} UTC", civil.date(), civil.time())
}

/// `14:03 UTC`, or with the date if that was longer ago than a day.
pub(super) fn clock(at: Timestamp, now: Timestamp) -> String {
    let time = ApiTime(at).civil();
    let of_day = format!("{:02}:{:02} UTC", time.hour(), time.minute());
    if now.since(at) < Duration::from_secs(24 * 3600) { of_day } else { format!("{} {of_day}", time.date()) }
}

/// In words: `3 min ago`, `in 12 s`. The script does the same.
pub(super) fn relative(at: Timestamp, now: Timestamp) -> String {
    let (past, future) = (now.since(at), at.since(now));
    match (past.as_secs(), future.as_secs()) {
        (0, 0) => "now".to_owned(),
        (0, _) => format!("in {}", span(future)),
        _ => format!("{} ago", span(past)),
    }
}

/// A length of time with one unit.
pub(super) fn span(length: Duration) -> String {
    match length.as_secs() {
        0 if length.as_millis() < 50 => "< 0.1 s".to_owned(),
        0 => format!("{:.1} s", length.as_secs_f64()),
        // A unit ends where the next one has two, so that what is longer never looks shorter.
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// How long something took, to the millisecond.
pub(super) fn milliseconds(ms: u32) -> String {
    if ms == 0 { "under 1 ms".to_owned() } else { format!("{} ms", number(ms.into())) }
}

/// Digits in groups of three.
pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

pub(super) fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(count), if count == 1 { one } else { many })
}

/// How a delivery stands.
pub(super) fn delivery_status(delivery: &Delivery) -> Markup {
    if delivery.held {
        return html! { span.badge.held title=(delivery.status) { "Held" } };
    }
    let class = match delivery.status {
        SagaStatus::Pending | SagaStatus::InProgress => "open",
        SagaStatus::PendingRetry => "warn",
        SagaStatus::Completed => "good",
        SagaStatus::DeadLettered => "bad",
    };
    html! { span class=(format!("badge {class}")) title=(delivery.status) { (words::status(delivery.status)) } }
}

/// How a subscription stands.
pub(super) fn subscription_state(subscription: &Subscription) -> Markup {
    if subscription.disabled.is_some() {
        return html! { span.badge.bad { "Switched off" } };
    }
    let (class, text) = match (subscription.active, subscription.verified, subscription.verification.status) {
        (false, ..) => ("held", "Paused"),
        (true, true, _) => ("good", "Active"),
        (true, false, VerificationStatus::Failed) => ("bad", "Verification failed"),
        (true, false, _) => ("warn", "Not verified yet"),
    };
    html! { span class=(format!("badge {class}")) { (text) } }
}

pub(super) fn event_link(visitor: &Visitor, id: i64) -> Markup {
    html! { a href=(visitor.path(&format!("/events/{id}"))) { "evt_" (id) } }
}

pub(super) fn delivery_link(visitor: &Visitor, id: i64) -> Markup {
    html! { a href=(visitor.path(&format!("/deliveries/{id}"))) { (id) } }
}

/// A subscription by its callback URL, as far as that is known.
pub(super) fn subscription_link(visitor: &Visitor, id: SubscriptionId, url: Option<&str>) -> Markup {
    html! {
        a.url href=(visitor.path(&format!("/subscriptions/{id}"))) title=[url] {
            @match url {
                Some(url) => (url_in_parts(short_url(url))),
                None => { "Subscription " (id) },
            }
        }
    }
}

/// A URL without its scheme, which says little in a table.
pub(super) fn short_url(url: &str) -> &str {
    url.strip_prefix("https://").unwrap_or(url)
}

/// A URL that breaks before its parts where it has to.
pub(super) fn url_in_parts(url: &str) -> Markup {
    in_parts(url, &['/', '?', '&', '#'])
}

/// An event type, or a topic, that does so.
pub(super) fn type_in_parts(event_type: &str) -> Markup {
    in_parts(event_type, &['.'])
}

/// A text with a place to break before each of these characters.
fn in_parts(text: &str, before: &[char]) -> Markup {
    html! { @for (index, part) in split_before(text, before).into_iter().enumerate() { @if index > 0 { wbr; } (part) } }
}

/// The `//` behind a scheme stays with it, and the beginning is no place to break.
fn split_before<'a>(text: &'a str, before: &[char]) -> Vec<&'a str> {
    let (mut parts, mut begin, mut previous) = (Vec::new(), 0, ':');
    for (at, letter) in text.char_indices() {
        if before.contains(&letter) && !before.contains(&previous) && previous != ':' {
            parts.push(&text[begin..at]);
            begin = at;
        }
        previous = letter;
    }
    parts.push(&text[begin..]);
    parts
}

/// Whose it is, as one of the facts, for those who may see more than one tenant.
pub(super) fn tenant_fact(visitor: &Visitor, tenant: &str) -> Option<(&'static str, Markup)> {
    visitor.tenant().is_none().then(|| ("Tenant", html! { (tenant) }))
}

/// A cell with a text that somebody else chose: cut where it is long, whole on hover.
pub(super) fn cut(text: &str) -> Markup {
    html! { td.cut title=(text) { (text) } }
}

/// An id that somebody else chose, as one of the facts; a long one gets a line of its own.
pub(super) fn id_fact(id: Option<&str>) -> Markup {
    html! { @match id {
        Some(id) => code.long[id.chars().count() > LONG] { (id) },
        None => span.quiet { "none" },
    } }
}

/// An event type as one of the facts.
pub(super) fn type_fact(event_type: &str) -> Markup {
    html! { span.event-type.long[event_type.chars().count() > LONG] { (type_in_parts(event_type)) } }
}

/// A place where there is nothing, and what can be done about it.
pub(super) fn empty(text: &str, next: &Markup) -> Markup {
    html! { div.empty { p { (text) } (next) } }
}

/// A line to copy.
pub(super) fn copy_line(text: &str) -> Markup {
    // Words stay whole: a line that broke within `--wait` would be read as another one.
    html! { div.copy { code { @for (index, word) in text.split(' ').enumerate() { @if index > 0 { " " } span.word { (word) } } } button.plain type="button" data-copy=(text) hidden { "Copy" } } }
}

/// A figure with its name; leads to the rows behind it.
pub(super) fn figure(name: &str, value: &str, link: Option<&str>, class: &str, hint: &str) -> Markup {
    let inner = html! { span.value { (value) } span.name { (name) } };
    html! {
        @match link {
            Some(link) => a class=(format!("figure {class}")) href=(link) title=[(!hint.is_empty()).then_some(hint)] { (inner) },
            None => div class=(format!("figure {class}")) title=[(!hint.is_empty()).then_some(hint)] { (inner) },
        }
    }
}

/// Pairs of names and values.
pub(super) fn facts<'a>(facts: impl IntoIterator<Item = (&'a str, Markup)>) -> Markup {
    html! { dl.facts { @for (name, value) in facts { div { dt { (name) } dd { (value) } } } } }
}

/// What has just been done: a code in the redirect, so that no text from the URL is shown.
pub(super) fn notice(done: Option<&str>) -> Markup {
    let text = match done {
        Some("saved") => "Saved.",
        Some("saved-url") => "Saved. The new URL has to be verified before anything is delivered to it.",
        Some("saved-url-alone") => {
            "Saved. The new URL has to be verified before anything is delivered to it. The headers were removed, since it \
             is another server's: write them again if it needs any."
        }
        Some("paused") => {
            "Paused. Its deliveries wait until it is resumed. A redrive can send what comes meanwhile."
        }
        Some("resumed") => "Resumed. What waited goes on now. A redrive can send what came meanwhile.",
        Some("test") => "The test event is on its way: this is its delivery.",
        Some("not-tested") => "No test event was sent: the subscription must be active and verified first.",
        Some("deleted") => "Deleted. What was still to be delivered to it is given up.",
        Some("redrive") => "Started. It goes on by itself, also when this page is closed.",
        Some("redrive-cancelled") => "Cancelled. What it has sent stays.",
        Some("vouched") => "Vouched for: the callback URL is about to be trusted without a challenge.",
        Some("verify") => "Verification is requested: the challenge is sent now.",
        Some("requeued") => "Sent again: this is the new delivery.",
        Some("requeued-before") => "It had been sent again before: this is that delivery.",
        _ => return html! {},
    };
    html! { p.notice role="status" { (text) } }
}

/// Something that stands in the way.
pub(super) fn alert(text: &str) -> Markup {
    html! { p.alert role="alert" { (text) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_relative_to_now() {
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let at = |seconds: i64| Timestamp::from_micros(now.as_micros() + seconds * 1_000_000);
        for (seconds, text) in [
            (0, "now"),
            (-1, "1 s ago"),
            (-119, "119 s ago"),
            (-120, "2 min ago"),
            (-7199, "119 min ago"),
            (-7200, "2 h ago"),
            (-86_400 * 3, "3 d ago"),
            (30, "in 30 s"),
            (3600 * 5, "in 5 h"),
        ] {
            assert_eq!(relative(at(seconds), now), text);
        }
        for (micros, text) in [(-5_000_000, "due now"), (999_999, "due now"), (1_000_000, "in 1 s")] {
            let at = Timestamp::from_micros(now.as_micros() + micros);
            assert!(due(at, now).into_string().contains(&format!(">{text}<")), "{micros}");
        }
        assert_eq!(exact(now), "2023-11-14 22:13:20.000 UTC");
        assert_eq!(clock(at(-60), now), "22:12 UTC");
        assert_eq!(clock(at(-86_400), now), "2023-11-13 22:13 UTC");
        assert_eq!(span(Duration::from_millis(200)), "0.2 s");
        assert_eq!(span(Duration::from_millis(20)), "< 0.1 s");
    }

    #[test]
    fn what_is_longer_never_looks_shorter() {
        let told = |seconds| span(Duration::from_secs(seconds));
        assert_eq!([119, 120, 7199, 7200].map(told), ["119 s", "2 min", "119 min", "2 h"]);
        assert_eq!([172_799, 172_800].map(told), ["47 h", "2 d"]);
    }

    #[test]
    fn urls_and_types_break_before_their_parts() {
        let url = "http://a.example:80/b//c?d=/e&f=é";
        let parts = ["http://a.example:80", "/b", "//c", "?d=", "/e", "&f=é"];
        assert_eq!(split_before(url, &['/', '?', '&', '#']), parts);
        assert_eq!(split_before("order.created", &['.']), ["order", ".created"]);
        assert_eq!(split_before("", &['.']), [""]);
        assert_eq!(url_in_parts("a/<b>").into_string(), "a<wbr>/&lt;b&gt;", "and stays escaped");
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(plural(1, "delivery", "deliveries"), "1 delivery");
        assert_eq!([0, 1, 15_000].map(milliseconds), ["under 1 ms", "1 ms", "15,000 ms"]);
    }
}
