//! Creating and editing a subscription: a form that becomes the JSON of the API, so that the same rules hold.

use super::{
    OnPage, PageResult, Visitor,
    form::Form,
    layout::{self, HtmlPage, Section},
    list::Asked,
    subscriptions::{back, find, new_secret, page, usual_attempts},
    words::capitalised,
};
use crate::{
    api::subscriptions as api,
    errors::FieldErrors,
    path::Id,
    problem::{FieldError, Problem},
    state::{ApiState, SharedState},
};
use axum::{extract::State, response::Response};
use hooksaga_store::{Scope, Subscription};
use http::StatusCode;
use maud::{Markup, html};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// What the form's fields hold.
#[derive(Default)]
struct FormFields {
    topics: String,
    callback_url: String,
    description: String,
    max_retry_limit: String,
    rate_limit: String,
    /// One per line, `name: value`. Those that are stored are not shown again.
    headers: String,
    /// The names of those that are stored.
    stored_headers: Vec<String>,
    drop_headers: bool,
    tenant: String,
}

impl FormFields {
    fn of(subscription: &Subscription) -> Self {
        Self {
            topics: subscription.event_type.replace(',', "\n"),
            callback_url: subscription.callback_url.clone(),
            description: subscription.description.clone().unwrap_or_default(),
            max_retry_limit: subscription.max_retry_limit.map(|limit| limit.to_string()).unwrap_or_default(),
            rate_limit: subscription.rate_limit.map(|limit| limit.to_string()).unwrap_or_default(),
            headers: String::new(),
            stored_headers: subscription.headers.clone(),
            drop_headers: false,
            tenant: subscription.tenant.clone(),
        }
    }

    fn sent(form: &Form) -> Self {
        let text = |name| form.get(name).to_owned();
        Self {
            topics: text("topics"),
            callback_url: text("callback_url"),
            description: text("description"),
            max_retry_limit: text("max_retry_limit"),
            rate_limit: text("rate_limit"),
            headers: text("headers"),
            stored_headers: form.all("stored_header").map(ToOwned::to_owned).collect(),
            drop_headers: form.has("drop_headers"),
            tenant: text("tenant"),
        }
    }

    /// What an object could not tell the API: a header with two values.
    fn check(&self) -> Result<(), Problem> {
        let (mut seen, mut errors) = (HashSet::new(), FieldErrors::default());
        for (name, _) in headers(&self.headers) {
            if !seen.insert(name.to_ascii_lowercase()) {
                errors.add("headers", format!("{name} stands twice; a header has one value"));
            }
        }
        errors.check()
    }

    /// As the API takes them. What is not a number stays text, so that the API says what is wrong with it.
    fn json(&self) -> Map<String, Value> {
        let topics: Vec<_> = self
            .topics
            .split([',', '\n', '\r', ' '])
            .map(str::trim)
            .filter(|topic| !topic.is_empty())
            .collect();
        let or_null = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
        let number = |text: &str| text.parse::<u32>().map_or_else(|_| or_null(text), Value::from);
        let json = json!({
            "event_types": topics,
            "callback_url": self.callback_url,
            "description": or_null(&self.description),
            "max_retry_limit": number(&self.max_retry_limit),
            "rate_limit": number(&self.rate_limit),
        });
        let mut json = match json {
            Value::Object(object) => object,
            _ => Map::new(),
        };
        // What is written takes the place of what is stored, so that removing that as well is no contradiction.
        if !self.headers.is_empty() {
            let headers: Map<_, _> =
                headers(&self.headers).map(|(name, value)| (name.to_owned(), value.into())).collect();
            json.insert("headers".to_owned(), headers.into());
        } else if self.drop_headers {
            json.insert("headers".to_owned(), Value::Null);
        }
        json
    }
}

/// Lines of `name: value`. One without a colon is a name without a value, and the API says what is wrong with it.
fn headers(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| line.split_once(':').unwrap_or((line, "")))
        .map(|(name, value)| (name.trim(), value.trim()))
}

/// An empty form, or what a link to it fills in.
pub(super) async fn new(visitor: Visitor, State(state): State<SharedState>, asked: Asked) -> PageResult {
    visitor.needs(Scope::Admin)?;
    let text = |name| asked.get(name).unwrap_or_default().to_owned();
    let fields = FormFields { topics: text("topics"), tenant: text("tenant"), ..FormFields::default() };
    Ok(form_page(&state, &visitor, None, &fields, None))
}

pub(super) async fn create(visitor: Visitor, State(state): State<SharedState>, form: Form) -> PageResult {
    visitor.needs(Scope::Admin)?;
    let fields = FormFields::sent(&form);
    let mut body = fields.json();
    body.insert("active".to_owned(), (!form.has("paused")).into());
    if form.has("tenant") && !fields.tenant.is_empty() {
        body.insert("tenant".to_owned(), fields.tenant.as_str().into());
    }
    let body = Value::Object(body).to_string();
    let created = match fields.check() {
        Ok(()) => api::create_from(&state, &visitor.caller, body.as_bytes()).await,
        Err(problem) => Err(problem),
    };
    match created {
        Ok((subscription, secret)) => {
            let said = html! {
                p.notice role="status" { "Created. A challenge is sent to the endpoint now; deliveries begin when it comes back." }
                (new_secret(&secret.reveal()))
            };
            page(&state, &visitor, &subscription, said).await
        }
        Err(problem) => refused(&state, &visitor, None, &fields, problem),
    }
}

pub(super) async fn edit(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(Id(id)): OnPage<Id>,
) -> PageResult {
    visitor.needs(Scope::Admin)?;
    let subscription = find(&state, &visitor, id).await?;
    Ok(form_page(&state, &visitor, Some(id), &FormFields::of(&subscription), None))
}

pub(super) async fn update(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(Id(id)): OnPage<Id>,
    form: Form,
) -> PageResult {
    visitor.needs(Scope::Admin)?;
    let before = find(&state, &visitor, id).await?;
    let fields = FormFields::sent(&form);
    let body = Value::Object(fields.json()).to_string();
    let updated = match fields.check() {
        Ok(()) => api::update_from(&state, &visitor.caller, id, body.as_bytes()).await,
        Err(problem) => Err(problem),
    };
    match updated {
        Ok(after) if after.callback_url != before.callback_url => {
            let dropped = after.headers.is_empty() && !before.headers.is_empty() && !fields.drop_headers;
            Ok(back(&visitor, id, if dropped { "saved-url-alone" } else { "saved-url" }))
        }
        Ok(_) => Ok(back(&visitor, id, "saved")),
        Err(problem) => refused(&state, &visitor, Some(id), &fields, problem),
    }
}

/// The form again, with what is wrong; what the form cannot repair is a page of its own.
fn refused(
    state: &ApiState,
    visitor: &Visitor,
    id: Option<i64>,
    fields: &FormFields,
    problem: Problem,
) -> PageResult {
    match problem.status() {
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::CONFLICT | StatusCode::FORBIDDEN => {
            Ok(form_page(state, visitor, id, fields, Some(&problem)))
        }
        _ => Err(problem.into()),
    }
}

fn form_page(
    state: &ApiState,
    visitor: &Visitor,
    id: Option<i64>,
    fields: &FormFields,
    problem: Option<&Problem>,
) -> Response {
    let title = id.map_or_else(|| "New subscription".to_owned(), |id| format!("Edit subscription {id}"));
    let (action, leave) = match id {
        Some(id) => (format!("/subscriptions/{id}/edit"), format!("/subscriptions/{id}")),
        None => ("/subscriptions/new".to_owned(), "/subscriptions".to_owned()),
    };
    let wrong = |name: &str| wrong_with(problem, name);
    let invalid = |name: &str| errors_of(problem, name).next().map(|_| "true");
    // All of a few topics are to be seen, and one more can be written.
    let topic_lines = fields.topics.lines().count().saturating_add(1).clamp(4, 12);
    let body = html! {
        div.narrow {
            h1 { (title) }
            @if let Some(problem) = problem.filter(|problem| problem.errors().is_empty()) {
                p.alert role="alert" {
                    (capitalised(problem.detail())) ". "
                    @if let Some(existing) = problem.existing() { a href=(visitor.path(&format!("/subscriptions/{existing}"))) { "Show it" } }
                }
            }
            form.card method="post" action=(visitor.path(&action)) {
                label { span { "Callback URL" }
                    input type="url" name="callback_url" value=(fields.callback_url) required maxlength="500" placeholder="https://example.com/webhooks" spellcheck="false" aria-describedby="url-hint" aria-invalid=[invalid("callback_url")];
                    (wrong("callback_url"))
                }
                p #url-hint .quiet { @if id.is_some() {
                    "A new URL has to be verified before anything is delivered to it."
                    @if !fields.stored_headers.is_empty() { " The stored headers do not go to another server: write them again below if the URL leads to one." }
                } @else { "It is sent a challenge, and has to return it before anything is delivered." } }
                label { span { "Topics" }
                    textarea name="topics" required rows=(topic_lines) spellcheck="false" placeholder="order.created\ninvoice.*" aria-describedby="topics-hint" aria-invalid=[invalid("event_type")] { (fields.topics) }
                    (wrong("event_type"))
                }
                p #topics-hint .quiet { "One per line: an event type, " code { "order.*" } " for every type that begins with " code { "order." } ", or " code { "*" } " for all." }
                label { span { "Description" }
                    input name="description" value=(fields.description) maxlength="500" placeholder="For people; may stay empty" aria-invalid=[invalid("description")];
                    (wrong("description"))
                }
                label { span { "Attempts in all" }
                    input type="number" name="max_retry_limit" value=(fields.max_retry_limit) min="1" max="100" placeholder=(capitalised(usual_attempts(visitor))) aria-invalid=[invalid("max_retry_limit")];
                    (wrong("max_retry_limit"))
                }
                label { span { "Attempts a second" }
                    input type="number" name="rate_limit" value=(fields.rate_limit) min="1" max="10000" placeholder="Not limited" aria-invalid=[invalid("rate_limit")];
                    (wrong("rate_limit"))
                }
                label { span { "Request headers" }
                    textarea name="headers" rows="2" spellcheck="false" autocomplete="off" placeholder="x-api-key: secret" aria-describedby="headers-hint" aria-invalid=[invalid("headers")] { (fields.headers) }
                    (wrong("headers"))
                }
                p #headers-hint .quiet {
                    "Sent with every delivery, one per line. Their values are sealed, and not shown again."
                    @if !fields.stored_headers.is_empty() { " Stored now: " (fields.stored_headers.join(", ")) "; what is written here takes their place." }
                }
                @if !fields.stored_headers.is_empty() {
                    @for name in &fields.stored_headers { input type="hidden" name="stored_header" value=(name); }
                    label.check { input type="checkbox" name="drop_headers" value="true"; "Remove the stored headers" }
                }
                @if id.is_none() {
                    @if visitor.tenant().is_none() {
                        label { span { "Tenant" }
                            input name="tenant" value=(fields.tenant) maxlength="100" placeholder="default" spellcheck="false" aria-invalid=[invalid("tenant")];
                            (wrong("tenant"))
                        }
                    }
                    label.check { input type="checkbox" name="paused" value="true"; "Paused at first: nothing is delivered until it is resumed" }
                }
                div.actions { button { @if id.is_some() { "Save" } @else { "Create" } } a href=(visitor.path(&leave)) { "Cancel" } }
            }
        }
    };
    let page = HtmlPage::new(title, Section::Subscriptions, body);
    let status = problem.map_or(StatusCode::OK, Problem::status);
    layout::show_with(state, visitor, &page, status)
}

/// What is wrong with a field.
fn wrong_with(problem: Option<&Problem>, name: &str) -> Markup {
    html! {
        @for error in errors_of(problem, name) { span.wrong role="alert" { (capitalised(&error.detail)) "." } }
    }
}

fn errors_of<'a>(problem: Option<&'a Problem>, name: &'a str) -> impl Iterator<Item = &'a FieldError> {
    let errors = problem.map(Problem::errors).unwrap_or_default();
    errors.iter().filter(move |error| error.field.starts_with(name))
}
