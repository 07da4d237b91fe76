//! Events: the list, one with its payload and where it went, and the payload alone.

use super::{
    OnPage, PageResult, Visitor,
    deliveries::{TableScope, table},
    filter_form,
    home::SEND,
    layout::{self, HtmlPage, Section},
    list::{self, Asked, PageOrProblem},
    parts,
    pretty::pretty,
};
use crate::{
    cursor::ListKind,
    dto::EventsQuery,
    listing::ListRequest,
    path::EventIdInPath,
    problem::Problem,
    state::{ApiState, SharedState},
};
use axum::{extract::State, response::IntoResponse};
use hooksaga_saga::{EventId, EventType, Tenant};
use hooksaga_store::{
    EventDetail, EventHead, PageRequest, Scope, StoreResult, Subscription, SubscriptionFilter, TenantScope,
    Unmatched,
};
use http::header;
use maud::{Markup, html};

/// A longer payload is shown as it is, and one that is longer than this only as a file.
const SHOWN: usize = 128 << 10;

/// Subscriptions that are looked at per topic, to say why an event went nowhere.
const LOOKED_AT: u32 = 20;

pub(super) async fn list(visitor: Visitor, State(state): State<SharedState>, asked: Asked) -> PageResult {
    let path = visitor.path("/events");
    let read = async {
        let ListRequest { scope, query, page, .. } = asked.listing::<EventsQuery>(&visitor)?;
        Ok::<_, Problem>(state.reader.events(page.of(&scope, &query.into())).await?)
    };
    let PageOrProblem { items: events, next, problem } = PageOrProblem::of(read.await)?;
    let fields = html! {
        (list::field(&asked, "event_type", "Type", "order.created"))
        (list::field(&asked, "external_id", "External id", ""))
        (list::field(&asked, "correlation_id", "Correlation id", ""))
        (list::tenant(&visitor, &asked))
        (list::times(&asked))
    };
    let body = html! {
        h1 { "Events" }
        (filter_form::filter(&path, &asked, &[], problem.is_some(), &fields))
        @if let Some(problem) = &problem { (filter_form::refused(problem)) }
        @else if asked.filters() && events.is_empty() { (filter_form::none_matches(&path, "No event matches.")) }
        @else if events.is_empty() { (parts::empty("No event has been sent yet.", &html! { @if visitor.tenant().is_none() { (parts::copy_line(SEND)) } })) }
        @else {
            (heads(&visitor, &events))
            (asked.pager(&path, ListKind::Events, next))
        }
    };
    let page = HtmlPage::new("Events", Section::Events, body);
    Ok(layout::show(&state, &visitor, &page))
}

/// A table of events.
pub(super) fn heads(visitor: &Visitor, events: &[EventHead]) -> Markup {
    let tenants = visitor.tenant().is_none();
    html! {
        div.scroll { table {
            thead { tr { th { "Event" } th { "Type" } @if tenants { th { "Tenant" } } th { "External id" } th { "Received" } } }
            tbody { @for event in events { tr {
                td.first { (parts::event_link(visitor, event.id.0)) }
                td.cut.medium title=(event.event_type) { (event.event_type) }
                @if tenants { (parts::cut(&event.tenant)) }
                td.cut.long title=[&event.external_id] { @if let Some(id) = &event.external_id { (id) } }
                td.first.end { (parts::time(event.created_at, visitor.now)) }
            } } }
        } }
    }
}

pub(super) async fn show(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(EventIdInPath(id)): OnPage<EventIdInPath>,
) -> PageResult {
    let scope = visitor.scope();
    let event = find(&state, &scope, id).await?;
    let nowhere = if event.routed && event.deliveries.is_empty() {
        Some(matching(&state, &event.head).await?)
    } else {
        None
    };
    let head = &event.head;
    let open = event.deliveries.iter().any(|delivery| !delivery.status.is_final());
    let body = html! {
        h1 { "Event " code { "evt_" (id) } }
        (parts::facts([
            Some(("Type", html! { a href=(visitor.path(&format!("/events?event_type={}", head.event_type))) { (parts::type_fact(&head.event_type)) } })),
            parts::tenant_fact(&visitor, &head.tenant),
            Some(("Received", parts::time(head.created_at, visitor.now))),
            Some(("External id", parts::id_fact(head.external_id.as_deref()))),
            Some(("Correlation id", parts::id_fact(Some(&head.correlation_id)))),
        ].into_iter().flatten()))
        section.card {
            h2 { "Where it went" }
            @if !event.routed { p { "Its subscriptions are being looked up." } }
            @if let Some(matching) = &nowhere { (why_nowhere(&visitor, head, event.unmatched, matching)) }
            @else { (left_out(&visitor, event.unmatched)) }
            @if !event.deliveries.is_empty() { (table(&visitor, &event.deliveries, TableScope::AnEvent)) }
            @if event.deliveries.len() >= 500 {
                p.quiet { "The first 500. " a href=(visitor.path(&format!("/deliveries?event_id={id}"))) { "All of them" } }
            }
        }
    };
    let unchanging = html! {
        @if !visitor.part_only { section.card { h2 { "Payload" } (payload_views(&visitor, id, &event.payload)) } }
    };
    let live = !event.routed || open;
    let page = HtmlPage { live, unchanging, ..HtmlPage::new(format!("evt_{id}"), Section::Events, body) };
    Ok(layout::show(&state, &visitor, &page))
}

async fn find(state: &ApiState, scope: &TenantScope, id: i64) -> Result<EventDetail, Problem> {
    state.reader.event(scope, EventId(id)).await?.ok_or_else(|| Problem::no_such("event", id))
}

/// A payload, indented and as received.
pub(super) fn payload_views(visitor: &Visitor, event_id: i64, payload: &str) -> Markup {
    let file = visitor.path(&format!("/events/{event_id}/payload"));
    let size = format!("{} bytes", parts::number(payload.len() as u64));
    html! {
        @if payload.len() > SHOWN {
            p { "It has " (size) ". " a href=(file) { "Show it as text" } }
        } @else {
            @if let Some(pretty) = pretty(payload, 4 * SHOWN) { pre tabindex="0" { (pretty) } }
            details { summary { "Exactly as it came (" (size) ")" } pre tabindex="0" { (payload) } p { a href=(file) { "As text" } } }
        }
    }
}

/// The subscriptions of the event's tenant that match it now.
async fn matching(state: &ApiState, head: &EventHead) -> StoreResult<Vec<Subscription>> {
    let (Ok(tenant), Ok(event_type)) = (head.tenant.parse::<Tenant>(), head.event_type.parse::<EventType>())
    else {
        return Ok(Vec::new());
    };
    let scope = TenantScope::One(tenant);
    let page = PageRequest { limit: LOOKED_AT, before: None };
    let mut found: Vec<Subscription> = Vec::new();
    for topic in event_type.matching_topics() {
        let filter = SubscriptionFilter { event_type: Some(topic), ..SubscriptionFilter::default() };
        let subscriptions = state.reader.subscriptions(page.of(&scope, &filter)).await?.items;
        found.extend(subscriptions.into_iter().filter(|new| new.created_at <= head.created_at));
    }
    found.sort_by_key(|subscription| subscription.id.0);
    found.dedup_by_key(|subscription| subscription.id.0);
    Ok(found)
}

/// What was recorded when it was routed, and how those whom it concerns stand now, which may be another matter.
fn why_nowhere(
    visitor: &Visitor,
    head: &EventHead,
    unmatched: Unmatched,
    matching: &[Subscription],
) -> Markup {
    html! {
        @if unmatched.total() == 0 {
            p { "Nowhere: when it came, no subscription of tenant " strong { (head.tenant) } " had a topic that matches " code { (head.event_type) } "." }
            p.quiet { "Topics that match it: " (head.event_type.parse::<EventType>().map(|event_type| event_type.matching_topics().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")).unwrap_or_default()) "." }
            @if visitor.may(Scope::Admin) { p { a href=(new_for(visitor, head)) { "Subscribe an endpoint to it" } ", for the events to come." } }
        } @else {
            p { "Nowhere: no subscription with a matching topic was active and verified when it came." }
            (left_out(visitor, unmatched))
        }
        @if !matching.is_empty() {
            p { "How the subscriptions with a matching topic stand now:" }
            ul { @for subscription in matching { li {
                (parts::subscription_link(visitor, subscription.id, Some(&subscription.callback_url))) " " (parts::subscription_state(subscription))
            } } }
        }
    }
}

/// The form for a subscription to events like this one.
fn new_for(visitor: &Visitor, head: &EventHead) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("topics", &head.event_type);
    if visitor.tenant().is_none() {
        query.append_pair("tenant", &head.tenant);
    }
    visitor.path(&format!("/subscriptions/new?{}", query.finish()))
}

/// Which subscriptions it could not go to when it was routed.
fn left_out(visitor: &Visitor, unmatched: Unmatched) -> Markup {
    let Unmatched { paused, disabled, unverified } = unmatched;
    let counts = [(paused, "paused"), (disabled, "switched off"), (unverified, "not verified")];
    let counts: Vec<_> = counts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, state)| format!("{} {state}", parts::number(count)))
        .collect();
    html! {
        @if !counts.is_empty() {
            p {
                "When it came, it could not go to " (parts::plural(unmatched.total(), "subscription", "subscriptions"))
                " with a matching topic: " (counts.join(", ")) "."
                @if unverified > 0 { " One that was not verified gets it once it is verified, unless the event is too old by then." }
                @if paused + disabled > 0 { " A " a href=(visitor.path("/redrives")) { "redrive" } " sends it to one that was paused or switched off." }
            }
        }
    }
}

/// The payload alone, byte for byte, as text that no browser runs.
pub(super) async fn payload(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(EventIdInPath(id)): OnPage<EventIdInPath>,
) -> PageResult {
    let event = find(&state, &visitor.scope(), id).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], event.payload.to_string()).into_response())
}
