//! The dashboard at `/` and the customers' portal at `/portal`: pages that the server renders, over the same store
//! methods, scopes and tenants as the API.
//!
//! A request passes the layer `page_layer` (other sites' posts are refused, failures become pages, every response gets the
//! content security policy), then the [`Visitor`] extractor (a session cookie, or the way to the sign-in), then the
//! page. What changes something is a form: it is turned into the JSON that the API takes, so that the rules are the
//! same. Everything works without the script, which only refreshes, counts down and copies.

mod assets;
mod chart;
mod dead_letters;
mod deliveries;
mod endpoint_care;
mod events;
mod filter_form;
mod form;
mod health;
mod home;
mod home_summary;
mod keys;
mod layout;
mod list;
mod origin;
mod page_layer;
mod parts;
mod portal_look;
mod pretty;
mod redrives;
mod search;
mod sent_again_by;
mod session;
mod sign_in;
mod site;
mod subscription_form;
mod subscriptions;
mod words;

pub(crate) use home_summary::Situation;
pub use home_summary::warm_up;
pub(crate) use portal_look::Appearance;
pub use portal_look::PortalLook;
pub(crate) use session::now;

use crate::state::SharedState;
use axum::{
    middleware,
    routing::{get, post},
};
use page_layer::{OnPage, PageError, page_layer};
pub(crate) use page_layer::{no_such_method, no_such_page};
use session::Visitor;
use site::Site;

/// What a page returns.
type PageResult = Result<axum::response::Response, PageError>;

/// The pages of both sites, and what they are made of.
pub(crate) fn routes(state: &SharedState) -> axum::Router<SharedState> {
    site(Site::Dashboard)
        .merge(site(Site::Portal))
        .layer(middleware::from_fn_with_state(SharedState::clone(state), page_layer))
        .route("/assets/{name}", get(assets::show))
}

fn site(site: Site) -> axum::Router<SharedState> {
    let at = |path: &str| site.path(path);
    let router = axum::Router::new()
        .route(site.home(), get(home::show))
        .route(&at("/sign-in"), get(sign_in::show).post(sign_in::sign_in))
        .route(&at("/sign-out"), post(sign_in::sign_out))
        .route(&at("/search"), get(search::show))
        .route(&at("/events"), get(events::list))
        .route(&at("/events/{id}"), get(events::show))
        .route(&at("/events/{id}/payload"), get(events::payload))
        .route(&at("/deliveries"), get(deliveries::list))
        .route(&at("/deliveries/{saga_id}"), get(deliveries::show))
        .route(&at("/deliveries/{saga_id}/resend"), post(deliveries::resend))
        .route(&at("/subscriptions"), get(subscriptions::list))
        .route(&at("/subscriptions/new"), get(subscription_form::new).post(subscription_form::create))
        .route(&at("/subscriptions/{id}"), get(subscriptions::show))
        .route(&at("/subscriptions/{id}/edit"), get(subscription_form::edit).post(subscription_form::update))
        .route(&at("/subscriptions/{id}/active"), post(subscriptions::set_active))
        .route(&at("/subscriptions/{id}/verify"), post(subscriptions::verify))
        .route(&at("/subscriptions/{id}/rotate-secret"), post(subscriptions::rotate))
        .route(&at("/subscriptions/{id}/test"), post(endpoint_care::test))
        .route(&at("/subscriptions/{id}/delete"), post(endpoint_care::delete))
        .route(&at("/dead-letters"), get(dead_letters::list))
        .route(&at("/dead-letters/requeue"), post(dead_letters::requeue))
        .route(&at("/dead-letters/{id}"), get(dead_letters::show))
        .route(&at("/redrives"), get(redrives::list).post(redrives::start))
        .route(&at("/redrives/{id}"), get(redrives::show))
        .route(&at("/redrives/{id}/cancel"), post(redrives::cancel));
    match site {
        Site::Portal => router,
        // What is the operators' alone.
        Site::Dashboard => {
            router.route("/keys", get(keys::list)).route("/keys/{id}/revoke", post(keys::revoke))
        }
    }
}
