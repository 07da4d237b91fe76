//! Redrives: large work that sends many again in the background, how far it came, and who began it.

use super::{
    OnPage, PageResult, Visitor,
    form::Form,
    layout::{self, Page, Section},
    list::Asked,
    parts,
    words::capitalised,
};
use crate::{
    api::redrives as api,
    audit,
    cursor::List,
    dto::RedrivesQuery,
    listing::Listing,
    path::Id,
    problem::{Kind, Problem},
    state::{ApiState, SharedState},
    time::Time,
    validate,
};
use axum::{
    extract::State,
    response::{IntoResponse, Redirect},
};
use hooksaga_saga::{RedriveId, Timestamp};
use hooksaga_store::{DeadLetterFilter, Redrive, RedriveStatus, RedriveWork, Scope};
use maud::{Markup, html};
use serde_json::{Map, Value, json};

pub(super) async fn list(visitor: Visitor, State(state): State<SharedState>, asked: Asked) -> PageResult {
    list_page(&state, &visitor, &asked, html! {}).await
}

async fn list_page(state: &ApiState, visitor: &Visitor, asked: &Asked, said: Markup) -> PageResult {
    let path = visitor.path("/redrives");
    let Listing { scope, page, .. } = asked.listing::<RedrivesQuery>(visitor)?;
    let redrives = state.reader.redrives(&scope, page).await?;
    let live = redrives.items.iter().any(|redrive| redrive.status == RedriveStatus::Running);
    let body = html! {
        h1 { "Redrives" }
        p.quiet { "A redrive sends many again in the background: dead letters that match a filter, or the events that a subscription missed. It goes on after a restart." }
        @if redrives.items.is_empty() { (parts::empty("There is none yet.", &html! {})) }
        @else { (table(visitor, &redrives.items)) (asked.pager(&path, List::Redrives, redrives.next)) }
        @if visitor.may(Scope::Operator) { (start_forms(visitor)) }
    };
    let at = Some(asked.address(&path));
    let page = Page { live, at, said, ..Page::new("Redrives", Section::Redrives, body) };
    Ok(layout::show(state, visitor, &page))
}

fn table(visitor: &Visitor, redrives: &[Redrive]) -> Markup {
    // A tenant sees neither other tenants nor who started it, which can be somebody of the operator's.
    let tenants = visitor.tenant().is_none();
    html! {
        div.scroll { table {
            thead { tr {
                th { "Redrive" } th { "Status" } th { "What" } @if tenants { th { "Tenant" } }
                th.number { "Looked at" } th.number { "Sent again" } th.number { "Skipped" } @if tenants { th { "By" } } th { "Started" }
            } }
            tbody { @for redrive in redrives { tr {
                td.first { a href=(visitor.path(&format!("/redrives/{}", redrive.id))) { (redrive.id) } }
                td.first { (status(redrive.status)) }
                td.wrap { (what(visitor, &redrive.work)) }
                @if tenants { td.cut data-name="Tenant" title=[&redrive.tenant] { @match &redrive.tenant { Some(tenant) => (tenant), None => span.quiet { "all" } } } }
                td.number data-name="Looked at" { (parts::number(redrive.examined)) }
                td.number data-name="Sent again" { (parts::number(redrive.created)) }
                td.number data-name="Skipped" { (parts::number(redrive.skipped)) }
                @if tenants { td.cut data-name="By" title=(redrive.started_by.name) { (redrive.started_by.name) } }
                td.first.end { (parts::time(redrive.created_at, visitor.now)) }
            } } }
        } }
    }
}

fn status(status: RedriveStatus) -> Markup {
    let (class, text) = match status {
        RedriveStatus::Running => ("open", "Running"),
        RedriveStatus::Done => ("good", "Done"),
        RedriveStatus::Cancelled => ("held", "Cancelled"),
        RedriveStatus::Failed => ("bad", "Failed"),
    };
    html! { span class=(format!("badge {class}")) { (text) } }
}

/// What it sends, in words.
fn what(visitor: &Visitor, work: &RedriveWork) -> Markup {
    html! { @match work {
        RedriveWork::Events { subscription_id, since, until } => {
            "Events that " (parts::subscription_link(visitor, *subscription_id, None)) " missed since " (parts::exact(*since))
            @if let Some(until) = until { ", before " (parts::exact(*until)) }
        }
        RedriveWork::DeadLetters(filter) => {
            "Dead letters"
            @if let Some(id) = filter.subscription_id { " of " (parts::subscription_link(visitor, id, None)) }
            @if let Some(event_type) = &filter.event_type { ", type " code { (event_type) } }
            @if let Some(code) = &filter.final_error_code { ", error " code { (code) } }
            @if let Some(at) = filter.created_after { ", since " (parts::exact(at)) }
            @if let Some(at) = filter.created_before { ", before " (parts::exact(at)) }
        }
    } }
}

/// The list of the dead letters that match this filter and were sent again, each with what became of it.
fn letters_sent_again(filter: &DeadLetterFilter) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("requeued", "true");
    let time = |at: Timestamp| Time(at).to_string();
    for (name, value) in [
        ("subscription_id", filter.subscription_id.map(|id| id.to_string())),
        ("event_type", filter.event_type.clone()),
        ("final_error_code", filter.final_error_code.clone()),
        ("created_after", filter.created_after.map(time)),
        ("created_before", filter.created_before.map(time)),
    ] {
        query.extend_pairs(value.map(|value| (name, value)));
    }
    format!("/dead-letters?{}", query.finish())
}

fn start_forms(visitor: &Visitor) -> Markup {
    html! {
        section.card {
            h2 { "Send what a subscription missed" }
            p.quiet { "Events of its tenant and topics that it has no delivery of. Dead letters are sent again from " a href=(visitor.path("/dead-letters?requeued=false")) { "their list" } ", where they can be filtered and counted first." }
            form.row method="post" action=(visitor.path("/redrives")) {
                input type="hidden" name="kind" value="events";
                label { span { "Subscription" } input name="subscription_id" required inputmode="numeric" pattern="[0-9]+" placeholder="3" autocomplete="off"; }
                label { span { "Since (UTC)" } input type="datetime-local" step="1" name="since" required; }
                label { span { "Before (UTC)" } input type="datetime-local" step="1" name="until"; }
                div.actions { button { "Start" } }
            }
        }
    }
}

pub(super) async fn show(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(Id(id)): OnPage<Id>,
    asked: Asked,
) -> PageResult {
    let found = state.reader.redrive(&visitor.scope(), RedriveId(id)).await?;
    let redrive = found.ok_or_else(|| Problem::no_such("redrive", id))?;
    let running = redrive.status == RedriveStatus::Running;
    let mut facts = vec![("Tenant", html! { (redrive.tenant.as_deref().unwrap_or("all")) })];
    if visitor.tenant().is_none() {
        facts.push(("Started by", html! { (redrive.started_by.name) }));
    }
    facts.push(("Started", parts::time(redrive.created_at, visitor.now)));
    let last = if running { "Last step" } else { "Ended" };
    facts.push((last, parts::time(redrive.updated_at, visitor.now)));
    let body = html! {
        div.heading {
            h1 { "Redrive " code { (id) } " " (status(redrive.status)) }
            @if running && visitor.may(Scope::Operator) {
                form method="post" action=(visitor.path(&format!("/redrives/{id}/cancel"))) { button.plain { "Cancel" } }
            }
        }
        p.sentence { (what(&visitor, &redrive.work)) "." }
        @if let Some(error) = &redrive.error { (parts::alert(&format!("{}.", capitalised(error)))) }
        section.figures aria-label="How far it came" {
            (parts::figure("Looked at", &parts::number(redrive.examined), None, "", ""))
            (parts::figure("Sent again", &parts::number(redrive.created), None, "", "New deliveries"))
            (parts::figure("Skipped", &parts::number(redrive.skipped), None, "", "Sent before, or not deliverable now"))
        }
        (parts::facts(&facts))
        p { @match &redrive.work {
            RedriveWork::Events { subscription_id, .. } => a href=(visitor.path(&format!("/deliveries?subscription_id={subscription_id}"))) { "The deliveries of that subscription" },
            RedriveWork::DeadLetters(filter) => a href=(visitor.path(&letters_sent_again(filter))) { "What became of these dead letters" },
        } }
    };
    let page = Page {
        live: running,
        at: Some(visitor.path(&format!("/redrives/{id}"))),
        said: parts::notice(asked.get("done")),
        ..Page::new(format!("Redrive {id}"), Section::Redrives, body)
    };
    Ok(layout::show(&state, &visitor, &page))
}

/// Starts one: a form becomes the JSON of the API, so that the same rules hold.
pub(super) async fn start(visitor: Visitor, State(state): State<SharedState>, form: Form) -> PageResult {
    visitor.needs(Scope::Operator)?;
    let body = match form.get("kind") {
        "events" => events(&form),
        "dead_letters" => dead_letters(&form),
        _ => return Err(Problem::with_field(Kind::Invalid, "kind", "must be dead_letters or events").into()),
    };
    match api::start_from(&state, &visitor.caller, body.to_string().as_bytes()).await {
        Ok(redrive) => {
            Ok(Redirect::to(&visitor.path(&format!("/redrives/{}?done=redrive", redrive.id))).into_response())
        }
        Err(problem) if problem.status().is_client_error() => {
            audit::changed_nothing();
            let said = parts::alert(&format!("{}.", capitalised(problem.detail())));
            list_page(&state, &visitor, &Asked::default(), said).await
        }
        Err(problem) => Err(problem.into()),
    }
}

fn events(form: &Form) -> Value {
    let mut body = json!({ "kind": "events", "subscription_id": id(form.get("subscription_id")) });
    let times = ["since", "until"].map(|name| (name.to_owned(), form.get(name).to_owned()));
    for (name, value) in Asked::from_pairs(times.into_iter()).sent() {
        body[name] = value.into();
    }
    body
}

/// The filter of the list of dead letters. Those that were sent again already are no part of it anyway.
fn dead_letters(form: &Form) -> Value {
    let mut filter = Map::new();
    for (name, value) in Asked::from_pairs(form.starting_with("filter.")).sent() {
        match name.as_str() {
            "requeued" | "cursor" | "limit" => {}
            "subscription_id" => drop(filter.insert(name, id(&value))),
            _ => drop(filter.insert(name, value.into())),
        }
    }
    json!({ "kind": "dead_letters", "filter": filter })
}

/// What is no id stays text, so that the API says what is wrong with it.
fn id(text: &str) -> Value {
    validate::id(text).map_or_else(|_| Value::from(text), Value::from)
}

pub(super) async fn cancel(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(Id(id)): OnPage<Id>,
) -> PageResult {
    visitor.needs(Scope::Operator)?;
    api::cancel_from(&state, &visitor.caller, id).await?;
    Ok(Redirect::to(&visitor.path(&format!("/redrives/{id}?done=redrive-cancelled"))).into_response())
}
