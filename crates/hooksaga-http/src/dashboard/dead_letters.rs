//! Dead letters: the list with what can be sent again, and one with its payload.

use super::{
    OnPage, PageResult, Visitor,
    events::payload_views,
    filter_form::{self, View},
    form::Form,
    keys,
    layout::{self, HtmlPage, Section},
    list::{self, Asked},
    parts, words,
};
use crate::{
    api::dead_letters::requeue_many,
    audit,
    cursor::ListKind,
    dto::{DeadLettersQuery, RequeueAllRequest},
    errors::{FieldErrors, complete},
    json::Object,
    listing::ListRequest,
    path::Id,
    problem::Problem,
    state::{ApiState, SharedState},
    validate,
};
use axum::{
    extract::State,
    response::{IntoResponse, Redirect},
};
use hooksaga_pipeline::RequeueTally;
use hooksaga_saga::{DeadLetterId, SagaId, SubscriptionId};
use hooksaga_store::{AuditFilter, DeadLetterSummary, Delivery, PageRequest, RequeueOutcome, Scope};
use maud::{Markup, html};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// How many are sent again at a time, oldest first. The page says so, and the rest can follow.
const AT_A_TIME: u32 = 1000;

/// A count ends here, as the API's does.
const COUNTED: u32 = 10_000;

/// The letters that one form selects: those of a page.
const MOST_SELECTED: usize = 500;

pub(super) async fn list(visitor: Visitor, State(state): State<SharedState>, asked: Asked) -> PageResult {
    list_page(&state, &visitor, &asked, html! {}).await
}

async fn list_page(state: &ApiState, visitor: &Visitor, asked: &Asked, said: Markup) -> PageResult {
    let path = visitor.path("/dead-letters");
    let read = async {
        let ListRequest { scope, query, page, .. } = asked.listing::<DeadLettersQuery>(visitor)?;
        let page = state.reader.dead_letters(page.of(&scope, &query.into())).await?;
        let ids = page.items.iter().map(|letter| letter.subscription_id);
        let urls = list::callback_urls(state, &scope, ids).await?;
        let again: Vec<_> = page.items.iter().filter_map(|letter| letter.requeued_saga_id).collect();
        let again = list::deliveries(state, &scope, &again).await?;
        let beside = RelatedRows { urls, again };
        Ok::<_, Problem>((page, beside))
    };
    let (letters, next, beside, problem) = match read.await {
        Ok((page, beside)) => (page.items, page.next, beside, None),
        Err(problem) if problem.status().is_client_error() => {
            (Vec::new(), None, RelatedRows::default(), Some(problem))
        }
        Err(problem) => return Err(problem.into()),
    };
    let fields = html! {
        (list::field(asked, "subscription_id", "Subscription", "3"))
        (list::field(asked, "event_type", "Type", "order.created"))
        (list::field(asked, "final_error_code", "Error code", "HTTP_503"))
        label { span { "Sent again" } select name="requeued" {
            option value="" { "any" }
            option value="false" selected[asked.has("requeued", "false")] { "not yet" }
            option value="true" selected[asked.has("requeued", "true")] { "already" }
        } }
        (list::tenant(visitor, asked))
        (list::times(asked))
    };
    let views =
        [View::all(), View::one("Open", "requeued", "false"), View::one("Sent again", "requeued", "true")];
    let body = html! {
        h1 { "Dead letters" }
        p.quiet { "Deliveries that were given up. Sending one again makes a new delivery; the old one stays as it is." }
        (filter_form::filter(&path, asked, &views, problem.is_some(), &fields))
        @if let Some(problem) = &problem { (filter_form::refused(problem)) }
        @else if asked.filters() && letters.is_empty() { (filter_form::none_matches(&path, "No dead letter matches.")) }
        @else if letters.is_empty() { (parts::empty("There is none. That is how it should be.", &html! {})) }
        @else {
            (selectable(visitor, &letters, &beside, asked))
            (asked.pager(&path, ListKind::DeadLetters, next))
        }
    };
    let at = Some(asked.address(&path));
    let page = HtmlPage { at, said, ..HtmlPage::new("Dead letters", Section::DeadLetters, body) };
    Ok(layout::show(state, visitor, &page))
}

/// What is shown of other rows than the letters' own.
#[derive(Default)]
struct RelatedRows {
    urls: HashMap<SubscriptionId, String>,
    /// What became of those that were sent again.
    again: HashMap<SagaId, Delivery>,
}

/// The table, in a form that sends the chosen ones, or all that match the filter, again.
fn selectable(
    visitor: &Visitor,
    letters: &[DeadLetterSummary],
    beside: &RelatedRows,
    asked: &Asked,
) -> Markup {
    let may = visitor.may(Scope::Operator);
    let tenants = visitor.tenant().is_none();
    html! {
        form method="post" action=(visitor.path("/dead-letters/requeue")) {
            (filter_fields(asked.pairs()))
            @if may { div.actions {
                button name="what" value="selected" data-selected="id" { "Send selected again" }
                @if !asked.has("requeued", "true") {
                    button.plain name="what" value="count" { @if asked.filters() { "Send all that match again…" } @else { "Send all again…" } }
                }
            } }
            div.scroll { table {
                thead { tr {
                    @if may { th { span.unseen { "Select" } input type="checkbox" data-all="id" aria-label="Select all on this page" hidden; } }
                    th { "Letter" } th { "Event" } th { "Type" } th { "To" } @if tenants { th { "Tenant" } } th { "Error" } th { "Given up" } th { "Sent again" }
                } }
                tbody { @for letter in letters { tr {
                    @if may { td.first {
                        @if letter.requeued_saga_id.is_none() {
                            input type="checkbox" name="id" value=(letter.id) aria-label=(format!("Select dead letter {}", letter.id));
                        }
                    } }
                    td.first { a href=(visitor.path(&format!("/dead-letters/{}", letter.id))) { (letter.id) } }
                    td { (parts::event_link(visitor, letter.event_id.0)) }
                    (parts::cut(&letter.event_type))
                    td { (parts::subscription_link(visitor, letter.subscription_id, beside.urls.get(&letter.subscription_id).map(String::as_str))) }
                    @if tenants { (parts::cut(&letter.tenant)) }
                    td.first { code title=(words::meaning(&letter.final_error_code).what) { (letter.final_error_code) } }
                    td.first.end { (parts::time(letter.created_at, visitor.now)) }
                    td data-name="Sent again" { @match letter.requeued_saga_id {
                        Some(saga) => { "as " (parts::delivery_link(visitor, saga.0)) @if let Some(again) = beside.again.get(&saga) { " " (parts::delivery_status(again)) } },
                        None => span.quiet { "no" },
                    } }
                } } }
            } }
        }
    }
}

/// The filter as hidden fields, so that what is sent again is what was seen.
fn filter_fields<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Markup {
    html! { @for (name, value) in pairs { input type="hidden" name=(format!("filter.{name}")) value=(value); } }
}

pub(super) async fn show(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(Id(id)): OnPage<Id>,
) -> PageResult {
    let scope = visitor.scope();
    let found = state.reader.dead_letter(&scope, DeadLetterId(id)).await?;
    let letter = found.ok_or_else(|| Problem::no_such("dead letter", id))?;
    let summary = &letter.summary;
    let urls = list::callback_urls(&state, &scope, [summary.subscription_id]).await?;
    let again = match summary.requeued_saga_id {
        Some(saga) => state.reader.delivery(&scope, saga).await?.map(|detail| detail.delivery),
        None => None,
    };
    let by = sent_again_by(&state, &visitor, summary).await?;
    let meaning = words::meaning(&summary.final_error_code);
    let body = html! {
        div.heading {
            h1 { "Dead letter " code { (id) } }
            @if summary.requeued_saga_id.is_none() && visitor.may(Scope::Operator) {
                form method="post" action=(visitor.path("/dead-letters/requeue")) {
                    input type="hidden" name="id" value=(id);
                    button name="what" value="one" { "Send again" }
                }
            }
        }
        p.sentence { (meaning.what) " " (meaning.advice(visitor.site)) }
        @if let Some(saga) = summary.requeued_saga_id { p {
            "It was sent again"
            @if let Some(again) = &again { " " (parts::time(again.created_at, visitor.now)) }
            @if let Some(by) = &by { " by " strong { (by) } }
            " as delivery " (parts::delivery_link(&visitor, saga.0))
            @if let Some(again) = &again { " " (parts::delivery_status(again)) }
        } }
        (parts::facts([
            Some(("Event", html! { (parts::event_link(&visitor, summary.event_id.0)) " " (summary.event_type) })),
            Some(("To", parts::subscription_link(&visitor, summary.subscription_id, urls.get(&summary.subscription_id).map(String::as_str)))),
            Some(("Delivery", parts::delivery_link(&visitor, summary.saga_id.0))),
            parts::tenant_fact(&visitor, &summary.tenant),
            Some(("Error", html! { code { (summary.final_error_code) } })),
            Some(("Given up", parts::time(summary.created_at, visitor.now))),
        ].into_iter().flatten()))
        section.card { h2 { "Payload" } (payload_views(&visitor, summary.event_id.0, &letter.payload)) }
    };
    let page = HtmlPage::new(format!("Dead letter {id}"), Section::DeadLetters, body);
    Ok(layout::show(&state, &visitor, &page))
}

/// Who sent it again, for those who may read audit records; `None` if it was sent with many others, whose record names
/// none of them.
async fn sent_again_by(
    state: &ApiState,
    visitor: &Visitor,
    letter: &DeadLetterSummary,
) -> Result<Option<String>, Problem> {
    const ACTIONS: [&str; 3] = ["dead_letter.requeue", "dead_letters.requeue", "delivery.resend"];
    if letter.requeued_saga_id.is_none() || !keys::may_see(visitor) {
        return Ok(None);
    }
    for target in [format!("dead-letters/{}", letter.id), format!("deliveries/{}", letter.saga_id)] {
        let filter = AuditFilter { target: Some(target), ..AuditFilter::default() };
        let page = PageRequest { limit: 100, before: None };
        let records = state.reader.audit(page.of(&visitor.scope(), &filter)).await?.items;
        // Who asks again changes nothing: the first did it.
        let first = records.into_iter().rfind(|record| ACTIONS.contains(&record.action.as_str()));
        if let Some(record) = first {
            return Ok(Some(record.key_name));
        }
    }
    Ok(None)
}

/// Sends one, the selected ones, or all that match a filter again; the last after a count that is confirmed.
pub(super) async fn requeue(visitor: Visitor, State(state): State<SharedState>, form: Form) -> PageResult {
    visitor.needs(Scope::Operator)?;
    match form.get("what") {
        "count" => count(&state, &visitor, &form).await,
        "all" => all(&state, &visitor, &form).await,
        "one" => one(&state, &visitor, form.get("id")).await,
        _ => selected(&state, &visitor, &form).await,
    }
}

async fn one(state: &ApiState, visitor: &Visitor, id: &str) -> PageResult {
    let id = validate::id(id).map_err(|_| Problem::no_such("dead letter", id))?;
    let to = |saga: i64, done: &str| {
        Ok(Redirect::to(&visitor.path(&format!("/deliveries/{saga}?done={done}"))).into_response())
    };
    match state.requeue.one(&visitor.scope(), DeadLetterId(id)).await? {
        RequeueOutcome::Created(requeued, _) => {
            audit::named(format!("dead-letters/{id}"));
            to(requeued.saga_id.0, "requeued")
        }
        RequeueOutcome::Already(requeued) => {
            audit::changed_nothing();
            to(requeued.saga_id.0, "requeued-before")
        }
        RequeueOutcome::NotDeliverable(subscription) => {
            audit::changed_nothing();
            let said = not_deliverable(visitor, subscription);
            list_page(state, visitor, &Asked::default(), said).await
        }
        RequeueOutcome::NotFound => Err(Problem::no_such("dead letter", id).into()),
    }
}

pub(super) fn not_deliverable(visitor: &Visitor, subscription: SubscriptionId) -> Markup {
    html! {
        p.alert role="alert" {
            "Nothing was sent: " a href=(visitor.path(&format!("/subscriptions/{subscription}"))) { "subscription " (subscription) }
            " must be active and verified first."
        }
    }
}

async fn selected(state: &ApiState, visitor: &Visitor, form: &Form) -> PageResult {
    let mut tally = RequeueTally::default();
    let mut before = 0u64;
    for id in form.all("id").filter_map(|id| validate::id(id).ok()).take(MOST_SELECTED) {
        match state.requeue.one(&visitor.scope(), DeadLetterId(id)).await? {
            RequeueOutcome::Created(..) => {
                audit::done(format!("dead-letters/{id}"));
                tally.requeued += 1;
            }
            RequeueOutcome::Already(_) => before += 1,
            RequeueOutcome::NotDeliverable(_) | RequeueOutcome::NotFound => tally.skipped += 1,
        }
    }
    if tally.requeued == 0 {
        audit::changed_nothing();
    }
    let said = if tally.matched() + before == 0 {
        parts::alert("Select at least one dead letter.")
    } else {
        outcome(tally, before)
    };
    list_page(state, visitor, &asked_of(form), said).await
}

/// What was done, in a sentence.
fn outcome(tally: RequeueTally, before: u64) -> Markup {
    html! {
        p.notice role="status" {
            (parts::plural(tally.requeued, "dead letter was", "dead letters were")) " sent again."
            @if tally.skipped > 0 { " " (parts::number(tally.skipped)) " skipped: the subscription is not active and verified." }
            @if before > 0 { " " (parts::number(before)) " had been sent again before." }
        }
    }
}

/// The filter of a form, as it was in the list's query.
fn asked_of(form: &Form) -> Asked {
    Asked::from_pairs(form.starting_with("filter."))
}

/// Reads the filter as the API does.
fn request(
    visitor: &Visitor,
    asked: &Asked,
    dry_run: bool,
) -> Result<(RequeueAllRequest, hooksaga_store::TenantScope), Problem> {
    let mut filter = Map::new();
    for (name, value) in asked.sent() {
        let value = match name.as_str() {
            "subscription_id" => validate::id(&value).map_or_else(|_| Value::from(value), Value::from),
            "requeued" => value.parse::<bool>().map_or_else(|_| Value::from(value), Value::from),
            _ => value.into(),
        };
        filter.insert(name, value);
    }
    let limit = if dry_run { COUNTED } else { AT_A_TIME };
    let body = json!({ "filter": filter, "limit": limit, "dry_run": dry_run }).to_string();
    let mut errors = FieldErrors::default();
    let request = RequeueAllRequest::read(Object::from_body(body.as_bytes())?, &mut errors);
    let request = complete(errors, request)?;
    let scope = visitor.caller.scope(request.filter.tenant.clone())?;
    Ok((request, scope))
}

async fn run(
    state: &ApiState,
    visitor: &Visitor,
    asked: &Asked,
    dry_run: bool,
) -> Result<RequeueTally, Problem> {
    if asked.sent().any(|(name, value)| name == "requeued" && value == "true") {
        // What was requeued already is not sent again.
        return Ok(RequeueTally::default());
    }
    let (request, scope) = request(visitor, asked, dry_run)?;
    requeue_many(state, &scope, &request.filter.into(), request.limit, dry_run).await
}

/// How many would be sent, with the button that does it.
async fn count(state: &ApiState, visitor: &Visitor, form: &Form) -> PageResult {
    let asked = asked_of(form);
    let tally = run(state, visitor, &asked, true).await?;
    let too_many = tally.requeued > u64::from(AT_A_TIME);
    let said = html! {
        section.card.confirm role="status" {
            h2 {
                @if tally.requeued == 0 { "None would be sent again" }
                @else { (counted(tally.requeued)) " would be sent again" }
            }
            @if tally.skipped > 0 { p { (parts::number(tally.skipped)) " would be skipped: the subscription is not active and verified." } }
            @if tally.requeued > 0 {
                form method="post" action=(visitor.path("/dead-letters/requeue")) {
                    (filter_fields(asked.pairs()))
                    div.actions {
                        @let redrive = visitor.path("/redrives");
                        @if too_many {
                            button formaction=(redrive) name="kind" value="dead_letters" { "Send all that match in the background" }
                            button.plain name="what" value="all" { "Send the oldest " (parts::number(AT_A_TIME.into())) " now" }
                        } @else {
                            button name="what" value="all" { "Send " (parts::number(tally.requeued)) " again" }
                            button.plain formaction=(redrive) name="kind" value="dead_letters" { "In the background" }
                        }
                        a href=(asked.address(&visitor.path("/dead-letters"))) { "Cancel" }
                    }
                }
            }
        }
    };
    list_page(state, visitor, &asked, said).await
}

fn counted(letters: u64) -> String {
    match letters >= u64::from(COUNTED) {
        true => format!("{} or more dead letters", parts::number(letters)),
        false => parts::plural(letters, "dead letter", "dead letters"),
    }
}

async fn all(state: &ApiState, visitor: &Visitor, form: &Form) -> PageResult {
    let asked = asked_of(form);
    let tally = run(state, visitor, &asked, false).await?;
    if tally.requeued == 0 {
        audit::changed_nothing();
    }
    list_page(state, visitor, &asked, outcome(tally, 0)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_ended_says_so() {
        assert_eq!(counted(1), "1 dead letter");
        assert_eq!(counted(9_999), "9,999 dead letters");
        assert_eq!(counted(10_000), "10,000 or more dead letters");
    }
}
