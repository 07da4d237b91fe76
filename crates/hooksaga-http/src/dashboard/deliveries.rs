//! Deliveries: the list, and one with the story of its attempts.

use super::{
    OnPage, Shown, Visitor,
    layout::{self, Page, Section},
    list::{self, Asked},
    parts, words,
};
use crate::{
    cursor::List,
    dto::DeliveriesQuery,
    errors::FieldErrors,
    path::Id,
    problem::Problem,
    state::{ApiState, SharedState},
};
use axum::extract::State;
use hooksaga_saga::{JobStatus, SagaId, SagaStatus, SubscriptionId};
use hooksaga_store::{
    Attempt, DeadLetterFilter, DeadLetterSummary, Delivery, DeliveryDetail, EventHead, PageRequest, Scope,
    StoreResult, Subscription, TenantScope,
};
use maud::{Markup, html};
use std::{collections::HashMap, fmt::Write as _, time::Duration};

/// A dead letter is written within this time after its delivery has ended.
const LETTER_WITHIN: Duration = Duration::from_secs(60);

pub(super) async fn list(visitor: Visitor, State(state): State<SharedState>, asked: Asked) -> Shown {
    let path = visitor.path("/deliveries");
    let read = async {
        let (mut params, mut errors) = (asked.params(), FieldErrors::default());
        let scope = params.scope(&visitor.caller, &mut errors)?;
        let query = DeliveriesQuery::read(&mut params, &mut errors);
        let page = params.page(List::Deliveries, errors)?;
        let page = state.reader.deliveries(&scope, &query.into(), page).await?;
        let ids = page.items.iter().map(|delivery| delivery.subscription_id);
        let urls = list::callback_urls(&state, &scope, ids).await?;
        Ok::<_, Problem>((page, urls))
    };
    let (deliveries, next, urls, problem) = match read.await {
        Ok((page, urls)) => (page.items, page.next, urls, None),
        Err(problem) if problem.status().is_client_error() => {
            (Vec::new(), None, HashMap::new(), Some(problem))
        }
        Err(problem) => return Err(problem.into()),
    };
    let fields = html! {
        fieldset { legend { "Status" }
            @for status in SagaStatus::ALL {
                label.check { input type="checkbox" name="status" value=(status) checked[asked.has("status", status.as_str())]; (words::status(*status)) }
            }
        }
        (list::field(&asked, "subscription_id", "Subscription", "3"))
        (list::field(&asked, "event_id", "Event", "evt_17"))
        (list::field(&asked, "event_type", "Type", "order.created"))
        (list::field(&asked, "external_id", "External id", ""))
        (list::field(&asked, "correlation_id", "Correlation id", ""))
        (list::tenant(&visitor, &asked))
        (list::times(&asked))
    };
    let body = html! {
        h1 { "Deliveries" }
        (list::filter(&path, &asked, &fields))
        @if let Some(problem) = &problem { (parts::alert(problem.detail())) }
        @else if deliveries.is_empty() { p.empty { @if asked.filters() { "No delivery matches." } @else { "Nothing has been delivered yet: a delivery begins when an event matches a subscription." } } }
        @else {
            (table(&visitor, &deliveries, &urls, About::Anything))
            (asked.pager(&path, List::Deliveries, next))
        }
    };
    let page = Page { title: "Deliveries".to_owned(), section: Section::Deliveries, live: false, body };
    Ok(layout::show(&state, &visitor, &page))
}

/// What a table of deliveries is about: what all its rows have in common is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    Anything,
    AnEvent,
    ASubscription,
}

/// A table of deliveries.
pub(super) fn table(
    visitor: &Visitor,
    deliveries: &[Delivery],
    urls: &HashMap<SubscriptionId, String>,
    about: About,
) -> Markup {
    let tenants = visitor.tenant().is_none() && about == About::Anything;
    let (events, endpoints) = (about != About::AnEvent, about != About::ASubscription);
    html! {
        div.scroll { table {
            thead { tr {
                th { "Delivery" } th { "Status" } @if events { th { "Event" } } @if endpoints { th { "To" } } @if tenants { th { "Tenant" } }
                th.number { "Attempts" } th { "Last error" } th { "Created" }
            } }
            tbody { @for delivery in deliveries { tr {
                td { (parts::delivery_link(visitor, delivery.saga_id.0)) }
                td { (parts::delivery_status(delivery)) }
                @if events { td { (parts::event_link(visitor, delivery.event_id.0)) } }
                @if endpoints { td { (parts::subscription_link(visitor, delivery.subscription_id, urls.get(&delivery.subscription_id).map(String::as_str))) } }
                @if tenants { td { (delivery.tenant) } }
                td.number { (delivery.attempt_count) " of " (delivery.max_retry_limit) }
                td { @if let Some(code) = &delivery.final_error_code { code title=(words::meaning(code).what) { (code) } } }
                td { (parts::time(delivery.created_at, visitor.now)) }
            } } }
        } }
    }
}

pub(super) async fn show(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(Id(id)): OnPage<Id>,
    asked: Asked,
) -> Shown {
    let scope = visitor.scope();
    let found = state.reader.delivery(&scope, SagaId(id)).await?;
    let DeliveryDetail { delivery, attempts } = found.ok_or_else(|| Problem::no_such("delivery", id))?;
    let subscription = state.reader.subscription(&scope, delivery.subscription_id).await?;
    let event = list::event_head(&state, &scope, delivery.event_id).await?;
    let letter = letter_of(&state, &scope, &delivery).await?;
    let url = subscription.as_ref().map(|subscription| subscription.callback_url.as_str());
    let body = html! {
        h1 { "Delivery " code { (id) } " " (parts::delivery_status(&delivery)) }
        (parts::notice(asked.get("done")))
        p.sentence { (explanation(&visitor, &delivery, subscription.as_ref(), letter.as_ref())) }
        (next_steps(&visitor, &delivery, letter.as_ref()))
        (parts::facts(&[
            ("Event", html! { (parts::event_link(&visitor, delivery.event_id.0)) @if let Some(event) = &event { " " (event.event_type) } }),
            ("To", parts::subscription_link(&visitor, delivery.subscription_id, url)),
            ("Tenant", html! { (delivery.tenant) }),
            ("Attempts", html! { (delivery.attempt_count) " of " (delivery.max_retry_limit) }),
            ("Created", parts::time(delivery.created_at, visitor.now)),
            ("Sent again", html! { @if delivery.generation == 0 { "no" } @else { (parts::plural(delivery.generation.into(), "time", "times")) } }),
            ("Correlation id", html! { @if let Some(event) = &event { code { (event.correlation_id) } } }),
        ]))
        section.card { h2 { "Attempts" } (timeline(&visitor, &attempts)) }
        section.card {
            h2 { "For the customer" }
            @let text = for_the_customer(&delivery, event.as_ref(), url, &attempts);
            pre tabindex="0" { (text) }
            button.plain type="button" data-copy=(text) hidden { "Copy for the customer" }
        }
    };
    let live = !delivery.status.is_final() && !delivery.held;
    let page = Page { title: format!("Delivery {id}"), section: Section::Deliveries, live, body };
    Ok(layout::show(&state, &visitor, &page))
}

/// The dead letter of a delivery that was given up: written soon after its end.
async fn letter_of(
    state: &ApiState,
    scope: &TenantScope,
    delivery: &Delivery,
) -> StoreResult<Option<DeadLetterSummary>> {
    if delivery.status != SagaStatus::DeadLettered {
        return Ok(None);
    }
    let filter = DeadLetterFilter {
        subscription_id: Some(delivery.subscription_id),
        created_after: Some(delivery.updated_at),
        created_before: Some(delivery.updated_at.after(LETTER_WITHIN)),
        ..DeadLetterFilter::default()
    };
    let page = PageRequest { limit: 500, before: None };
    let letters = state.reader.dead_letters(scope, &filter, page).await?.items;
    Ok(letters.into_iter().find(|letter| letter.saga_id == delivery.saga_id))
}

/// What happened, and what happens next.
fn explanation(
    visitor: &Visitor,
    delivery: &Delivery,
    subscription: Option<&Subscription>,
    letter: Option<&DeadLetterSummary>,
) -> Markup {
    let attempts = parts::plural(delivery.attempt_count.into(), "attempt", "attempts");
    html! {
        @if delivery.held {
            "It waits: its subscription is "
            @if subscription.is_some_and(|subscription| !subscription.active) { "paused" } @else { "not verified" }
            ". It goes on as soon as that is active and verified."
        } @else { @match delivery.status {
            SagaStatus::Pending => { "It is about to be sent for the first time." }
            SagaStatus::InProgress => { "An attempt is under way." }
            SagaStatus::PendingRetry => {
                (attempts) " failed. The next one is " (parts::due(delivery.next_attempt_at, visitor.now)) "."
            }
            SagaStatus::Completed => {
                "Delivered " (parts::time(delivery.updated_at, visitor.now))
                @if delivery.attempt_count > 1 { ", after " (attempts) } "."
            }
            SagaStatus::DeadLettered => {
                "Given up " (parts::time(delivery.updated_at, visitor.now)) " after " (attempts) "."
                @if let Some(again) = letter.and_then(|letter| letter.requeued_saga_id) {
                    " It was sent again as delivery " (parts::delivery_link(visitor, again.0)) "."
                }
            }
        } }
        @if let Some(code) = delivery.final_error_code.as_ref().filter(|_| delivery.status != SagaStatus::Completed) {
            @let meaning = words::meaning(code);
            " " (meaning.what) " " (meaning.advice)
        }
    }
}

/// What can be done with a delivery that was given up.
fn next_steps(visitor: &Visitor, delivery: &Delivery, letter: Option<&DeadLetterSummary>) -> Markup {
    let open = letter.filter(|letter| letter.requeued_saga_id.is_none());
    html! {
        @if let Some(letter) = open.filter(|_| visitor.may(Scope::Operator)) {
            form method="post" action=(visitor.path("/dead-letters/requeue")) {
                input type="hidden" name="id" value=(letter.id);
                button name="what" value="one" { "Send again" }
            }
        } @else if delivery.status == SagaStatus::DeadLettered && letter.is_none() {
            p { a href=(visitor.path(&format!("/dead-letters?subscription_id={}", delivery.subscription_id))) { "Dead letters of this subscription" } }
        }
    }
}

fn timeline(visitor: &Visitor, attempts: &[Attempt]) -> Markup {
    html! {
        @if attempts.is_empty() { p.quiet { "None yet." } }
        ol.timeline { @for (number, attempt) in (1u32..).zip(attempts) { li class=(attempt_class(attempt.status)) {
            p {
                strong { "Attempt " (number) } " "
                (parts::time(attempt.attempt_at, visitor.now)) " "
                span.quiet { (parts::exact(attempt.attempt_at)) }
            }
            p {
                @match attempt.status {
                    JobStatus::Pending => { "Waits for a worker." }
                    JobStatus::Leased => { "Is being sent." }
                    JobStatus::Completed => { "Delivered" @if let Some(status) = attempt.response_status { ": HTTP " (status) } "." }
                    JobStatus::Failed => {
                        @if let Some(code) = &attempt.error_code {
                            (words::meaning(code).what) " " code { (code) }
                        }
                    }
                }
                @if let Some(ms) = attempt.duration_ms { " " span.quiet { "It took " (parts::number(ms.into())) " ms." } }
                @if attempt.lease_resets > 0 { " " span.quiet { "Its worker ended " (parts::plural(attempt.lease_resets.into(), "time", "times")) "." } }
            }
            @if let Some(excerpt) = attempt.response_excerpt.as_deref().filter(|excerpt| !excerpt.is_empty()) {
                details open[number as usize == attempts.len()] { summary { "What the endpoint returned" } pre tabindex="0" { (excerpt) } }
            }
        } } }
    }
}

const fn attempt_class(status: JobStatus) -> &'static str {
    match status {
        JobStatus::Pending | JobStatus::Leased => "open",
        JobStatus::Completed => "good",
        JobStatus::Failed => "bad",
    }
}

/// The story of a delivery as text that can be sent to somebody.
fn for_the_customer(
    delivery: &Delivery,
    event: Option<&EventHead>,
    url: Option<&str>,
    attempts: &[Attempt],
) -> String {
    let mut text = format!("Webhook evt_{}", delivery.event_id);
    if let Some(event) = event {
        let _ = write!(text, " ({}), received {}", event.event_type, parts::exact(event.created_at));
    }
    if let Some(url) = url {
        let _ = write!(text, "\nTo {url}");
    }
    for (number, attempt) in (1u32..).zip(attempts) {
        let _ = write!(text, "\n{number}. {}: ", parts::exact(attempt.attempt_at));
        match (attempt.status, &attempt.error_code) {
            (JobStatus::Completed, _) => text.push_str("delivered"),
            (JobStatus::Failed, Some(code)) => text.push_str(words::meaning(code).what.trim_end_matches('.')),
            _ => text.push_str("under way"),
        }
        if let Some(ms) = attempt.duration_ms {
            let _ = write!(text, " ({ms} ms)");
        }
    }
    let status = words::status(delivery.status).to_lowercase();
    let _ = write!(
        text,
        "\nStatus: {status}, {} of {} attempts",
        delivery.attempt_count, delivery.max_retry_limit
    );
    text
}
