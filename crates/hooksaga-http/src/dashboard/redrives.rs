//! Redrives: background work that sends many deliveries again, how far each has come, and who started it.

use super::{
    OnPage, PageResult, Visitor,
    form::Form,
    layout::{self, HtmlPage, Section},
    list::{self, Asked},
    parts,
    words::sentence,
};
use crate::{
    api::redrives as api,
    audit,
    cursor::ListKind,
    dto::RedrivesQuery,
    listing::ListRequest,
    path::Id,
    problem::{Kind, Problem},
    state::{ApiState, SharedState},
    time::ApiTime,
    validate,
};
use axum::{
    extract::State,
    response::{IntoResponse, Redirect},
};
use hooksaga_saga::{RedriveId, SubscriptionId, Timestamp};
use hooksaga_store::{DeadLetterFilter, Redrive, RedriveStatus, RedriveWork, Scope};
use maud::{Markup, html};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

pub(super) async fn list(visitor: Visitor, State(state): State<SharedState>, asked: Asked) -> PageResult {
    let given = asked.get("for").map(|id| ("subscription_id".to_owned(), id.to_owned()));
    let given = Asked::from_pairs(given.into_iter());
    list_page(&state, &visitor, &asked, &given, html! {}).await
}

/// `given`: what the form for another one holds.
async fn list_page(
    state: &ApiState,
    visitor: &Visitor,
    asked: &Asked,
    given: &Asked,
    said: Markup,
) -> PageResult {
    let path = visitor.path("/redrives");
    let ListRequest { scope, page, .. } = asked.listing::<RedrivesQuery>(visitor)?;
    let redrives = state.reader.redrives(&scope, page).await?;
    let urls = list::callback_urls(state, &scope, redrives.items.iter().filter_map(subscription)).await?;
    let live = redrives.items.iter().any(|redrive| redrive.status == RedriveStatus::Running);
    let body = html! {
        h1 { "Redrives" }
        p.quiet { "A redrive sends many again in the background: dead letters that match a filter, or the events that a subscription missed. It goes on after a restart." }
        @if redrives.items.is_empty() { (parts::empty("There is none yet.", &html! {})) }
        @else { (table(visitor, &redrives.items, &urls)) (asked.pager(&path, ListKind::Redrives, redrives.next)) }
        @if visitor.may(Scope::Operator) { (start_form(visitor, given)) }
    };
    let at = match asked.get("for") {
        Some(id) => asked.with(&path, |_, _| true, &[("for", id)]),
        None => asked.address(&path),
    };
    let page = HtmlPage { live, at: Some(at), said, ..HtmlPage::new("Redrives", Section::Redrives, body) };
    Ok(layout::show(state, visitor, &page))
}

/// Whose work it is, if it is that of one subscription.
fn subscription(redrive: &Redrive) -> Option<SubscriptionId> {
    match &redrive.work {
        RedriveWork::Events { subscription_id, .. } => Some(*subscription_id),
        RedriveWork::DeadLetters(filter) => filter.subscription_id,
    }
}

type Urls = HashMap<SubscriptionId, String>;

fn table(visitor: &Visitor, redrives: &[Redrive], urls: &Urls) -> Markup {
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
                td.wrap { (what(visitor, &redrive.work, urls)) }
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
fn what(visitor: &Visitor, work: &RedriveWork, urls: &Urls) -> Markup {
    let link = |id: SubscriptionId| parts::subscription_link(visitor, id, urls.get(&id).map(String::as_str));
    html! { @match work {
        RedriveWork::Events { subscription_id, since, until } => {
            "Events that " (link(*subscription_id)) " missed since " (moment(*since))
            @if let Some(until) = until { ", before " (moment(*until)) }
        }
        RedriveWork::DeadLetters(filter) => {
            "Dead letters"
            @if let Some(id) = filter.subscription_id { " of " (link(id)) }
            @if let Some(event_type) = &filter.event_type { ", type " code { (event_type) } }
            @if let Some(code) = &filter.final_error_code { ", error " code { (code) } }
            @if let Some(at) = filter.created_after { ", since " (moment(at)) }
            @if let Some(at) = filter.created_before { ", before " (moment(at)) }
        }
    } }
}

/// A time to the millisecond, on one line.
fn moment(at: Timestamp) -> Markup {
    html! { time datetime=(ApiTime(at)) { (parts::exact(at)) } }
}

const fn why_skipped(work: &RedriveWork) -> &'static str {
    match work {
        RedriveWork::Events { .. } => "Skipped: events that the subscription has a delivery of already.",
        RedriveWork::DeadLetters(_) => {
            "Skipped: dead letters that had been sent again before, or whose subscription is not active and verified."
        }
    }
}

/// The list of the dead letters that match this filter and were sent again, each with what became of it.
fn letters_sent_again(filter: &DeadLetterFilter) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("requeued", "true");
    let time = |at: Timestamp| ApiTime(at).to_string();
    for (name, value) in [
        ("subscription_id", filter.subscription_id.map(|id| id.to_string())),
        ("event_type", filter.event_type.as_ref().map(ToString::to_string)),
        ("final_error_code", filter.final_error_code.as_ref().map(ToString::to_string)),
        ("created_after", filter.created_after.map(time)),
        ("created_before", filter.created_before.map(time)),
    ] {
        query.extend_pairs(value.map(|value| (name, value)));
    }
    format!("/dead-letters?{}", query.finish())
}

/// What is asked for to send what a subscription missed.
const FIELDS: [&str; 3] = ["subscription_id", "since", "until"];

fn start_form(visitor: &Visitor, given: &Asked) -> Markup {
    html! {
        section.card #missed {
            h2 { "Send what a subscription missed" }
            p.quiet { "Events of its tenant and topics that it has no delivery of. Let it begin well before a pause: what came shortly before it may have been routed during it, and none is sent twice. Dead letters are sent again from " a href=(visitor.path("/dead-letters?requeued=false")) { "their list" } ", where they can be filtered and counted first." }
            form.row method="post" action=(visitor.path("/redrives")) {
                input type="hidden" name="kind" value="events";
                label { span { "Subscription" } input name="subscription_id" value=[given.get("subscription_id")] required inputmode="numeric" pattern="[0-9]+" placeholder="3" autocomplete="off"; }
                label { span { "Since (UTC)" } input type="datetime-local" step="1" name="since" value=[given.get("since")] required; }
                label { span { "Before (UTC), optional" } input type="datetime-local" step="1" name="until" value=[given.get("until")]; }
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
    let urls = list::callback_urls(&state, &visitor.scope(), subscription(&redrive)).await?;
    let running = redrive.status == RedriveStatus::Running;
    let last = if running { "Last step" } else { "Ended" };
    let facts = [
        parts::tenant_fact(&visitor, redrive.tenant.as_deref().unwrap_or("all")),
        visitor.tenant().is_none().then(|| ("Started by", html! { (redrive.started_by.name) })),
        Some(("Started", parts::time(redrive.created_at, visitor.now))),
        Some((last, parts::time(redrive.updated_at, visitor.now))),
    ];
    let body = html! {
        div.heading {
            h1 { "Redrive " code { (id) } " " (status(redrive.status)) }
            @if running && visitor.may(Scope::Operator) {
                form method="post" action=(visitor.path(&format!("/redrives/{id}/cancel"))) { button.plain { "Cancel" } }
            }
        }
        p.sentence { (what(&visitor, &redrive.work, &urls)) "." }
        @if let Some(error) = &redrive.error { (parts::alert(&sentence(error))) }
        section.figures aria-label="How far it came" {
            (parts::figure("Looked at", &parts::number(redrive.examined), None, "", ""))
            (parts::figure("Sent again", &parts::number(redrive.created), None, "", "New deliveries"))
            (parts::figure("Skipped", &parts::number(redrive.skipped), None, "", ""))
            @if let Some(percent) = redrive.percent() {
                (parts::figure("Progress", &format!("{percent} %"), None, "", "It looks through the events of everybody, in the order of their creation"))
            }
        }
        @if redrive.skipped > 0 { p.quiet { (why_skipped(&redrive.work)) } }
        (parts::facts(facts.into_iter().flatten()))
        p { @match &redrive.work {
            RedriveWork::Events { subscription_id, .. } => a href=(visitor.path(&format!("/deliveries?subscription_id={subscription_id}"))) { "The deliveries of that subscription" },
            RedriveWork::DeadLetters(filter) => a href=(visitor.path(&letters_sent_again(filter))) { "What became of these dead letters" },
        } }
    };
    let page = HtmlPage {
        live: running,
        at: Some(visitor.path(&format!("/redrives/{id}"))),
        said: parts::notice(asked.get("done")),
        ..HtmlPage::new(format!("Redrive {id}"), Section::Redrives, body)
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
            let said = parts::alert(&sentence(problem.detail()));
            let given = FIELDS.map(|name| (name.to_owned(), form.get(name).to_owned()));
            let given = Asked::from_pairs(given.into_iter());
            list_page(&state, &visitor, &Asked::default(), &given, said).await
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
    for (name, value) in form.filter().sent() {
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
