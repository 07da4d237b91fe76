//! Dead letters: the list with what can be sent again, and one with its payload.

use super::{
    OnPage, PageResult, Visitor,
    events::payload_views,
    filter_form::{self, View},
    form::Form,
    layout::{self, HtmlPage, Section},
    list::{self, Asked},
    parts,
    sent_again_by::sent_again_by,
    words,
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
use hooksaga_store::{DeadLetterSummary, Delivery, RequeueOutcome, Scope};
use maud::{Markup, html};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

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
        Err(problem) if list::is_about_the_filter(&problem) => {
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
            (list::carried(asked.pairs().chain(asked.place())))
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
        Some(saga) => list::deliveries(&state, &scope, &[saga]).await?.remove(&saga),
        None => None,
    };
    let by = match &again {
        Some(again) => sent_again_by(&state, &visitor, summary, again).await?,
        None => None,
    };
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
        p.sentence { (meaning.what) " " (meaning.advice(visitor.audience())) }
        @if let Some(saga) = summary.requeued_saga_id { p {
            "It was sent again"
            @if let Some(again) = &again { " " (parts::time(again.created_at, visitor.now)) }
            @if let Some(by) = &by {
                " by " strong { (by.name) }
                @if let Some(redrive) = by.redrive { " with " a href=(visitor.path(&format!("/redrives/{redrive}"))) { "redrive " (redrive) } }
            }
            " as delivery " (parts::delivery_link(&visitor, saga.0))
            @if let Some(again) = &again { " " (parts::delivery_status(again)) }
        } }
        (parts::facts([
            Some(("Event", html! { (parts::event_link(&visitor, summary.event_id.0)) " " (parts::type_fact(&summary.event_type)) })),
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

/// Sends one or the selected ones again, or counts all that match a filter. Those are sent by a redrive, whose page shows how
/// far it came and who started it.
pub(super) async fn requeue(visitor: Visitor, State(state): State<SharedState>, form: Form) -> PageResult {
    visitor.needs(Scope::Operator)?;
    match form.get("what") {
        "count" => count(&state, &visitor, &form).await,
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
    let mut selected = Selected::default();
    for id in form.all("id").filter_map(|id| validate::id(id).ok()).take(MOST_SELECTED) {
        match state.requeue.one(&visitor.scope(), DeadLetterId(id)).await? {
            RequeueOutcome::Created(..) => {
                audit::done(format!("dead-letters/{id}"));
                selected.sent += 1;
            }
            RequeueOutcome::Already(_) => selected.before += 1,
            RequeueOutcome::NotDeliverable(_) => selected.skipped += 1,
            RequeueOutcome::NotFound => selected.gone += 1,
        }
    }
    if selected.sent == 0 {
        audit::changed_nothing();
    }
    list_page(state, visitor, &form.filter(), selected.outcome()).await
}

/// What became of the selected ones.
#[derive(Default, PartialEq, Eq)]
struct Selected {
    sent: u64,
    /// They had been sent again before.
    before: u64,
    /// Their subscription is not active and verified.
    skipped: u64,
    /// There is no such letter, or none that this visitor may see.
    gone: u64,
}

impl Selected {
    /// In a few sentences.
    fn outcome(&self) -> Markup {
        if *self == Self::default() {
            return parts::alert("Select at least one dead letter.");
        }
        html! {
            p.notice role="status" {
                (parts::plural(self.sent, "dead letter was", "dead letters were")) " sent again."
                @if self.skipped > 0 { " " (parts::number(self.skipped)) " skipped: the subscription is not active and verified." }
                @if self.before > 0 { " " (parts::number(self.before)) " had been sent again before." }
                @if self.gone > 0 { " " (parts::plural(self.gone, "is", "are")) " no longer there." }
            }
        }
    }
}

/// How many letters would be sent again, with the filter read as the API reads it.
async fn dry_run(state: &ApiState, visitor: &Visitor, asked: &Asked) -> Result<RequeueTally, Problem> {
    let mut filter = Map::new();
    for (name, value) in asked.sent() {
        let value = match name.as_str() {
            "cursor" | "limit" => continue,
            "subscription_id" => validate::id(&value).map_or_else(|_| Value::from(value), Value::from),
            "requeued" => value.parse::<bool>().map_or_else(|_| Value::from(value), Value::from),
            _ => value.into(),
        };
        filter.insert(name, value);
    }
    let body = json!({ "filter": filter, "limit": COUNTED, "dry_run": true }).to_string();
    let mut errors = FieldErrors::default();
    let request = RequeueAllRequest::read(Object::from_body(body.as_bytes())?, &mut errors);
    let request = complete(errors, request)?;
    let scope = visitor.caller.scope(request.filter.tenant.clone())?;
    requeue_many(state, &scope, &request.filter.into(), request.limit, true).await
}

/// How many would be sent, with the button that does it.
async fn count(state: &ApiState, visitor: &Visitor, form: &Form) -> PageResult {
    let asked = form.filter();
    audit::changed_nothing();
    let tally = dry_run(state, visitor, &asked).await?;
    let said = html! {
        section.card.confirm role="status" {
            h2 {
                @if tally.requeued == 0 { "None would be sent again" }
                @else { (counted(tally.requeued)) " would be sent again" }
            }
            @if tally.skipped > 0 { p { (parts::number(tally.skipped)) " would be skipped: the subscription is not active and verified." } }
            @if tally.requeued > 0 {
                p.quiet { "A redrive sends them in the background. Its page shows how far it came." }
                form method="post" action=(visitor.path("/redrives")) {
                    (list::carried(asked.pairs()))
                    div.actions {
                        button name="kind" value="dead_letters" {
                            @if is_bounded(tally.requeued) { "Send all that match again" } @else { "Send " (parts::number(tally.requeued)) " again" }
                        }
                        a href=(asked.address(&visitor.path("/dead-letters"))) { "Cancel" }
                    }
                }
            }
        }
    };
    list_page(state, visitor, &asked, said).await
}

/// Whether the count ended before all letters were looked at.
fn is_bounded(letters: u64) -> bool {
    letters >= u64::from(COUNTED)
}

fn counted(letters: u64) -> String {
    match is_bounded(letters) {
        true => format!("{} or more dead letters", parts::number(letters)),
        false => parts::plural(letters, "dead letter", "dead letters"),
    }
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
