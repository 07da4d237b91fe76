//! API keys, for operators: what each may do, when it was last used, and how it is revoked.

use super::{
    OnPage, PageResult, Visitor,
    filter_form::{self, View},
    form::Form,
    layout::{self, HtmlPage, Section},
    list::{self, Asked},
    parts,
};
use crate::{
    cursor::ListKind,
    errors::FieldErrors,
    path::Id,
    problem::Problem,
    state::{ApiState, SharedState},
};
use axum::extract::State;
use hooksaga_saga::{KeyId, Timestamp};
use hooksaga_store::{ApiKey, KeyView, Scope};
use maud::{Markup, html};

/// Keys open everything: only who administers the whole server sees them.
pub(super) fn may_see(visitor: &Visitor) -> bool {
    visitor.may(Scope::Admin) && visitor.tenant().is_none()
}

fn allowed(visitor: &Visitor) -> Result<(), Problem> {
    visitor.needs(Scope::Admin)?;
    visitor.caller.must_be_unbound()
}

pub(super) async fn list(visitor: Visitor, State(state): State<SharedState>, asked: Asked) -> PageResult {
    allowed(&visitor)?;
    list_page(&state, &visitor, &asked, html! {}).await
}

async fn list_page(state: &ApiState, visitor: &Visitor, asked: &Asked, said: Markup) -> PageResult {
    let (mut params, mut errors) = (asked.params(), FieldErrors::default());
    let view = params.take(VIEW, &mut errors, |text| view(&text)).unwrap_or(KeyView::Issued);
    let place = params.page(ListKind::Keys, errors)?;
    let keys = state.portal_keys.newest(view, place).await?;
    let views = [
        View::new("Keys", &[]),
        View::one("Portal sessions", VIEW, SESSIONS),
        View::one("Revoked or expired", VIEW, ENDED),
    ];
    let none = match view {
        KeyView::Issued => "Besides the configured root key, which has every scope, no key is valid.",
        KeyView::PortalSessions => "No portal session is open.",
        KeyView::Ended => "No key has ended lately.",
    };
    let body = html! {
        h1 { "API keys" }
        p.quiet { "A key is shown once, when it is made; only its hash is stored. A link to the portal is a key, too: it ends by itself." }
        (filter_form::views("/keys", asked, &views))
        @if keys.items.is_empty() { (parts::empty(none, &html! {})) }
        @else { (table(visitor, asked, &keys.items)) (asked.pager("/keys", ListKind::Keys, keys.next)) }
        section.card {
            h2 { "A new key" }
            p.quiet { "Keys are made on the command line, so that none passes through a browser:" }
            (parts::copy_line("hooksaga keys create --name shop --scopes ingest,read"))
        }
    };
    let page =
        HtmlPage { at: Some(asked.address("/keys")), said, ..HtmlPage::new("API keys", Section::Keys, body) };
    Ok(layout::show(state, visitor, &page))
}

/// The parameter that says which keys are shown, and its values; without it those that were made for programs and people.
const VIEW: &str = "show";
const SESSIONS: &str = "sessions";
const ENDED: &str = "ended";

fn view(text: &str) -> Result<KeyView, String> {
    match text {
        SESSIONS => Ok(KeyView::PortalSessions),
        ENDED => Ok(KeyView::Ended),
        _ => Err(format!("must be {SESSIONS} or {ENDED}")),
    }
}

fn table(visitor: &Visitor, asked: &Asked, keys: &[ApiKey]) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th { "Key" } th { "Name" } th { "State" } th { "Scopes" } th { "Tenant" } th { "Last used" } th { "Created" } th { "Ends" } th { span.unseen { "Revoke" } } } }
            tbody { @for key in keys { tr id=(format!("key-{}", key.id)) {
                td.first { (key.id) }
                td.cut.first { span title=(key.name) { (key.name) } @if visitor.caller.key_id == Some(key.id) { span.quiet { " (this session)" } } }
                td.first.end { (state(key, visitor.now)) }
                td { (key.scopes.to_string().replace(',', ", ")) }
                td.cut data-name="Tenant" title=[&key.tenant] { @match &key.tenant { Some(tenant) => (tenant), None => span.quiet { "all" } } }
                td data-name="Last used" { @match key.last_used_at { Some(at) => (parts::time(at, visitor.now)), None => span.quiet { "never" } } }
                td data-name="Created" { (parts::time(key.created_at, visitor.now)) }
                td data-name="Ends" { @match end(key) { Some(at) => (parts::time(at, visitor.now)), None => span.quiet { "never" } } }
                td { @if is_valid(key, visitor.now) { details.inline {
                    summary { "Revoke…" }
                    @if visitor.caller.key_id == Some(key.id) { span.quiet { "Your session ends with it." } }
                    form method="post" action=(format!("/keys/{}/revoke", key.id)) {
                        (list::carried(asked.pairs().chain(asked.place())))
                        button.danger { "Revoke for good" }
                    }
                } } }
            } } }
        } }
    }
}

/// When it ends, or did: what was revoked ended then.
fn end(key: &ApiKey) -> Option<Timestamp> {
    [key.revoked_at, key.expires_at].into_iter().flatten().min()
}

fn is_valid(key: &ApiKey, now: Timestamp) -> bool {
    key.revoked_at.is_none() && key.expires_at.is_none_or(|at| at > now)
}

fn state(key: &ApiKey, now: Timestamp) -> Markup {
    html! {
        @if let Some(at) = key.revoked_at { span.badge.bad title=(parts::exact(at)) { "Revoked" } }
        @else if is_valid(key, now) { span.badge.good { "Valid" } }
        @else { span.badge { "Expired" } }
    }
}

/// Ends a key; its requests and sessions end within 5 seconds.
pub(super) async fn revoke(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(Id(id)): OnPage<Id>,
    form: Form,
) -> PageResult {
    allowed(&visitor)?;
    let key = state.portal_keys.revoke(KeyId(id)).await?.ok_or_else(|| Problem::no_such("key", id))?;
    tracing::info!(key_id = id, key = key.name, by = visitor.caller.name, "key revoked");
    let said = html! {
        p.notice role="status" { "Key " (id) " (" (key.name) ") is revoked: what is sent with it is refused within 5 seconds." }
    };
    list_page(&state, &visitor, &form.filter(), said).await
}
