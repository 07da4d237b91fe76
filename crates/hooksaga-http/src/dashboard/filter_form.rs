//! The filters of a list: the views that people use most, a form for everything else, and the filters that are set, each with
//! a link that removes it.

use super::{list::Asked, parts, words};
use crate::problem::Problem;
use hooksaga_saga::SagaStatus;
use maud::{Markup, html};

/// A view of a list: a name for what some parameters of its query ask for.
pub(super) struct View {
    name: &'static str,
    pairs: Vec<(&'static str, &'static str)>,
}

impl View {
    /// Everything.
    pub(super) fn all() -> Self {
        Self::new("All", &[])
    }

    pub(super) fn one(name: &'static str, parameter: &'static str, value: &'static str) -> Self {
        Self::new(name, &[(parameter, value)])
    }

    pub(super) fn new(name: &'static str, pairs: &[(&'static str, &'static str)]) -> Self {
        Self { name, pairs: pairs.to_vec() }
    }

    /// Whether exactly this is asked for, as far as views go.
    fn is(&self, asked: &Asked, views: &[Self]) -> bool {
        let mut given: Vec<_> = asked.pairs().filter(|(name, _)| belongs(views, name)).collect();
        given.sort_unstable();
        given.dedup();
        let mut own = self.pairs.clone();
        own.sort_unstable();
        given == own
    }
}

/// Whether a parameter is one that views are made of.
fn belongs(views: &[View], parameter: &str) -> bool {
    views.iter().flat_map(|view| &view.pairs).any(|(name, _)| *name == parameter)
}

/// The views alone.
pub(super) fn views(path: &str, asked: &Asked, views: &[View]) -> Markup {
    html! {
        nav.views aria-label="Views" { @for view in views {
            @let address = asked.with(path, |name, _| !belongs(views, name), &view.pairs);
            a href=(address) aria-current=[view.is(asked, views).then_some("true")] { (view.name) }
        } }
    }
}

/// All of it, above a list. `open`: the form is to be seen at once, because something in it is wrong.
pub(super) fn filter(path: &str, asked: &Asked, views: &[View], open: bool, fields: &Markup) -> Markup {
    let is_view = views.iter().any(|view| view.is(asked, views));
    let chips: Vec<_> = asked.pairs().filter(|(name, _)| !is_view || !belongs(views, name)).collect();
    html! {
        @if !views.is_empty() { (self::views(path, asked, views)) }
        details.filter open[open] {
            summary { "Filter" }
            form action=(path) {
                (fields)
                div.actions {
                    button { "Apply" }
                    @if asked.filters() { a href=(path) { "Clear" } }
                }
            }
        }
        @if !chips.is_empty() {
            ul.chips aria-label="The filter in use" {
                @for (name, value) in chips { li {
                    @let without = asked.with(path, |other, given| (other, given) != (name, value), &[]);
                    @let said = condition(name, value);
                    a.chip href=(without) title="Take this away" aria-label=(format!("Take away: {said}")) { span { (said) } }
                } }
                li { a href=(path) { "Clear" } }
            }
        }
    }
}

/// In place of a list whose filter cannot be read: what is wrong with it, field by field.
pub(super) fn refused(problem: &Problem) -> Markup {
    html! {
        div.alert role="alert" {
            @for error in problem.errors() { p { (label(&error.field)) ": " (error.detail) "." } }
            @if problem.errors().is_empty() { p { (words::sentence(problem.detail())) } }
        }
    }
}

/// What the form calls a parameter.
fn label(parameter: &str) -> String {
    match parameter {
        "created_after" => "From".to_owned(),
        "created_before" => "Before".to_owned(),
        "final_error_code" => "Error code".to_owned(),
        "event_type" => "Type".to_owned(),
        "callback_url" => "Callback URL".to_owned(),
        "subscription_id" | "event_id" => words::capitalised(parameter.trim_end_matches("_id")),
        other => words::capitalised(&other.replace('_', " ")),
    }
}

/// In place of a list that has nothing of what is asked for.
pub(super) fn none_matches(path: &str, text: &str) -> Markup {
    parts::empty(text, &html! { a href=(path) { "Show all" } })
}

/// What a parameter asks for, in words.
fn condition(name: &str, value: &str) -> String {
    match (name, value) {
        ("active", "true") => "Active".to_owned(),
        ("active", "false") => "Paused".to_owned(),
        ("verified", "true") => "Verified".to_owned(),
        ("verified", "false") => "Not verified".to_owned(),
        ("disabled", "true") => "Switched off".to_owned(),
        ("disabled", "false") => "Not switched off".to_owned(),
        ("requeued", "true") => "Sent again".to_owned(),
        ("requeued", "false") => "Not sent again".to_owned(),
        ("status", _) => {
            let status = SagaStatus::ALL.iter().find(|status| status.as_str() == value);
            status.map_or_else(|| format!("Status {value}"), |status| words::status(*status).to_owned())
        }
        _ => format!("{} {value}", label(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pairs: &[(&str, &str)]) -> Asked {
        Asked::from_pairs(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    fn shown(pairs: &[(&str, &str)]) -> String {
        let views = [
            View::all(),
            View::one("Open", "requeued", "false"),
            View::new("Both", &[("requeued", "true"), ("kind", "x")]),
        ];
        filter("/list", &asked(pairs), &views, false, &html! {}).into_string()
    }

    #[test]
    fn a_view_keeps_the_rest_of_the_filter() {
        let page = shown(&[("requeued", "false"), ("tenant", "acme"), ("cursor", "c")]);
        assert!(page.contains("<a href=\"/list?tenant=acme\">All</a>"), "{page}");
        assert!(
            page.contains("<a href=\"/list?tenant=acme&amp;requeued=false\" aria-current=\"true\">Open</a>"),
            "{page}"
        );
        assert!(
            page.contains("<a href=\"/list?tenant=acme&amp;requeued=true&amp;kind=x\">Both</a>"),
            "{page}"
        );
        assert!(page.contains("<span>Tenant acme</span>") && !page.contains("Not sent again"), "{page}");
        assert!(page.contains("href=\"/list?requeued=false\" title="), "without the tenant: {page}");
    }

    #[test]
    fn what_is_no_view_is_shown_as_what_it_is() {
        let page = shown(&[("requeued", "true"), ("requeued", "false")]);
        assert!(!page.contains("aria-current") && page.contains("<span>Not sent again</span>"), "{page}");
        let all = shown(&[]);
        assert!(all.contains("aria-current=\"true\">All</a>") && !all.contains("chips"), "{all}");
    }

    #[test]
    fn conditions_are_told_in_words() {
        for (name, value, text) in [
            ("status", "DeadLettered", "Given up"),
            ("status", "x", "Status x"),
            ("external_id", "a", "External id a"),
            ("tenant", "acme", "Tenant acme"),
            ("subscription_id", "3", "Subscription 3"),
            ("created_after", "x", "From x"),
            ("final_error_code", "HTTP_500", "Error code HTTP_500"),
            ("whatever", "x", "Whatever x"),
        ] {
            assert_eq!(condition(name, value), text);
        }
    }
}
