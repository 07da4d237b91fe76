//! One search box: ids, and what senders and receivers know an event or an endpoint by.

use super::{
    PageResult, Visitor,
    deliveries::{TableScope, table},
    events::heads,
    layout::{self, HtmlPage, Section},
    list::{Asked, event_head},
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
use hooksaga_saga::{CorrelationId, EventId, ExternalId, SagaId, SubscriptionId};
use hooksaga_store::{
    Delivery, EventFilter, EventHead, PageRequest, StoreResult, Subscription, SubscriptionFilter,
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
}

impl SearchHits {
    /// The page of the only thing that was found.
    fn only(&self) -> Option<String> {
        match (&self.events[..], &self.subscriptions[..], &self.delivery) {
            ([event], [], None) => Some(format!("/events/{}", event.id)),
            ([], [subscription], None) => Some(format!("/subscriptions/{}", subscription.id)),
            ([], [], Some(delivery)) => Some(format!("/deliveries/{}", delivery.saga_id)),
            _ => None,
        }
    }
}

pub(super) async fn show(visitor: Visitor, State(state): State<SharedState>, asked: Asked) -> PageResult {
    let text = asked.get("q").unwrap_or_default();
    let found = find(&state, &visitor, text).await?;
    if let Some(only) = found.only() {
        return Ok(Redirect::to(&visitor.path(&only)).into_response());
    }
    let nothing = found.events.is_empty() && found.subscriptions.is_empty() && found.delivery.is_none();
    let body = html! {
        h1 { "Search" }
        @if text.is_empty() { (hint()) }
        @else if nothing { div.empty { p { "Nothing was found for " strong { (text) } "." } (hint()) } }
        @else {
            p.quiet { "Found for " strong { (text) } ":" }
            @if let Some(delivery) = &found.delivery { section.found { h2 { "Delivery" } (table(&visitor, std::slice::from_ref(delivery), TableScope::Anything)) } }
            @if !found.subscriptions.is_empty() { section.found { h2 { "Subscriptions" } (rows(&visitor, &found.subscriptions))
                (more(&visitor, found.subscriptions.len(), "/subscriptions", &[("callback_url", found.subscriptions[0].callback_url.as_str())]))
            } }
            @if !found.events.is_empty() { section.found { h2 { "Events" } (heads(&visitor, &found.events))
                (more(&visitor, found.events.len(), "/events", &[("correlation_id", text)]))
            } }
        }
    };
    let page = HtmlPage::new("Search", Section::None, body);
    Ok(layout::show(&state, &visitor, &page))
}

/// The list of all, where search shows the newest only.
fn more(visitor: &Visitor, found: usize, path: &str, filter: &[(&str, &str)]) -> Markup {
    let list = Asked::default().with(&visitor.path(path), |_, _| true, filter);
    html! { @if found >= MOST.limit as usize { p { "These are the newest. " a href=(list) { "Show all" } } } }
}

fn hint() -> Markup {
    html! {
        p.quiet {
            "Search takes an event's id (" code { "evt_17" } "), the number of an event, a delivery or a subscription, a correlation or external id, or a callback URL, each in full."
        }
    }
}

/// Looks up what the text can be; each is a lookup by an index.
async fn find(state: &ApiState, visitor: &Visitor, text: &str) -> StoreResult<SearchHits> {
    let (scope, reader) = (visitor.scope(), &state.reader);
    let mut found = SearchHits::default();
    if let Some(id) = event_id(text) {
        found.events.extend(event_head(state, &scope, EventId(id)).await?);
        return Ok(found);
    }
    if let Ok(id) = validate::id(text) {
        found.events.extend(event_head(state, &scope, EventId(id)).await?);
        found.delivery = reader.delivery(&scope, SagaId(id)).await?.map(|found| found.delivery);
        found.subscriptions.extend(reader.subscription(&scope, SubscriptionId(id)).await?);
    }
    for url in callback_urls(text) {
        let filter = SubscriptionFilter { callback_url: Some(url), ..SubscriptionFilter::default() };
        found.subscriptions.extend(reader.subscriptions(MOST.of(&scope, &filter)).await?.items);
    }
    if text.parse::<ExternalId>().is_ok() {
        let filter = EventFilter { external_id: Some(text.to_owned()), ..EventFilter::default() };
        found.events.extend(reader.events(MOST.of(&scope, &filter)).await?.items);
    }
    if text.parse::<CorrelationId>().is_ok() {
        let filter = EventFilter { correlation_id: Some(text.to_owned()), ..EventFilter::default() };
        found.events.extend(reader.events(MOST.of(&scope, &filter)).await?.items);
    }
    found.events.sort_by_key(|event| std::cmp::Reverse(event.id.0));
    found.events.dedup_by_key(|event| event.id.0);
    Ok(found)
}

/// `evt_17`, however it is written.
fn event_id(text: &str) -> Option<i64> {
    let (prefix, id) = text.split_at_checked(4)?;
    prefix.eq_ignore_ascii_case("evt_").then(|| validate::id(id).ok()).flatten()
}

/// The callback URLs that a text can mean: as the API reads them, and without the scheme, as tables show them.
fn callback_urls(text: &str) -> Vec<String> {
    let urls = if text.contains("://") {
        vec![text.to_owned()]
    } else if text.contains(['.', '/']) {
        vec![format!("https://{text}"), format!("http://{text}")]
    } else {
        Vec::new()
    };
    urls.into_iter().filter_map(|url| validate::visible_ascii(url, 500).ok()).collect()
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
        assert_eq!(callback_urls("http://a.example/x"), ["http://a.example/x"]);
        assert_eq!(callback_urls("a.example/x"), ["https://a.example/x", "http://a.example/x"]);
        for text in ["order-42", "two words.", "\0://", "", "evt_17"] {
            assert_eq!(callback_urls(text), Vec::<String>::new(), "{text}");
        }
    }
}
