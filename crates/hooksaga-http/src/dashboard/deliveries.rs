//! Deliveries: the list, and one with its attempts.

use super::{
    OnPage, PageResult, Visitor,
    dead_letters::not_deliverable,
    filter_form::{self, View},
    layout::{self, HtmlPage, Section},
    list::{self, Asked, PageOrProblem},
    parts,
    words::{self, Audience},
};
use crate::{
    api::deliveries::wait_causes,
    audit,
    cursor::ListKind,
    dto::DeliveriesQuery,
    explanation::{WaitCauses, explain},
    listing::ListRequest,
    path::Id,
    problem::Problem,
    state::{ApiState, SharedState},
};
use axum::{
    extract::State,
    response::{IntoResponse, Redirect},
};
use hooksaga_saga::{Held, JobStatus, SagaId, SagaStatus, Timestamp};
use hooksaga_store::{
    Attempt, Delivery, DeliveryDetail, DeliveryFilter, PageRequest, ResendOutcome, Scope, StoreResult,
    TenantScope,
};
use maud::{Markup, html};
use std::{fmt::Write as _, time::Duration};

pub(super) async fn list(visitor: Visitor, State(state): State<SharedState>, asked: Asked) -> PageResult {
    let path = visitor.path("/deliveries");
    let read = async {
        let ListRequest { scope, query, page, .. } = asked.listing::<DeliveriesQuery>(&visitor)?;
        Ok::<_, Problem>(state.reader.deliveries(page.of(&scope, &query.into())).await?)
    };
    let PageOrProblem { items: deliveries, next, problem } = PageOrProblem::of(read.await)?;
    let fields = html! {
        fieldset { legend { "Status" }
            @for status in SagaStatus::ALL {
                label.check { input type="checkbox" name="status" value=(status) checked[asked.has("status", status.as_str())]; (words::status(*status)) }
            }
        }
        (list::field(&asked, "subscription_id", "Subscription", "3"))
        (list::field(&asked, "event_id", "Event", "evt_17"))
        (list::field(&asked, "event_type", "Type", "order.created"))
        (list::field(&asked, "external_id", "External id", ""))
        (list::field(&asked, "correlation_id", "Correlation id", ""))
        (list::tenant(&visitor, &asked))
        (list::times(&asked))
    };
    let views =
        SagaStatus::ALL.iter().map(|status| View::one(words::status(*status), "status", status.as_str()));
    let views: Vec<_> = [View::all()].into_iter().chain(views).collect();
    let body = html! {
        h1 { "Deliveries" }
        (filter_form::filter(&path, &asked, &views, problem.is_some(), &fields))
        @if let Some(problem) = &problem { (filter_form::refused(problem)) }
        @else if asked.filters() && deliveries.is_empty() { (filter_form::none_matches(&path, "No delivery matches.")) }
        @else if deliveries.is_empty() {
            (parts::empty("Nothing has been delivered yet: a delivery begins when an event matches a subscription.", &html! { a href=(visitor.site.home()) { "What to do next" } }))
        }
        @else {
            (table(&visitor, &deliveries, TableScope::Anything))
            (asked.pager(&path, ListKind::Deliveries, next))
        }
    };
    let page = HtmlPage::new("Deliveries", Section::Deliveries, body);
    Ok(layout::show(&state, &visitor, &page))
}

/// A delivery that waits longer for its first attempt is not sent at once, and people ask why.
const LONG_WAIT: Duration = Duration::from_secs(10);

/// What a table of deliveries is about: what all its rows have in common is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableScope {
    Anything,
    AnEvent,
    ASubscription,
}

/// A table of deliveries.
pub(super) fn table(visitor: &Visitor, deliveries: &[Delivery], about: TableScope) -> Markup {
    let tenants = visitor.tenant().is_none() && about == TableScope::Anything;
    let (events, endpoints) = (about != TableScope::AnEvent, about != TableScope::ASubscription);
    html! {
        div.scroll { table {
            thead { tr {
                th { "Delivery" } th { "Status" } @if events { th { "Event" } th { "Type" } } @if endpoints { th { "To" } } @if tenants { th { "Tenant" } }
                th.number { "Attempts" } th { "Last error" } th { "Created" }
            } }
            tbody { @for delivery in deliveries { tr {
                td.first { (parts::delivery_link(visitor, delivery.saga_id.0)) }
                td.first { (parts::delivery_status(delivery)) }
                @if events { td { (parts::event_link(visitor, delivery.event_id.0)) } (parts::cut(&delivery.event_type)) }
                @if endpoints { td { (parts::subscription_link(visitor, delivery.subscription_id, Some(&delivery.callback_url))) } }
                @if tenants { (parts::cut(&delivery.tenant)) }
                td.number data-name="Attempts" { (delivery.attempt_count) " of " (delivery.max_retry_limit) }
                td { @if let Some(code) = &delivery.final_error_code { code title=(words::meaning(code).what) { (code) } } }
                td.first.end { (parts::time(delivery.created_at, visitor.now)) }
            } } }
        } }
    }
}

pub(super) async fn show(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(Id(id)): OnPage<Id>,
    asked: Asked,
) -> PageResult {
    page(&state, &visitor, id, parts::notice(asked.get("done"))).await
}

/// A delivery's page, with something said above it.
async fn page(state: &ApiState, visitor: &Visitor, id: i64, said: Markup) -> PageResult {
    let scope = visitor.scope();
    let found = state.reader.delivery(&scope, SagaId(id)).await?;
    let detail = found.ok_or_else(|| no_such(id))?;
    let DeliveryDetail { delivery, attempts } = &detail;
    let wait_causes = wait_causes(state, &scope, delivery).await?;
    let again = sent_again(state, &scope, delivery).await?;
    let facts = [
        Some((
            "Event",
            html! { (parts::event_link(visitor, delivery.event_id.0)) " " (parts::type_fact(&delivery.event_type)) },
        )),
        Some((
            "To",
            parts::subscription_link(visitor, delivery.subscription_id, Some(&delivery.callback_url)),
        )),
        parts::tenant_fact(visitor, &delivery.tenant),
        Some(("Attempts", html! { (delivery.attempt_count) " of " (delivery.max_retry_limit) })),
        Some(("Created", parts::time(delivery.created_at, visitor.now))),
        delivery.status.is_final().then(|| ("Ended", parts::time(delivery.updated_at, visitor.now))),
        Some(("External id", parts::id_fact(delivery.external_id.as_deref()))),
        Some(("Correlation id", parts::id_fact(Some(&delivery.correlation_id)))),
        (delivery.generation > 0)
            .then(|| ("Sent before", html! { (parts::plural(delivery.generation.into(), "time", "times")) })),
    ];
    let (title, button) = match visitor.audience() {
        Audience::Operators => ("For the customer", "Copy for the customer"),
        Audience::Customers => ("As text, to pass on", "Copy"),
    };
    let body = html! {
        div.heading {
            h1 { "Delivery " code { (id) } " " (parts::delivery_status(delivery)) }
            @if delivery.status.is_final() && again.is_none() && visitor.may(Scope::Operator) {
                form method="post" action=(visitor.path(&format!("/deliveries/{id}/resend"))) {
                    button.plain[delivery.status == SagaStatus::Completed] { "Send again" }
                }
            }
        }
        p.sentence {
            (explanation(visitor.audience(), visitor.now, &detail, wait_causes))
            @if let Some(again) = again { " It was sent again as delivery " (parts::delivery_link(visitor, again.0)) "." }
        }
        (parts::facts(facts.into_iter().flatten()))
        section.card { h2 { "Attempts" } (timeline(visitor, delivery, attempts)) }
        section.card {
            h2 { (title) }
            @let text = for_the_customer(delivery, attempts, wait_causes.held);
            pre tabindex="0" { (text) }
            button.plain type="button" data-copy=(text) hidden { (button) }
        }
    };
    // Also while it is held: it goes on as soon as its subscription does.
    let live = !delivery.status.is_final();
    let at = Some(visitor.path(&format!("/deliveries/{id}")));
    let page =
        HtmlPage { live, at, said, ..HtmlPage::new(format!("Delivery {id}"), Section::Deliveries, body) };
    Ok(layout::show(state, visitor, &page))
}

/// The delivery that this one was sent again as.
async fn sent_again(
    state: &ApiState,
    scope: &TenantScope,
    delivery: &Delivery,
) -> StoreResult<Option<SagaId>> {
    if !delivery.status.is_final() {
        return Ok(None);
    }
    let filter = DeliveryFilter {
        event_id: Some(delivery.event_id),
        subscription_id: Some(delivery.subscription_id),
        ..DeliveryFilter::default()
    };
    let page = PageRequest { limit: 500, before: None };
    let same = state.reader.deliveries(page.of(scope, &filter)).await?.items;
    let next = same.iter().find(|other| other.generation == delivery.generation + 1);
    Ok(next.map(|next| next.saga_id))
}

fn no_such(id: i64) -> Problem {
    Problem::no_such("delivery", id)
}

/// Sends a delivery that has ended again, and leads to the new one.
pub(super) async fn resend(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(Id(id)): OnPage<Id>,
) -> PageResult {
    visitor.needs(Scope::Operator)?;
    let to = |saga: SagaId, done: &str| {
        Ok(Redirect::to(&visitor.path(&format!("/deliveries/{saga}?done={done}"))).into_response())
    };
    match state.requeue.resend(&visitor.scope(), SagaId(id)).await? {
        ResendOutcome::Created(requeued, _) => to(requeued.saga_id, "requeued"),
        ResendOutcome::Already(requeued) => {
            audit::changed_nothing();
            to(requeued.saga_id, "requeued-before")
        }
        ResendOutcome::Open => {
            audit::changed_nothing();
            page(
                &state,
                &visitor,
                id,
                parts::alert("It is still under way: it can be sent again once it has ended."),
            )
            .await
        }
        ResendOutcome::NotDeliverable(subscription) => {
            audit::changed_nothing();
            page(&state, &visitor, id, not_deliverable(&visitor, subscription)).await
        }
        ResendOutcome::NotFound => Err(no_such(id).into()),
    }
}

/// What happened and what happens next, in the words of the API, and what to do about it.
fn explanation(
    audience: Audience,
    now: Timestamp,
    detail: &DeliveryDetail,
    wait_causes: WaitCauses,
) -> Markup {
    let (said, delivery) = (explain(detail, wait_causes), &detail.delivery);
    let waits = delivery.status == SagaStatus::Pending && said.held.is_none();
    let failed = delivery.final_error_code.as_ref().filter(|_| delivery.status != SagaStatus::Completed);
    let advice = said.held.map(|held| words::sentence(held.advice()));
    let advice = advice.or_else(|| failed.map(|code| words::meaning(code).advice(audience)));
    html! {
        (said.text) @if let Some(due) = said.due { " " (parts::due(due, now)) } "."
        @if waits && now.since(delivery.created_at) > LONG_WAIT {
            " Endpoints take turns: one that is slow, fails or has a rate limit is sent a few at a time."
        }
        @if let Some(advice) = advice { " " (advice) }
    }
}

fn timeline(visitor: &Visitor, delivery: &Delivery, attempts: &[Attempt]) -> Markup {
    let waits = delivery.status == SagaStatus::PendingRetry && !delivery.held;
    html! {
        @if attempts.is_empty() { p.quiet { "None yet." } }
        @if waits || !attempts.is_empty() { ol.timeline {
            @for (number, attempt) in (1u32..).zip(attempts) { li class=(attempt_class(attempt.status)) {
                (attempt_line(visitor, number, attempt))
                @if let Some(excerpt) = attempt.response_excerpt.as_deref().filter(|excerpt| !excerpt.is_empty()) {
                    details open[number as usize == attempts.len()] { summary { "What the endpoint returned" } pre tabindex="0" { (excerpt) } }
                }
            } }
            @if waits { li.next {
                p { strong { "Attempt " (attempts.len() + 1) } " · " (parts::due(delivery.next_attempt_at, visitor.now)) }
                p.meta { span { (parts::exact(delivery.next_attempt_at)) } span { "to " (parts::url_in_parts(&delivery.callback_url)) } }
            } }
        } }
    }
}

fn attempt_line(visitor: &Visitor, number: u32, attempt: &Attempt) -> Markup {
    let at = attempt.started_at.unwrap_or(attempt.attempt_at);
    html! {
        p { strong { "Attempt " (number) } " · " (parts::time(at, visitor.now)) }
        p { @match attempt.status {
            JobStatus::Pending => { "Waits for a worker." }
            JobStatus::Leased => { "Is being sent." }
            JobStatus::Completed => { "Delivered" @if let Some(status) = attempt.response_status { ": HTTP " (status) } "." }
            JobStatus::Failed => { @if let Some(code) = &attempt.error_code {
                @let what = words::meaning(code).what;
                (what) @if let Some(status) = attempt.response_status.filter(|_| !what.contains("(HTTP ")) { " The response was HTTP " (status) "." }
            } }
        } }
        p.meta {
            span { (parts::exact(at)) }
            @if let Some(code) = &attempt.error_code { span { code { (code) } } }
            @if let Some(ms) = attempt.duration_ms { span { (parts::milliseconds(ms)) } }
            @if attempt.lease_resets > 0 && visitor.audience() == Audience::Operators { span { "its worker ended " (parts::plural(attempt.lease_resets.into(), "time", "times")) } }
            @if let Some(url) = &attempt.callback_url { span { "to " (parts::url_in_parts(url)) } }
        }
    }
}

const fn attempt_class(status: JobStatus) -> &'static str {
    match status {
        JobStatus::Pending | JobStatus::Leased => "open",
        JobStatus::Completed => "good",
        JobStatus::Failed => "bad",
    }
}

/// The story of a delivery as text that can be sent to whoever runs the endpoint.
fn for_the_customer(delivery: &Delivery, attempts: &[Attempt], held: Option<Held>) -> String {
    let (event, created) = (delivery.event_id, parts::exact(delivery.created_at));
    let mut text = format!("Webhook evt_{event} ({}) of {created}", delivery.event_type);
    if let Some(id) = &delivery.external_id {
        let _ = write!(text, "\nExternal id {id}");
    }
    let _ = write!(text, "\nTo {}", delivery.callback_url);
    for (number, attempt) in (1u32..).zip(attempts) {
        let _ =
            write!(text, "\n{number}. {}: ", parts::exact(attempt.started_at.unwrap_or(attempt.attempt_at)));
        match (attempt.status, &attempt.error_code) {
            (JobStatus::Completed, _) => text.push_str("delivered"),
            (JobStatus::Failed, Some(code)) => {
                let what = words::meaning_for_customers(code).what;
                text.push_str(what.trim_end_matches('.'));
                if let Some(status) = attempt.response_status.filter(|_| !what.contains("(HTTP ")) {
                    let _ = write!(text, ", HTTP {status}");
                }
            }
            _ => text.push_str("under way"),
        }
        if let Some(ms) = attempt.duration_ms {
            let _ = write!(text, " ({})", parts::milliseconds(ms));
        }
    }
    let held = held.filter(|_| delivery.held);
    let status = held.map_or_else(|| words::status(delivery.status).to_lowercase(), |_| "held".to_owned());
    let _ = write!(
        text,
        "\nStatus: {status}, {} of {} attempts",
        delivery.attempt_count, delivery.max_retry_limit
    );
    if let Some(held) = held {
        let _ = write!(text, ", because {}", held.because());
    } else if delivery.status == SagaStatus::PendingRetry {
        let _ = write!(text, "\nNext attempt: {}", parts::exact(delivery.next_attempt_at));
    }
    let failed = delivery.final_error_code.as_ref().filter(|_| delivery.status != SagaStatus::Completed);
    let repair = |code| words::meaning_for_customers(code).advice(Audience::Customers);
    let advice = held.map(|held| words::sentence(held.advice()));
    if let Some(advice) = advice.or_else(|| failed.map(repair)) {
        let _ = write!(text, "\nWhat to do: {advice}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        explanation::tests::{delivery, holding, with_job},
        time::ApiTime,
    };
    use hooksaga_saga::{DisabledReason, ErrorCode};

    /// As a reader sees it.
    fn text_of(markup: Markup) -> String {
        let mut text = String::new();
        for (outside, piece) in markup.into_string().split('<').enumerate() {
            text.push_str(if outside == 0 { piece } else { piece.split_once('>').expect("a tag").1 });
        }
        text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    }

    #[test]
    fn the_page_says_what_the_api_says_and_adds_what_to_do() {
        let reasons = DisabledReason::ALL.map(Held::Disabled);
        let helds: Vec<_> =
            reasons.into_iter().chain([Held::Paused, Held::Unverified, Held::Deleted]).collect();
        let jobs = [JobStatus::Pending, JobStatus::Leased, JobStatus::Completed, JobStatus::Failed];
        let codes = [None, Some(ErrorCode::http(410)), Some(ErrorCode::SUBSCRIPTION_DELETED)];
        for status in SagaStatus::ALL {
            for (count, code) in
                [0, 1, 2, 5].into_iter().flat_map(|count| codes.iter().map(move |code| (count, code)))
            {
                for job in [None].into_iter().chain(jobs.map(Some)) {
                    for held in [None].into_iter().chain(helds.iter().copied().map(Some)) {
                        let mut detail = delivery(*status, count, code.clone());
                        detail.delivery.held = held.is_some_and(|held| held != Held::Deleted);
                        let detail = job.map_or(detail.clone(), |job| with_job(detail, job));
                        // The page tells the time as a distance.
                        let due = detail.delivery.next_attempt_at;
                        let api = explain(&detail, holding(held))
                            .to_string()
                            .replace(&format!("due at {}", ApiTime(due)), "due now");
                        for audience in [Audience::Operators, Audience::Customers] {
                            let page = text_of(explanation(audience, due, &detail, holding(held)));
                            let advice = page.strip_prefix(&api);
                            assert!(advice.is_some(), "the API: {api}\nthe page: {page}");
                            assert!(
                                advice.is_some_and(|advice| advice.is_empty() || advice.starts_with(' ')),
                                "{page}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_advice_fits_what_is_said() {
        let advice = |detail: &DeliveryDetail, held| {
            let (api, page) = (
                explain(detail, holding(held)).to_string(),
                explanation(Audience::Operators, Timestamp::from_micros(0), detail, holding(held)),
            );
            text_of(page).strip_prefix(&api).map(str::to_owned)
        };
        let mut paused = delivery(SagaStatus::InProgress, 0, None);
        paused.delivery.held = true;
        assert_eq!(
            advice(&paused, Some(Held::Paused)).as_deref(),
            Some(" Resume it; waiting deliveries are then sent.")
        );
        let sent = with_job(paused, JobStatus::Leased);
        assert_eq!(advice(&sent, Some(Held::Paused)).as_deref(), Some(""), "it does not wait");
        let failed = delivery(SagaStatus::DeadLettered, 5, Some(ErrorCode::http(413)));
        assert_eq!(advice(&failed, None).as_deref(), Some(" Raise the endpoint's limit for request bodies."));
        let taken = delivery(SagaStatus::Completed, 2, Some(ErrorCode::http(413)));
        assert_eq!(advice(&taken, None).as_deref(), Some(""), "all is well");
    }
}
