//! The dashboard and the portal, as a browser meets them: signing in, what a session may see, and that nothing that
//! outsiders write becomes part of a page's code.

mod deliveries;
mod keys;
mod layout;
mod lists;
mod overview;
mod portal;
mod protection;
mod redrives;
mod sign_in;
mod subscriptions;
mod unknown_paths;

use crate::support::{PUBLIC_URL, ROOT_KEY, Response, TestApi};
use hooksaga_http::PortalLook;
use hooksaga_saga::{ErrorCode, Outcome};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What a browser sends with a form of our own pages.
const OWN: (&str, &str) = ("sec-fetch-site", "same-origin");
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// The pages of a site that need no id.
const PAGES: [&str; 8] = [
    "",
    "/events",
    "/deliveries",
    "/subscriptions",
    "/subscriptions/new",
    "/dead-letters",
    "/redrives",
    "/search?q=1",
];

/// Every path of a site. The test of every route fails for a page that is not here: add it, so that it is visited with a
/// session of another tenant.
pub(crate) const PATHS: [&str; 25] = [
    "",
    "/dead-letters",
    "/dead-letters/requeue",
    "/dead-letters/{id}",
    "/deliveries",
    "/deliveries/{saga_id}",
    "/deliveries/{saga_id}/resend",
    "/events",
    "/events/{id}",
    "/events/{id}/payload",
    "/redrives",
    "/redrives/{id}",
    "/redrives/{id}/cancel",
    "/search",
    "/sign-in",
    "/sign-out",
    "/subscriptions",
    "/subscriptions/new",
    "/subscriptions/{id}",
    "/subscriptions/{id}/active",
    "/subscriptions/{id}/delete",
    "/subscriptions/{id}/edit",
    "/subscriptions/{id}/rotate-secret",
    "/subscriptions/{id}/test",
    "/subscriptions/{id}/verify",
];

/// What the dashboard alone has, for those who administer the whole server.
pub(crate) const OPERATORS_PATHS: [&str; 2] = ["/keys", "/keys/{id}/revoke"];

/// Somebody with a browser.
struct Browser<'a> {
    api: &'a TestApi,
    site: &'static str,
    cookie: String,
}

impl<'a> Browser<'a> {
    async fn dashboard(api: &'a TestApi, key: &str) -> Self {
        Self::signed_in(api, "", key).await
    }

    async fn portal(api: &'a TestApi, key: &str) -> Self {
        Self::signed_in(api, "/portal", key).await
    }

    async fn signed_in(api: &'a TestApi, site: &'static str, key: &str) -> Self {
        let response = sign_in(api, site, key, "").await;
        assert_eq!(response.status, 303, "{}", response.text());
        let cookie = response.header("set-cookie").split(';').next().unwrap().to_owned();
        Self { api, site, cookie }
    }

    /// The path of a page of this site.
    fn path(&self, path: &str) -> String {
        match (self.site, path) {
            ("", "") => "/".to_owned(),
            (site, path) => format!("{site}{path}"),
        }
    }

    async fn get(&self, path: &str) -> Response {
        self.api.bare("GET", &self.path(path), &[("cookie", &self.cookie)], "").await
    }

    /// The text of a page that is there.
    async fn page(&self, path: &str) -> String {
        let response = self.get(path).await;
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        assert_eq!(response.header("content-type"), "text/html; charset=utf-8");
        response.text().to_owned()
    }

    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Response {
        let headers = [("cookie", self.cookie.as_str()), OWN, FORM];
        self.api.bare("POST", &self.path(path), &headers, form(fields)).await
    }
}

fn form(fields: &[(&str, &str)]) -> String {
    let encode = |text: &str| -> String { text.bytes().map(|byte| format!("%{byte:02x}")).collect() };
    fields
        .iter()
        .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
        .collect::<Vec<_>>()
        .join("&")
}

/// A page without its tags, as a reader sees it.
fn text_of(page: &str) -> String {
    page.split('<').map(|piece| piece.split_once('>').map_or(piece, |(_, text)| text)).collect()
}

async fn sign_in(api: &TestApi, site: &str, key: &str, next: &str) -> Response {
    api.bare("POST", &format!("{site}/sign-in"), &[OWN, FORM], form(&[("key", key), ("next", next)])).await
}

async fn subscribe(api: &TestApi, tenant: &str, path: &str) -> i64 {
    let url = format!("https://example.com/{path}");
    let body = json!({"event_type": "t", "callback_url": url, "tenant": tenant, "max_retry_limit": 1});
    let id = api.post("/v1/subscriptions", &body).await.expect(201)["id"].as_i64().unwrap();
    api.verify_all().await;
    id
}

async fn send(api: &TestApi, tenant: &str, external_id: &str, payload: &Value) -> i64 {
    let body = json!({"event_type": "t", "payload": payload, "tenant": tenant, "external_id": external_id});
    api.post("/v1/events", &body).await.expect(201)["id"].as_i64().unwrap()
}
