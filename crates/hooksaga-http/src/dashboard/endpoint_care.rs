//! More actions on a subscription: sending it a test event, and deleting it.

use super::{OnPage, PageResult, Visitor, subscriptions};
use crate::{api::endpoint_care as api, audit, path::Id, state::SharedState};
use axum::{
    extract::State,
    response::{IntoResponse, Redirect},
};
use hooksaga_store::{Scope, Subscription};
use http::StatusCode;
use maud::{Markup, html};

/// Sends a test event, and leads to its delivery, which shows what the endpoint returns.
pub(super) async fn test(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(Id(id)): OnPage<Id>,
) -> PageResult {
    visitor.needs(Scope::Admin)?;
    match api::send_test(&state, &visitor.caller, id).await {
        Ok(sent) => {
            let delivery = visitor.path(&format!("/deliveries/{}?done=test", sent.saga_id));
            Ok(Redirect::to(&delivery).into_response())
        }
        Err(problem) if problem.status() == StatusCode::CONFLICT => {
            audit::changed_nothing();
            Ok(subscriptions::back(&visitor, id, "not-tested"))
        }
        Err(problem) => Err(problem.into()),
    }
}

pub(super) async fn delete(
    visitor: Visitor,
    State(state): State<SharedState>,
    OnPage(Id(id)): OnPage<Id>,
) -> PageResult {
    visitor.needs(Scope::Admin)?;
    api::delete_from(&state, &visitor.caller, id).await?;
    Ok(Redirect::to(&visitor.path("/subscriptions?done=deleted")).into_response())
}

/// The button for a test event, where one can be sent.
pub(super) fn test_button(visitor: &Visitor, subscription: &Subscription) -> Markup {
    html! {
        @if subscription.active && subscription.verified {
            form method="post" action=(visitor.path(&format!("/subscriptions/{}/test", subscription.id))) {
                button.plain { "Send a test event" }
            }
        }
    }
}

/// The end of a subscription, behind one more step.
pub(super) fn delete_form(visitor: &Visitor, subscription: &Subscription) -> Markup {
    html! {
        details {
            summary { "Delete this subscription…" }
            p { "It disappears for good, with its secrets and headers. What is still to be delivered to it is given up. Its history stays." }
            form method="post" action=(visitor.path(&format!("/subscriptions/{}/delete", subscription.id))) { button.danger { "Delete for good" } }
        }
    }
}
