//! Lists: filters from the query, pages by key, and the callback URLs of what is listed.

use super::{Visitor, form::CARRIED};
use crate::{
    cursor::{self, ListKind},
    listing::{ListParameters, ListRequest},
    problem::{Kind, Problem},
    query::Params,
    state::ApiState,
};
use axum::extract::{FromRequestParts, Query};
use hooksaga_saga::{EventId, SagaId, SubscriptionId};
use hooksaga_store::{Delivery, EventHead, Page, PageRequest, StoreResult, TenantScope};
use http::request::Parts;
use maud::{Markup, html};
use std::{
    collections::{BTreeSet, HashMap},
    convert::Infallible,
};

/// The parameters of a page that narrow no list.
const BESIDE: [&str; 4] = ["cursor", "done", "for", "limit"];

/// The query of a page as it was sent, without empty fields: browsers send those of a form, too.
#[derive(Default)]
pub(super) struct Asked(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Asked {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let pairs: Vec<(String, String)> =
            Query::try_from_uri(&parts.uri).map(|Query(pairs)| pairs).unwrap_or_default();
        Ok(Self::from_pairs(pairs.into_iter()))
    }
}

impl Asked {
    pub(super) fn from_pairs(pairs: impl Iterator<Item = (String, String)>) -> Self {
        let pairs = pairs.map(|(name, value)| (name, value.trim().to_owned()));
        Self(pairs.filter(|(_, value)| !value.is_empty()).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(param, _)| param == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn has(&self, name: &str, value: &str) -> bool {
        self.0.iter().any(|(param, given)| param == name && given == value)
    }

    /// Whether anything but the place in the list was asked for.
    pub(super) fn filters(&self) -> bool {
        self.pairs().next().is_some()
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .filter(|(name, _)| !BESIDE.contains(&name.as_str()))
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Where in the list: what has been narrowed, and is shown a page of.
    pub(super) fn place(&self) -> impl Iterator<Item = (&str, &str)> {
        ["cursor", "limit"].into_iter().filter_map(|name| self.get(name).map(|value| (name, value)))
    }

    /// The parameters, read as the API reads them.
    pub(super) fn listing<Q: ListParameters>(&self, visitor: &Visitor) -> Result<ListRequest<Q>, Problem> {
        ListRequest::read(&visitor.caller, self.params())
    }

    /// The parameters as the API reads them.
    pub(super) fn params(&self) -> Params {
        self.sent().collect::<Vec<_>>().into()
    }

    /// The same. A browser's date and time has no zone: it is UTC.
    pub(super) fn sent(&self) -> impl Iterator<Item = (String, String)> {
        let read = |(name, value): &(String, String)| {
            let zone = match name.as_str() {
                "created_after" | "created_before" | "since" | "until" => missing_zone(value),
                _ => "",
            };
            (name.clone(), format!("{value}{zone}"))
        };
        self.0.iter().filter(|(name, _)| !["done", "for"].contains(&name.as_str())).map(read)
    }

    /// The same query with another place in the list.
    fn query(&self, cursor: Option<&str>) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.pairs().chain(self.get("limit").map(|limit| ("limit", limit))));
        if let Some(cursor) = cursor {
            query.append_pair("cursor", cursor);
        }
        let query = query.finish();
        if query.is_empty() { query } else { format!("?{query}") }
    }

    /// The address of the list with those pairs that `keep` leaves, and these.
    pub(super) fn with(
        &self,
        path: &str,
        keep: impl Fn(&str, &str) -> bool,
        more: &[(&str, &str)],
    ) -> String {
        let kept = self.pairs().filter(|(name, value)| keep(name, value));
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(kept.chain(more.iter().copied()));
        let query = query.finish();
        if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
    }

    /// Where this list is: what a form's result shows can be loaded again from there.
    pub(super) fn address(&self, path: &str) -> String {
        format!("{path}{}", self.query(self.get("cursor")))
    }

    /// The way to newer and older rows.
    pub(super) fn pager(&self, path: &str, list: ListKind, next: Option<i64>) -> Markup {
        let deeper = self.get("cursor").is_some();
        html! {
            @if deeper || next.is_some() {
                nav.pager aria-label="Pages" {
                    @if deeper { a href=(format!("{path}{}", self.query(None))) { "← Newest" } } @else { span {} }
                    @if let Some(next) = next {
                        a rel="next" href=(format!("{path}{}", self.query(Some(&cursor::encode(list, next))))) { "Older →" }
                    }
                }
            }
        }
    }
}

/// What a browser's date and time, to the minute, the second or a part of it, lacks to be one of the API's.
fn missing_zone(text: &str) -> &'static str {
    let of_day = text.get(11..).unwrap_or_default();
    match of_day.len() {
        _ if !of_day.bytes().all(|byte| byte.is_ascii_digit() || b":.".contains(&byte)) => "",
        5 => ":00Z",
        8.. => "Z",
        _ => "",
    }
}

/// A page of a list, or what is wrong with what was asked for, which the page then says in place of the rows.
pub(super) struct PageOrProblem<T> {
    pub(super) items: Vec<T>,
    pub(super) next: Option<i64>,
    pub(super) problem: Option<Problem>,
}

impl<T> PageOrProblem<T> {
    /// What another filter does not repair has a page of its own.
    pub(super) fn of(read: Result<Page<T>, Problem>) -> Result<Self, Problem> {
        match read {
            Ok(page) => Ok(Self { items: page.items, next: page.next, problem: None }),
            Err(problem) if is_about_the_filter(&problem) => {
                Ok(Self { items: Vec::new(), next: None, problem: Some(problem) })
            }
            Err(problem) => Err(problem),
        }
    }
}

/// Whether another filter repairs it: the page then shows the form and what to change.
pub(super) fn is_about_the_filter(problem: &Problem) -> bool {
    problem.status().is_client_error() || problem.kind() == Kind::QueryTooSlow
}

/// The callback URLs of these subscriptions.
pub(super) async fn callback_urls(
    state: &ApiState,
    scope: &TenantScope,
    ids: impl IntoIterator<Item = SubscriptionId>,
) -> StoreResult<HashMap<SubscriptionId, String>> {
    let ids: BTreeSet<i64> = ids.into_iter().map(|id| id.0).collect();
    let ids: Vec<_> = ids.into_iter().map(SubscriptionId).collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    Ok(state.reader.callback_urls(scope, &ids).await?.into_iter().collect())
}

/// These deliveries, as far as they are still there.
pub(super) async fn deliveries(
    state: &ApiState,
    scope: &TenantScope,
    ids: &[SagaId],
) -> StoreResult<HashMap<SagaId, Delivery>> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let found = state.reader.deliveries_of(scope, ids).await?;
    Ok(found.into_iter().map(|delivery| (delivery.saga_id, delivery)).collect())
}

/// An event without its payload: the newest one up to its id, if that is the one.
pub(super) async fn event_head(
    state: &ApiState,
    scope: &TenantScope,
    id: EventId,
) -> StoreResult<Option<EventHead>> {
    let page = PageRequest { limit: 1, before: Some(id.0.saturating_add(1)) };
    let found = state.reader.events(page.of(scope, &hooksaga_store::EventFilter::default())).await?;
    Ok(found.items.into_iter().find(|head| head.id == id))
}

/// What a list shows as hidden fields of a form, so that what the form is about is what was seen.
pub(super) fn carried<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Markup {
    html! { @for (name, value) in pairs { input type="hidden" name=(format!("{CARRIED}{name}")) value=(value); } }
}

/// A text field of a filter.
pub(super) fn field(asked: &Asked, name: &str, label: &str, placeholder: &str) -> Markup {
    html! {
        label { span { (label) }
            input name=(name) value=[asked.get(name)] placeholder=(placeholder) autocomplete="off" spellcheck="false";
        }
    }
}

/// The fields for a span of time.
pub(super) fn times(asked: &Asked) -> Markup {
    html! {
        @for (name, label) in [("created_after", "From (UTC)"), ("created_before", "Before (UTC)")] {
            @let value = asked.get(name).and_then(browser_time);
            // A browser sends no form with a value between two steps.
            @let step = if value.as_ref().is_some_and(|value| value.contains('.')) { "0.001" } else { "1" };
            label { span { (label) } input type="datetime-local" step=(step) name=(name) value=[value]; }
        }
    }
}

/// A time as a browser's field for a date and time takes it: to the millisecond, without a zone. Nothing for what is no
/// time in UTC.
fn browser_time(text: &str) -> Option<String> {
    let at: jiff::civil::DateTime = text.trim_end_matches('Z').parse().ok()?;
    let fits = at.subsec_nanosecond() % 1_000_000 == 0;
    Some(if fits { at.to_string() } else { format!("{at:.3}") })
}

/// The field for a tenant, for those who may see more than one.
pub(super) fn tenant(visitor: &Visitor, asked: &Asked) -> Markup {
    html! { @if visitor.tenant().is_none() { (field(asked, "tenant", "Tenant", "any")) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_a_browser_becomes_one_of_the_api() {
        for (text, zone) in [
            ("2026-01-31T12:00", ":00Z"),
            ("2026-01-31T12:00:01", "Z"),
            ("2026-01-31T12:00:01.5", "Z"),
            ("2026-01-31T12:00:01.123", "Z"),
            ("2026-01-31T12:00:01Z", ""),
            ("2026-01-31T12:00:01.123456Z", ""),
            ("2026-01-31T12:00:01+02:00", ""),
            ("2026-01-31", ""),
            ("yesterday, at noon", ""),
        ] {
            assert_eq!(missing_zone(text), zone, "{text}");
        }
    }

    #[test]
    fn a_field_takes_the_milliseconds_of_its_value() {
        let shown = |text: &str| {
            let pairs = [("created_after".to_owned(), text.to_owned())];
            times(&Asked::from_pairs(pairs.into_iter())).into_string()
        };
        let field = "step=\"0.001\" name=\"created_after\" value=\"2026-01-31T12:00:00.123\"";
        assert!(shown("2026-01-31T12:00:00.123456Z").contains(field));
        assert!(shown("2026-01-31T12:00:00Z").contains("step=\"1\" name=\"created_after\""));
    }

    #[test]
    fn a_time_of_the_api_fits_into_a_browsers_field() {
        for (text, shown) in [
            ("2026-01-31T12:00:00.123456Z", Some("2026-01-31T12:00:00.123")),
            ("2026-01-31T12:00:00.500000Z", Some("2026-01-31T12:00:00.5")),
            ("2026-01-31T12:00:00Z", Some("2026-01-31T12:00:00")),
            ("2026-01-31T12:00", Some("2026-01-31T12:00:00")),
            ("yesterday", None),
            ("\"><script>", None),
        ] {
            assert_eq!(browser_time(text).as_deref(), shown, "{text}");
        }
    }
}
