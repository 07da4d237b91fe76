//! What all pages have in common around them: the refusal of other sites' posts, failures as pages, and the headers.

use super::{Site, assets, layout, origin, session};
use crate::{
    problem::{Kind, Problem},
    state::{ApiState, SharedState},
};
use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Redirect, Response},
};
use hooksaga_store::StoreError;
use http::{HeaderMap, HeaderValue, Method, header, request::Parts};
use maud::{DOCTYPE, Markup, html};

/// A page that could not be shown. The layer makes a page of it, which knows the site.
#[derive(Debug)]
pub(super) struct PageError(Problem);

#[derive(Clone)]
struct Failed(Problem);

impl From<Problem> for PageError {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl From<StoreError> for PageError {
    fn from(error: StoreError) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        (self.0.status(), axum::Extension(Failed(self.0))).into_response()
    }
}

/// The layer around all pages.
pub(super) async fn page_layer(State(state): State<SharedState>, request: Request, next: Next) -> Response {
    let site = Site::of(request.uri().path());
    let asked = request.headers().clone();
    let is_post = request.method() == Method::POST;
    let mut response = if is_post && !origin::is_own(request.headers(), &state.public_url) {
        let detail =
            "this form was not sent from a page of this server; open the page and send it from there";
        PageError(Problem::new(Kind::CrossSite, detail)).into_response()
    } else {
        next.run(request).await
    };
    dressed(&state, site, &asked, &mut response).await;
    response
}

/// Makes a page of a failure, and adds the headers that every page has.
async fn dressed(state: &ApiState, site: Site, asked: &HeaderMap, response: &mut Response) {
    if let Some(Failed(problem)) = response.extensions_mut().remove() {
        // Where the server itself is in trouble, nobody is looked up.
        let lookup = problem.status().is_client_error();
        let visitor = if lookup { session::visitor(state, site, asked).await } else { None };
        *response = layout::failure(state, site, visitor.as_ref(), &problem);
        for (name, value) in problem.headers() {
            if name != header::WWW_AUTHENTICATE {
                response.headers_mut().insert(name.clone(), value.clone());
            }
        }
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, state.look.policy(site));
    // With "no-referrer" browsers would send no origin with forms.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
}

/// For paths that lead nowhere: a page for people, a problem document for programs.
pub(crate) async fn no_such_page(State(state): State<SharedState>, request: Request) -> Response {
    let (told, said) = ("there is no such route; see /docs", "nothing is at this address");
    nowhere(&state, request.uri().path(), request.headers(), Kind::NotFound, told, said).await
}

/// For methods that a path does not have, in the same way.
pub(crate) async fn no_such_method(State(state): State<SharedState>, request: Request) -> Response {
    let told = "this route does not support this method; see the allow header";
    let said = "nothing can be opened at this address: it takes what a form of another page sends";
    nowhere(&state, request.uri().path(), request.headers(), Kind::MethodNotAllowed, told, said).await
}

/// `told` to programs, `said` to people.
async fn nowhere(
    state: &ApiState,
    path: &str,
    asked: &HeaderMap,
    kind: Kind,
    told: &str,
    said: &str,
) -> Response {
    if !wants_a_page(asked) || path == "/v1" || path.starts_with("/v1/") {
        return Problem::new(kind, told).into_response();
    }
    let mut response = PageError(Problem::new(kind, said)).into_response();
    dressed(state, Site::of(path), asked, &mut response).await;
    response
}

/// Browsers name HTML when somebody opens an address; programs do not.
fn wants_a_page(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted
        .flat_map(|value| value.split(','))
        .any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/html")))
}

/// Sends somebody who is not signed in to the sign-in, and from there to the page again.
///
/// A link on another site comes without the cookie, because that is strict, though there may be one. A page of our own in
/// between makes the next step one of this site's, with the cookie; the sign-in page then leads on at once.
pub(super) fn to_sign_in(site: Site, parts: &Parts) -> Response {
    let asked = parts.uri.path_and_query().map_or(site.home(), |asked| asked.as_str());
    let next = if parts.method == Method::GET { site.local(asked) } else { site.home() };
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("next", next);
    let target = format!("{}?{}", site.path("/sign-in"), query.finish());
    let from_outside = parts.headers.get("sec-fetch-site").is_some_and(|from| {
        [HeaderValue::from_static("cross-site"), HeaderValue::from_static("same-site")].contains(from)
    });
    if from_outside {
        return layout::html(one_more_step(site, &target));
    }
    Redirect::to(&target).into_response()
}

/// The page in between, which leads on by itself.
///
/// A link to the portal has its token in the fragment, which such a refresh would lose: there the script posts the token, or
/// leads on if there is none.
fn one_more_step(site: Site, target: &str) -> Markup {
    let refresh = html! { meta http-equiv="refresh" content=(format!("0;url={target}")); };
    let portal = site == Site::Portal;
    html! {
        (DOCTYPE)
        html lang="en" data-site=[portal.then_some("portal")] {
            head {
                meta charset="utf-8";
                title { "One moment" }
                @if portal {
                    noscript { (refresh) }
                    script src=(format!("/assets/{}", *assets::SCRIPT)) defer {}
                } @else { (refresh) }
            }
            body { p { a href=(target) data-onward { "Continue" } } }
        }
    }
}

/// An extractor of the API whose refusal becomes a page.
pub(super) struct OnPage<T>(pub(super) T);

impl<S: Send + Sync, T: axum::extract::FromRequestParts<S, Rejection = Problem>>
    axum::extract::FromRequestParts<S> for OnPage<T>
{
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, PageError> {
        T::from_request_parts(parts, state).await.map(Self).map_err(PageError)
    }
}
