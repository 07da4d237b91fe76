//! The frame around a page: head, header with navigation and search, main part; and pages that say what failed.

use super::{Site, Visitor, assets, keys, parts, words};
use crate::{
    problem::{Kind, Problem},
    state::ApiState,
};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// A page to be put into the frame.
pub(super) struct HtmlPage {
    pub(super) title: String,
    /// The entry of the navigation that it belongs to.
    pub(super) section: Section,
    /// Whether what it shows is still changing: the script then asks for it again every two seconds.
    pub(super) live: bool,
    /// Its own address, where it is shown as the result of a form: reloading and refreshing ask for that.
    pub(super) at: Option<String>,
    /// What has just been done, or is shown this once: it stays when the rest is refreshed.
    pub(super) said: Markup,
    pub(super) body: Markup,
    /// What follows and never changes: it is not sent again when the rest is refreshed.
    pub(super) unchanging: Markup,
    /// What the search box holds: what was searched for, so that it can be corrected.
    pub(super) searched: String,
}

impl HtmlPage {
    /// A page that does not change by itself.
    pub(super) fn new(title: impl Into<String>, section: Section, body: Markup) -> Self {
        Self {
            title: title.into(),
            section,
            live: false,
            at: None,
            said: html! {},
            body,
            unchanging: html! {},
            searched: String::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Overview,
    Events,
    Deliveries,
    Subscriptions,
    DeadLetters,
    Redrives,
    Keys,
    None,
}

const SECTIONS: [(Section, &str, &str); 7] = [
    (Section::Overview, "", "Overview"),
    (Section::Events, "/events", "Events"),
    (Section::Deliveries, "/deliveries", "Deliveries"),
    (Section::Subscriptions, "/subscriptions", "Subscriptions"),
    (Section::DeadLetters, "/dead-letters", "Dead letters"),
    (Section::Redrives, "/redrives", "Redrives"),
    (Section::Keys, "/keys", "Keys"),
];

/// A response with this page.
pub(super) fn html(page: Markup) -> Response {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page.into_string()).into_response()
}

/// The page for this visitor, or only its part that changes.
pub(super) fn show(state: &ApiState, visitor: &Visitor, page: &HtmlPage) -> Response {
    show_with(state, visitor, page, StatusCode::OK)
}

pub(super) fn show_with(
    state: &ApiState,
    visitor: &Visitor,
    page: &HtmlPage,
    status: StatusCode,
) -> Response {
    let part = html! { div id="part" data-live[page.live] data-at=[&page.at] { (page.body) } };
    if visitor.part_only {
        return html(part);
    }
    let now = visitor.now.as_micros() / 1000;
    let main = html! {
        p #stale .alert role="status" hidden {
            "This page cannot be refreshed at the moment. It shows how things stood " (parts::time(visitor.now, visitor.now)) "."
        }
        (page.said)
        (part)
        (page.unchanging)
    };
    let top = top(state, visitor, page.section, &page.searched);
    (status, html(frame(state, visitor.site, &page.title, &top, &main, Some(now)))).into_response()
}

/// Navigation, search and account.
fn top(state: &ApiState, visitor: &Visitor, current: Section, searched: &str) -> Markup {
    html! {
        (brand(state, visitor.site))
        nav aria-label="Main" {
            @for (section, path, name) in SECTIONS.into_iter().filter(|(section, ..)| may_see(visitor, *section)) {
                @let path = if path.is_empty() { visitor.site.home().to_owned() } else { visitor.path(path) };
                a href=(path) aria-current=[(section == current).then_some("page")] { (name) }
            }
        }
        form.search role="search" action=(visitor.path("/search")) {
            label.unseen for="q" { "Search" }
            input #q type="search" name="q" value=[(!searched.is_empty()).then_some(searched)] placeholder="Id, number or URL" maxlength="500"
                autocomplete="off" spellcheck="false" aria-keyshortcuts="/";
            kbd aria-hidden="true" { "/" }
        }
        (account(visitor))
    }
}

/// Whether a visitor has this part of the site.
fn may_see(visitor: &Visitor, section: Section) -> bool {
    section != Section::Keys || (visitor.site == Site::Dashboard && keys::may_see(visitor))
}

fn brand(state: &ApiState, site: Site) -> Markup {
    html! {
        a.brand href=(site.home()) {
            @match site {
                Site::Dashboard => { img src=(format!("/assets/{}", *assets::ICON_NAME)) alt="" width="22" height="22"; "hooksaga" }
                Site::Portal => (state.look.name),
            }
        }
    }
}

fn account(visitor: &Visitor) -> Markup {
    let caller = &visitor.caller;
    html! {
        details.account {
            summary {
                span.who { @match (visitor.site, visitor.tenant()) {
                    (_, Some(tenant)) => (tenant),
                    (_, None) => (caller.name),
                } }
            }
            div {
                @if visitor.site == Site::Dashboard {
                    p { "Key " strong { (caller.name) } }
                    p.quiet { (caller.scopes) }
                }
                @if let Some(at) = caller.expires_at {
                    p.quiet { "Ends " (parts::time(at, visitor.now)) }
                }
                @if visitor.site == Site::Dashboard { p { a href="/docs" { "API reference" } } }
                form method="post" action=(visitor.path("/sign-out")) { button.plain { "Sign out" } }
            }
        }
    }
}

/// A page without a visitor: sign-in and failures.
pub(super) fn bare(state: &ApiState, site: Site, title: &str, body: &Markup) -> Response {
    within(state, site, title, &brand(state, site), body)
}

/// A page that shows nothing but this, and so needs no clock.
fn within(state: &ApiState, site: Site, title: &str, header: &Markup, body: &Markup) -> Response {
    html(frame(state, site, title, header, &html! { div.narrow { (body) } }, None))
}

fn frame(
    state: &ApiState,
    site: Site,
    title: &str,
    header: &Markup,
    main: &Markup,
    now_ms: Option<i64>,
) -> Markup {
    let (product, icon) = match site {
        Site::Dashboard => ("hooksaga", assets::ICON_NAME.clone()),
        Site::Portal => (state.look.name.as_str(), assets::portal_icon(state)),
    };
    html! {
        (DOCTYPE)
        html lang="en" data-now=[now_ms] data-site=[(site == Site::Portal).then_some("portal")] {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · " (product) }
                link rel="icon" href=(format!("/assets/{}", icon));
                link rel="stylesheet" href=(format!("/assets/{}", *assets::STYLE));
                @if site == Site::Portal {
                    link rel="stylesheet" href=(format!("/assets/{}", assets::theme(state)));
                }
                script src=(format!("/assets/{}", *assets::SCRIPT)) defer {}
            }
            body {
                a.skip href="#main" { "Skip to content" }
                header.top { (header) }
                main #main tabindex="-1" { (main) }
                p #said role="status" aria-live="polite" class="unseen" {}
            }
        }
        (PreEscaped("\n"))
    }
}

/// A page that says what failed and what to do. Somebody who is signed in finds the way on: navigation and search are there.
pub(super) fn failure(
    state: &ApiState,
    site: Site,
    visitor: Option<&Visitor>,
    problem: &Problem,
) -> Response {
    let (title, advice) = heading(problem);
    let body = html! {
        div.card {
            h1 { (title) }
            p { (words::sentence(problem.detail())) }
            @if !advice.is_empty() { p.quiet { (advice) } }
            p { a href=(site.home()) { "To the overview" } }
        }
    };
    let page = match visitor {
        Some(visitor) => within(state, site, title, &top(state, visitor, Section::None, ""), &body),
        None => bare(state, site, title, &body),
    };
    (problem.status(), page).into_response()
}

/// What a page of this problem is called, and what to do about it.
fn heading(problem: &Problem) -> (&'static str, &'static str) {
    match problem.kind() {
        Kind::DatabaseAway => (
            "The database is not available",
            "Events that were accepted are safe, and deliveries go on when it is back. This page can be loaded again in a moment.",
        ),
        Kind::QueryTooSlow => (
            problem.title(),
            "The database is available, and deliveries go on: only this page asked for too much.",
        ),
        Kind::Overloaded | Kind::NotReady => {
            ("The server is busy", "Deliveries go on. This page can be loaded again in a moment.")
        }
        Kind::NotFound => (
            "There is no such page",
            "It may have been removed, or it belongs to somebody whose data you may not see.",
        ),
        _ => (problem.title(), ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_database_that_is_away_is_called_so() {
        for kind in [Kind::QueryTooSlow, Kind::Overloaded, Kind::NotReady, Kind::NotFound, Kind::Internal] {
            let (title, advice) = heading(&Problem::new(kind, "why"));
            assert!(!title.contains("database") && !advice.contains("when it is back"), "{kind:?}: {title}");
        }
        assert!(heading(&Problem::new(Kind::DatabaseAway, "why")).0.contains("not available"));
    }
}
