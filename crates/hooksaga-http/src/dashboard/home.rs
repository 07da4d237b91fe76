//! The first page: how everything stands, for the person on call.

use super::{
    PageResult, Visitor, chart,
    home_summary::{self, LOOKED_AT, Situation},
    layout::{self, HtmlPage, Section},
    parts, words,
};
use crate::{
    open_work::OpenWork,
    problem::Problem,
    refreshed::{Known, Patience},
    state::SharedState,
};
use axum::extract::State;
use hooksaga_saga::SagaStatus;
use hooksaga_store::{FailingEndpoint, FailingEndpoints, Scope, Stats, StoreError};
use maud::{Markup, html};
use std::{sync::Arc, time::Duration};

/// The page does not wait for a count of many deliveries: two seconds later it is asked for again.
const PATIENCE: Patience =
    Patience { for_newer: Duration::from_millis(50), for_any: Duration::from_millis(50) };

/// Of figures that are older the page says when they were counted.
const RECENT: Duration = Duration::from_secs(5);

/// Sends an event.
pub(super) const SEND: &str = "hooksaga send order.created '{\"order\": 42}'";

/// Subscribes the endpoint that `hooksaga listen` is.
pub(super) const SUBSCRIBE: &str = "hooksaga subscriptions add order.created http://127.0.0.1:9000/ --wait";

pub(super) async fn show(visitor: Visitor, State(state): State<SharedState>) -> PageResult {
    let scope = visitor.scope();
    let (stats, situations) = (state.stats_in_all.of(&scope), state.situations.of(&scope));
    let asked = || (Arc::clone(&state.reader), scope.clone());
    let ((reader, of), (beside, likewise)) = (asked(), asked());
    let (stats, situation, open) = tokio::join!(
        stats.get(async move { reader.stats_in_all(&of).await }),
        situations.get(async move { Situation::read(&*beside, &likewise).await }),
        state.open_work.of(&scope, PATIENCE),
    );
    let stats = stats.map_err(|error| Problem::from(&*error))?;
    let situation = situation.map_err(|error| Problem::from(&*error))?;

    let workers = visitor.tenant().is_none().then_some(situation.workers.len());
    let hour = chart::sum(&stats.minutes, stats.now);
    let due = home_summary::oldest_due(&stats);
    let (mood, sentence) = home_summary::sentence(stats.now, &situation, due, workers, hour.delivered);
    let body = html! {
        h1.unseen { "Overview" }
        @if situation.has_subscriptions && situation.has_events {
            p.sentence { span class=(format!("light {}", mood.class())) {} (sentence) }
        } @else {
            (first_steps(&visitor, &situation))
        }
        @if situation.has_events {
            (figures(&visitor, &stats, &situation, &open))
            (how_counted(&visitor, &open))
            section.card { h2 { "The last hour" } (chart::bars(&stats.minutes, stats.now)) }
        }
        (failing(&visitor, &situation))
        @if visitor.tenant().is_none() && situation.has_events && !situation.workers.is_empty() { (workers_table(&visitor, &situation)) }
    };
    let page = HtmlPage { live: true, ..HtmlPage::new("Overview", Section::Overview, body) };
    Ok(layout::show(&state, &visitor, &page))
}

/// What to do next, as long as nothing has happened.
fn first_steps(visitor: &Visitor, situation: &Situation) -> Markup {
    let operator = visitor.tenant().is_none();
    html! {
        section.card.first-steps {
            h2 { @if !situation.has_subscriptions { "Nothing is set up yet" } @else if operator { "Send the first event" } @else { "Nothing was sent yet" } }
            ol.steps {
                @if !situation.has_subscriptions {
                    @if operator { li {
                        p { "Have an endpoint. To try it on this machine, this one receives webhooks and prints them, for a server that was started as " code { "hooksaga serve --dev" } ":" }
                        (parts::copy_line("hooksaga listen --port 9000"))
                    } }
                    li {
                        p { @if operator { "Subscribe it" } @else { "Subscribe an endpoint of yours" } ": a subscription says which events go where." }
                        @if visitor.may(Scope::Admin) { a.button href=(visitor.path("/subscriptions/new")) { "Create a subscription" } }
                        @if operator { (parts::copy_line(SUBSCRIBE)) }
                    }
                }
                @if !situation.has_events {
                    @if operator { li {
                        p { "Send an event, and watch it arrive here." }
                        (parts::copy_line(SEND))
                    } } @else { li {
                        p { "Open " a href=(visitor.path("/subscriptions")) { "your subscription" } " and send it a test event. What is delivered appears here." }
                    } }
                }
            }
        }
    }
}

fn figures(visitor: &Visitor, stats: &Stats, situation: &Situation, open: &Known<OpenWork>) -> Markup {
    let (open, most) = match open {
        Known::Figures(figures) => (Some(figures.value.deliveries()), figures.value.most()),
        Known::Failed(_) | Known::Counting => (None, 0),
    };
    let count = |value: Option<u64>| match value {
        Some(value) => format!("{}{}", parts::number(value), if value >= most { "+" } else { "" }),
        None => "…".to_owned(),
    };
    let retrying = open.map(|open| open.pending_retry);
    let by_status = |status: SagaStatus| visitor.path(&format!("/deliveries?status={status}"));
    let letters = situation.open_letters;
    let looked_at = |value: u64| format!("{value}{}", if value >= u64::from(LOOKED_AT) { "+" } else { "" });
    let due = home_summary::oldest_due(stats);
    let slots: u64 = situation.workers.iter().map(|worker| u64::from(worker.slots)).sum();
    html! {
        section.figures aria-label="Figures" {
            @for (status, value) in [
                (SagaStatus::Pending, open.map(|open| open.pending)),
                (SagaStatus::InProgress, open.map(|open| open.in_progress)),
            ] {
                (parts::figure(words::status(status), &count(value), Some(&by_status(status)), "", ""))
            }
            (parts::figure(words::status(SagaStatus::PendingRetry), &count(retrying), Some(&by_status(SagaStatus::PendingRetry)), if retrying.is_some_and(|count| count > 0) { "warn" } else { "" }, ""))
            (parts::figure("Held", &count(open.map(|open| open.held)), Some(&visitor.path("/subscriptions?active=false&disabled=false")), "", "Open deliveries that wait for their subscription to be active and verified"))
            (parts::figure("Oldest due work", &if due.is_zero() { "none".to_owned() } else { parts::span(due) }, None, "", "How long the oldest delivery that could be sent has been due"))
            (parts::figure("Open dead letters", &looked_at(letters), Some(&visitor.path("/dead-letters?requeued=false")), if letters > 0 { "bad" } else { "" }, ""))
            @if situation.switched_off > 0 {
                (parts::figure("Switched off", &looked_at(situation.switched_off), Some(&visitor.path("/subscriptions?disabled=true")), "bad", "Subscriptions that the server switched off because their endpoint failed for long or was gone"))
            }
            @if visitor.tenant().is_none() {
                (parts::figure("Workers · slots", &format!("{} · {}", situation.workers.len(), parts::number(slots)), None, if situation.workers.is_empty() { "bad" } else { "" }, "Worker processes that are alive, and how many deliveries they can send at a time"))
            }
        }
    }
}

/// Where the counts of open deliveries are not of this moment: of when they are, or why there are none.
fn how_counted(visitor: &Visitor, open: &Known<OpenWork>) -> Markup {
    html! {
        @match open {
            Known::Figures(figures) if figures.age() < RECENT => {},
            Known::Figures(figures) => p.quiet {
                "The open deliveries were last counted "
                (parts::time(visitor.now.before(figures.age()), visitor.now)) "."
            },
            Known::Counting => p.quiet { "The open deliveries are being counted." },
            Known::Failed(error) => p.quiet {
                @match **error {
                    StoreError::TooSlow(_) | StoreError::TimedOut(_) =>
                        "So many deliveries are open that counting them takes too long. Everything else here is of this moment.",
                    _ => "The open deliveries cannot be counted at the moment.",
                }
            },
        }
    }
}

fn failing(visitor: &Visitor, situation: &Situation) -> Markup {
    html! {
        @let (failing, total) = (&situation.failing.shown, situation.failing.total);
        @if !failing.is_empty() {
            section.card {
                h2 { "Failing endpoints" }
                div.scroll { table {
                    thead { tr { th { "Endpoint" } th { "Last error" } th { "Since" } th { "Next retry" } th.number { "Failed attempts" } th.number { "Waiting" } } }
                    tbody { @for endpoint in failing { tr {
                        td.endpoint { (parts::subscription_link(visitor, endpoint.subscription_id, Some(&endpoint.callback_url))) }
                        td.wrap { span title=(endpoint.last_error) { (words::meaning(&endpoint.last_error).what) } }
                        td data-name="Since" { (parts::time(endpoint.since, visitor.now)) }
                        td data-name="Next retry" { @match endpoint.next_attempt_at { Some(at) => (parts::due(at, visitor.now)), None => span.quiet { "none" } } }
                        td.number data-name="Failed attempts" { (parts::number(endpoint.failures)) }
                        td.number data-name="Waiting" { (endpoint.waiting) @if endpoint.waiting >= u64::from(FailingEndpoint::MOST_WAITING) { "+" } }
                    } } }
                } }
                @let more = total.saturating_sub(failing.len() as u64);
                @if more > 0 { p.quiet {
                    "These have failed for longest, or began to fail last, and "
                    (parts::number(more)) @if total >= u64::from(FailingEndpoints::MOST_COUNTED) { " or" } " more fail."
                } }
            }
        }
    }
}

fn workers_table(visitor: &Visitor, situation: &Situation) -> Markup {
    html! {
        section.card {
            h2 { "Workers" }
            div.scroll { table {
                thead { tr { th { "Worker" } th { "Version" } th.number { "Slots" } th { "Running since" } th { "Last sign of life" } } }
                tbody { @for worker in &situation.workers { tr {
                    td { code { (format!("{:016x}", worker.worker_id)) } }
                    td data-name="Version" { (worker.version) }
                    td.number data-name="Slots" { (parts::number(worker.slots.into())) }
                    td data-name="Running since" { (parts::time(worker.started_at, visitor.now)) }
                    td data-name="Last sign of life" { (parts::time(worker.seen_at, visitor.now)) }
                } } }
            } }
        }
    }
}
