//! One search box: ids, and what senders and receivers know an event or an endpoint by.

use super::{
    PageResult, Visitor,
    deliveries::{TableScope, table},
    events::heads,
    layout::{self, HtmlPage, Section},
    list::{Asked, event_head},
    parts,
    subscriptions::rows,
};
use crate::{
    state::{ApiState, SharedState},
    validate,
};
use axum::{
    extract::State,
    response::{IntoResponse, Redirect},
};
use hooksaga_saga::{CallbackUrl, CorrelationId, DeadLetterId, EventId, ExternalId, SagaId, SubscriptionId};
use hooksaga_store::{
    DeadLetterFilter, DeadLetterSummary, Delivery, EventFilter, EventHead, Page, PageRequest, StoreResult,
    Subscription, SubscriptionFilter, TenantScope,
};
use maud::{Markup, html};

/// Of each kind.
const MOST: PageRequest = PageRequest { limit: 20, before: None };

/// What was found.
#[derive(Default)]
struct SearchHits {
    events: Vec<EventHead>,
    subscriptions: Vec<Subscription>,
    delivery: Option<Delivery>,
    letter: Option<DeadLetterSummary>,
    /// The callback URL that more subscriptions have than are shown.
    subscriptions_by: Option<String>,
    /// The filter of the list that has more events than are shown.
    events_by: Option<&'static str>,
}

impl SearchHits {
    /// The page of the only thing that was found.
    fn only(&self) -> Option<String> {
        match (&self.events[..], &self.subscriptions[..], &self.delivery, &self.letter) {
            ([event], [], None, None) => Some(format!("/events/{}", event.id)),
            ([], [subscription], None, None) => Some(format!("/subscriptions/{}", subscription.id)),
            ([], [], Some(delivery), None) => Some(format!("/deliveries/{}", delivery.saga_id)),
            ([], [], None, Some(letter)) => Some(format!("/dead-letters/{}", letter.id)),
            _ => None,
        }
    }

    /// Adds what has this text as its `by`, of which there may be more than the page shows.
    fn add_events(&mut self, page: Page<EventHead>, by: &'static str) {
        if page.next.is_some() {
            self.events_by = Some(by);
        }
        self.events.extend(page.items);
    }

    fn is_empty(&self) -> bool {
        self.events.is_empty()
            && self.subscriptions.is_empty()
            && self.delivery.is_none()
            && self.letter.is_none()
    }
}

pub(super) async fn show(visitor: Visitor, State(state): State<SharedState>, asked: Asked) -> PageResult {
    let text = asked.get("q").unwrap_or_default();
    let found = find(&state, &visitor, text).await?;
    if let Some(only) = found.only() {
        return Ok(Redirect::to(&visitor.path(&only)).into_response());
    }
    let body = html! {
        h1 { "Search" }
        @if text.is_empty() { (hint()) }
        @else if found.is_empty() { div.empty { p { "Nothing was found for " strong { (text) } "." } (hint()) } }
        @else {
            p.quiet { "Found for " strong { (text) } ":" }
            @if let Some(delivery) = &found.delivery { section.found { h2 { "Delivery" } (table(&visitor, std::slice::from_ref(delivery), TableScope::Anything)) } }
            @if let Some(letter) = &found.letter { section.found { h2 { "Dead letter" } p {
                a href=(visitor.path(&format!("/dead-letters/{}", letter.id))) { "Dead letter " (letter.id) }
                ", of delivery " (parts::delivery_link(&visitor, letter.saga_id.0)) ", given up " (parts::time(letter.created_at, visitor.now)) "."
            } } }
            @if !found.subscriptions.is_empty() { section.found { h2 { "Subscriptions" } (rows(&visitor, &found.subscriptions))
                @if let Some(url) = &found.subscriptions_by { (more(&visitor, "/subscriptions", &[("callback_url", url)])) }
            } }
            @if !found.events.is_empty() { section.found { h2 { "Events" } (heads(&visitor, &found.events))
                @if let Some(by) = found.events_by { (more(&visitor, "/events", &[(by, text)])) }
            } }
        }
    };
    let page = HtmlPage { searched: text.to_owned(), ..HtmlPage::new("Search", Section::None, body) };
    Ok(layout::show(&state, &visitor, &page))
}

/// The list of all, where search shows the newest only.
fn more(visitor: &Visitor, path: &str, filter: &[(&str, &str)]) -> Markup {
    let list = Asked::default().with(&visitor.path(path), |_, _| true, filter);
    html! { p { "These are the newest. " a href=(list) { "Show all" } } }
}

fn hint() -> Markup {
    html! {
        p.quiet {
            "Search takes an event's id (" code { "evt_17" } "), the number of an event, a delivery, a subscription or a dead letter, a correlation or external id, or a callback URL, each in full."
        }
    }
}

/// Looks up what the text can be; each is a lookup by an index.
async fn find(state: &ApiState, visitor: &Visitor, text: &str) -> StoreResult<SearchHits> {
    let (scope, reader) = (visitor.scope(), &state.reader);
    let mut found = SearchHits::default();
    if let Some(id) = event_id(text) {
        found.events.extend(event_head(state, &scope, EventId(id)).await?);
    }
    if let Ok(id) = validate::id(text) {
        found.events.extend(event_head(state, &scope, EventId(id)).await?);
        found.delivery = reader.delivery(&scope, SagaId(id)).await?.map(|found| found.delivery);
        found.subscriptions.extend(reader.subscription(&scope, SubscriptionId(id)).await?);
        found.letter = letter(state, &scope, DeadLetterId(id)).await?;
    }
    for url in callback_urls(text) {
        let filter = SubscriptionFilter { callback_url: Some(url.clone()), ..SubscriptionFilter::default() };
        let page = reader.subscriptions(MOST.of(&scope, &filter)).await?;
        found.subscriptions.extend(page.items);
        found.subscriptions_by = page.next.map(|_| url.to_string()).or(found.subscriptions_by);
    }
    if let Ok(id) = text.parse::<ExternalId>() {
        let filter = EventFilter { external_id: Some(id), ..EventFilter::default() };
        found.add_events(reader.events(MOST.of(&scope, &filter)).await?, "external_id");
    }
    if let Ok(id) = text.parse::<CorrelationId>() {
        let filter = EventFilter { correlation_id: Some(id), ..EventFilter::default() };
        found.add_events(reader.events(MOST.of(&scope, &filter)).await?, "correlation_id");
    }
    found.events.sort_by_key(|event| std::cmp::Reverse(event.id.0));
    found.events.dedup_by_key(|event| event.id.0);
    Ok(found)
}

/// A dead letter without its payload: the newest one up to its id, if that is the one.
async fn letter(
    state: &ApiState,
    scope: &TenantScope,
    id: DeadLetterId,
) -> StoreResult<Option<DeadLetterSummary>> {
    let page = PageRequest { limit: 1, before: Some(id.0.saturating_add(1)) };
    let found = state.reader.dead_letters(page.of(scope, &DeadLetterFilter::default())).await?;
    Ok(found.items.into_iter().find(|letter| letter.id == id))
}

/// `evt_17`, however it is written.
fn event_id(text: &str) -> Option<i64> {
    let (prefix, id) = text.split_at_checked(4)?;
    prefix.eq_ignore_ascii_case("evt_").then(|| validate::id(id).ok()).flatten()
}

/// The callback URLs that a text can mean: as the API reads them, and without the scheme, as tables show them.
fn callback_urls(text: &str) -> Vec<CallbackUrl> {
    let urls = if text.contains("://") {
        vec![text.to_owned()]
    } else if text.contains(['.', '/']) {
        vec![format!("https://{text}"), format!("http://{text}")]
    } else {
        Vec::new()
    };
    urls.iter().filter_map(|url| CallbackUrl::parse(url, true).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_found_in_capitals_too() {
        for (text, id) in
            [("evt_17", Some(17)), ("EVT_17", Some(17)), ("evt_", None), ("evt_x", None), ("é17", None)]
        {
            assert_eq!(event_id(text), id, "{text}");
        }
    }

    #[test]
    fn a_url_is_found_as_a_table_shows_it() {
        let found = |text: &str| callback_urls(text).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found("http://a.example/x"), ["http://a.example/x"]);
        assert_eq!(found("a.example/x"), ["https://a.example/x", "http://a.example/x"]);
        for text in ["order-42", "two words.", "\0://", "", "evt_17"] {
            assert!(callback_urls(text).is_empty(), "{text}");
        }
    }
}
