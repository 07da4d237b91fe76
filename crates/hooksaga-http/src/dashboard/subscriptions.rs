//! Subscriptions: the list, one with its verification and what it got lately, and what can be done with it.

use super::{
    OnPage, PageResult, Visitor,
    deliveries::{TableScope, table},
    endpoint_care,
    filter_form::{self, View},
    form::Form,
    health,
    home::SUBSCRIBE,
    layout::{self, HtmlPage, Section},
    list::{self, Asked, PageOrProblem},
    parts,
    words::{self, Audience},
};
use crate::{
    api::subscriptions as api,
    api::subscriptions::page_of,
    cursor::ListKind,
    dto::SubscriptionsQuery,
    listing::ListRequest,
    path::Id,
    problem::Problem,
    state::{ApiState, SharedState},
};
use axum::{
    extract::State,
    response::{IntoResponse, Redirect, Response},
};
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{DeliveryFilter, Disabled, PageRequest, Scope, Subscription, VerificationStatus};
use maud::{Markup, html};

/// Deliveries on a subscription's page.
const LATEST: u32 = 10;

pub(super) async fn list(visitor: Visitor, State(state): State<SharedState>, asked: Asked) -> PageResult {
    let path = visitor.path("/subscriptions");
    let read = async {
        let ListRequest { scope, query, page, .. } = asked.listing::<SubscriptionsQuery>(&visitor)?;
        Ok::<_, Problem>(page_of(&state, &scope, query, page).await?)
    };
    let PageOrProblem { items: subscriptions, next, problem } = PageOrProblem::of(read.await)?;
    let choice = |name: &str, label: &str, yes: &str, no: &str| {
        html! { label { span { (label) } select name=(name) {
            option value="" { "any" }
            option value="true" selected[asked.has(name, "true")] { (yes) }
            option value="false" selected[asked.has(name, "false")] { (no) }
        } } }
    };
    let fields = html! {
        (list::field(&asked, "event_type", "Topic", "order.*"))
        (list::field(&asked, "callback_url", "Callback URL", "https://example.com/hooks"))
        (choice("active", "State", "active", "paused"))
        (choice("verified", "Verification", "verified", "not verified"))
        (choice("disabled", "By the server", "switched off", "not switched off"))
        (list::tenant(&visitor, &asked))
    };
    let views = [
        View::all(),
        View::one("Active", "active", "true"),
        View::new("Paused", &[("active", "false"), ("disabled", "false")]),
        View::one("Not verified", "verified", "false"),
        View::one("Switched off", "disabled", "true"),
    ];
    let body = html! {
        div.heading {
            h1 { "Subscriptions" }
            @if visitor.may(Scope::Admin) { a.button href=(visitor.path("/subscriptions/new")) { "New subscription" } }
        }
        (filter_form::filter(&path, &asked, &views, problem.is_some(), &fields))
        @if let Some(problem) = &problem { (filter_form::refused(problem)) }
        @else if asked.filters() && subscriptions.is_empty() { (filter_form::none_matches(&path, "No subscription matches.")) }
        @else if subscriptions.is_empty() {
            (parts::empty("There is no subscription yet. One says which events go to which URL.", &html! { @if visitor.tenant().is_none() { (parts::copy_line(SUBSCRIBE)) } }))
        }
        @else {
            (rows(&visitor, &subscriptions))
            (asked.pager(&path, ListKind::Subscriptions, next))
        }
    };
    let said = parts::notice(asked.get("done"));
    let page = HtmlPage {
        at: Some(asked.address(&path)),
        said,
        ..HtmlPage::new("Subscriptions", Section::Subscriptions, body)
    };
    Ok(layout::show(&state, &visitor, &page))
}

/// A table of subscriptions.
pub(super) fn rows(visitor: &Visitor, subscriptions: &[Subscription]) -> Markup {
    let tenants = visitor.tenant().is_none();
    html! {
        div.scroll { table {
            thead { tr { th.number { "Id" } th { "Callback URL" } th { "Topics" } @if tenants { th { "Tenant" } } th { "State" } th { "Created" } } }
            tbody { @for subscription in subscriptions { tr {
                td.number.first { (subscription.id) }
                td {
                    (parts::subscription_link(visitor, subscription.id, Some(&subscription.callback_url)))
                    @if let Some(text) = &subscription.description { div.quiet.cut.long title=(text) { (text) } }
                }
                td.topics { (topics(subscription, 3)) }
                @if tenants { (parts::cut(&subscription.tenant)) }
                td.first { (parts::subscription_state(subscription)) }
                td.first.end { (parts::time(subscription.created_at, visitor.now)) }
            } } }
        } }
    }
}

/// The first topics, and how many more there are.
fn topics(subscription: &Subscription, shown: usize) -> Markup {
    let topics: Vec<_> = subscription.event_type.split(',').collect();
    html! {
        @for topic in topics.iter().take(shown) { code.topic { (parts::type_in_parts(topic)) } " " }
        @if topics.len() > shown { span.quiet title=(subscription.event_type) { "and " (topics.len() - shown) " more" } }
    }
}

pub(super) async fn show(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(Id(id)): OnPage<Id>,
    asked: Asked,
) -> PageResult {
    let subscription = find(&state, &visitor, id).await?;
    page(&state, &visitor, &subscription, parts::notice(asked.get("done"))).await
}

pub(super) async fn find(state: &ApiState, visitor: &Visitor, id: i64) -> Result<Subscription, Problem> {
    let found = state.reader.subscription(&visitor.scope(), SubscriptionId(id)).await?;
    found.ok_or_else(|| api::no_such(id))
}

/// A subscription's page, with something said above it.
pub(super) async fn page(
    state: &ApiState,
    visitor: &Visitor,
    subscription: &Subscription,
    said: Markup,
) -> PageResult {
    let (id, scope) = (subscription.id, visitor.scope());
    let detail = state.reader.subscription_detail(&scope, id).await?;
    let health = detail.map(|detail| detail.health).unwrap_or_default();
    let filter = DeliveryFilter { subscription_id: Some(id), ..DeliveryFilter::default() };
    let latest = PageRequest { limit: LATEST, before: None };
    let latest = state.reader.deliveries(latest.of(&scope, &filter)).await?.items;
    let body = html! {
        div.heading {
            h1 { "Subscription " code { (id) } " " (parts::subscription_state(subscription)) }
            @if visitor.may(Scope::Admin) { (actions(visitor, subscription)) }
        }
        p.address { code { (parts::url_in_parts(&subscription.callback_url)) } }
        @if let Some(text) = &subscription.description { p.quiet { (text) } }
        @if let Some(disabled) = subscription.disabled { (why_disabled(visitor, disabled)) }
        (parts::facts([
            Some(("Topics", topics(subscription, 50))),
            parts::tenant_fact(visitor, &subscription.tenant),
            Some(("Attempts", html! { @match subscription.max_retry_limit { Some(limit) => { (limit) " in all" }, None => (usual_attempts(visitor)) } })),
            Some(("Attempts a second", html! { @match subscription.rate_limit { Some(limit) => { "at most " (parts::number(limit.into())) }, None => "not limited" } })),
            Some(("Headers", html! { @if subscription.headers.is_empty() { "none" } @else { (subscription.headers.join(", ")) } })),
            Some(("Created", parts::time(subscription.created_at, visitor.now))),
            Some(("Changed", parts::time(subscription.updated_at, visitor.now))),
        ].into_iter().flatten()))
        (health::show(visitor, id, &health))
        (verification(state, visitor, subscription))
        section.card {
            h2 { "Latest deliveries" }
            @if latest.is_empty() { p.quiet { "None yet." } }
            @else {
                (table(visitor, &latest, TableScope::ASubscription))
                p { a href=(visitor.path(&format!("/deliveries?subscription_id={id}"))) { "All deliveries" } " · "
                    a href=(visitor.path(&format!("/dead-letters?subscription_id={id}&requeued=false"))) { "Open dead letters" } }
            }
            @if visitor.may(Scope::Operator) && subscription.active && subscription.verified {
                p.quiet { "Events of a time when it was paused, switched off or not there yet can be "
                    a href=(visitor.path(&format!("/redrives?for={id}#missed"))) { "sent to it afterwards" } "." }
            }
        }
        @if visitor.may(Scope::Admin) { section.card {
            h2 { "Secret and deletion" }
            details {
                summary { "Rotate the secret…" }
                p { "A new secret is shown once. The older ones sign too for 24 hours, so that receivers can change over; at most 5 are valid at a time." }
                form method="post" action=(visitor.path(&format!("/subscriptions/{id}/rotate-secret"))) { button { "Rotate now" } }
            }
            (endpoint_care::delete_form(visitor, subscription))
        } }
    };
    let page = HtmlPage {
        live: subscription.verification.status == VerificationStatus::Pending,
        at: Some(visitor.path(&format!("/subscriptions/{id}"))),
        said,
        ..HtmlPage::new(format!("Subscription {id}"), Section::Subscriptions, body)
    };
    Ok(layout::show(state, visitor, &page))
}

/// How many attempts there are where a subscription does not say so. What the server is set to is no customer's business.
pub(super) fn usual_attempts(visitor: &Visitor) -> &'static str {
    match visitor.audience() {
        Audience::Operators => "the server's setting",
        Audience::Customers => "the usual number",
    }
}

/// Why the server switched a subscription off, and what to do.
fn why_disabled(visitor: &Visitor, disabled: Disabled) -> Markup {
    let wording = disabled.reason.wording();
    html! {
        p.alert role="alert" {
            "The server switched it off " (parts::time(disabled.at, visitor.now)) ": " (wording.meaning)
            ". " (words::sentence(wording.advice))
        }
    }
}

fn actions(visitor: &Visitor, subscription: &Subscription) -> Markup {
    let path = |what: &str| visitor.path(&format!("/subscriptions/{}/{what}", subscription.id));
    html! {
        div.actions {
            (endpoint_care::test_button(visitor, subscription))
            a.button.plain href=(path("edit")) { "Edit" }
            form method="post" action=(path("active")) {
                @if subscription.active { button.plain name="active" value="false" { "Pause" } }
                @else { button name="active" value="true" { "Resume" } }
            }
        }
    }
}

fn verification(state: &ApiState, visitor: &Visitor, subscription: &Subscription) -> Markup {
    let checked = subscription.verification.checked_at;
    let example = format!(
        "{{\"type\":\"hooksaga.verification\",\"subscription_id\":{},\"challenge\":\"…\"}}",
        subscription.id
    );
    html! {
        section.card {
            h2 { "Verification" }
            @match subscription.verification.status {
                VerificationStatus::Verified => @match &subscription.verification.trusted {
                    Some(trusted) => p { "The endpoint was not asked: the key " strong { (trusted.by) } " vouched for it " (parts::time(trusted.at, visitor.now)) "." },
                    None => p { "The callback URL is verified" @if let Some(at) = checked { ", checked " (parts::time(at, visitor.now)) } "." },
                },
                VerificationStatus::Pending => {
                    p { "A challenge is sent to the callback URL: at once, 5 s after that, and 30 s after that."
                        @if subscription.verified { " The URL stays verified meanwhile." } @else { " Deliveries begin when it comes back." } }
                }
                VerificationStatus::Failed => p { "The endpoint did not pass" @if let Some(at) = checked { ", checked " (parts::time(at, visitor.now)) } ". Nothing is delivered until it does." },
            }
            @if let Some(code) = &subscription.verification.last_error {
                @let meaning = words::meaning(code);
                p.alert { (meaning.what) " " (meaning.advice(visitor.audience())) " " code { (code) } }
            }
            details open[!subscription.verified] {
                summary { "What the endpoint must return" }
                p { "It receives this POST, signed like every delivery:" }
                pre tabindex="0" { (example) }
                p { "Within 10 seconds it returns status 200 and, as JSON with exactly this one member or as plain text, the challenge:" }
                pre tabindex="0" { "{\"challenge\":\"…\"}" }
                p.quiet { "Echoing the whole request back does not pass." }
            }
            @if visitor.may(Scope::Admin) {
                form method="post" action=(visitor.path(&format!("/subscriptions/{}/verify", subscription.id))) {
                    button.plain { @if subscription.verified { "Verify again" } @else { "Verify now" } }
                }
            }
            @if may_vouch(state, visitor) && !subscription.verified { (vouch_form(visitor, subscription)) }
        }
    }
}

/// Whether this visitor may say that an endpoint is to be trusted without a challenge.
fn may_vouch(state: &ApiState, visitor: &Visitor) -> bool {
    state.allow_trusted && visitor.may(Scope::Admin) && visitor.tenant().is_none()
}

fn vouch_form(visitor: &Visitor, subscription: &Subscription) -> Markup {
    html! {
        details {
            summary { "Vouch for it instead…" }
            p { "For receivers that cannot return a challenge. You say that this URL belongs to whoever subscribed, and that it wants these events. Your key's name, " strong { (visitor.caller.name) } ", is kept and shown with it; another callback URL has to be vouched for again." }
            form method="post" action=(visitor.path(&format!("/subscriptions/{}/verify", subscription.id))) {
                button.danger name="trusted" value="true" { "Vouch for " (parts::short_url(&subscription.callback_url)) }
            }
        }
    }
}

/// Back to a subscription's page after something was done.
pub(super) fn back(visitor: &Visitor, id: i64, done: &str) -> Response {
    Redirect::to(&visitor.path(&format!("/subscriptions/{id}?done={done}"))).into_response()
}

pub(super) async fn set_active(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(Id(id)): OnPage<Id>,
    form: Form,
) -> PageResult {
    visitor.needs(Scope::Admin)?;
    let active = form.get("active") == "true";
    let change = serde_json::json!({ "active": active }).to_string();
    api::update_from(&state, &visitor.caller, id, change.as_bytes()).await?;
    Ok(back(&visitor, id, if active { "resumed" } else { "paused" }))
}

pub(super) async fn verify(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(Id(id)): OnPage<Id>,
    form: Form,
) -> PageResult {
    visitor.needs(Scope::Admin)?;
    let trusted = form.get("trusted") == "true";
    api::request_verification(&state, &visitor.caller, id, trusted).await?;
    Ok(back(&visitor, id, if trusted { "vouched" } else { "verify" }))
}

pub(super) async fn rotate(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(Id(id)): OnPage<Id>,
) -> PageResult {
    visitor.needs(Scope::Admin)?;
    let secret = api::rotate(&state, &visitor.caller, id).await?;
    let subscription = find(&state, &visitor, id).await?;
    page(&state, &visitor, &subscription, new_secret(&secret.reveal())).await
}

/// A secret, shown this once.
pub(super) fn new_secret(secret: &str) -> Markup {
    html! {
        section.card.secret {
            h2 { "The signing secret" }
            p { "Copy it now: it is shown this once. The receiver checks signatures with it." }
            (parts::copy_line(secret))
        }
    }
}
