//! A response, and what is true of every response.

use axum::body::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt;
use serde_json::Value;

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Response {
    pub(crate) async fn of(response: axum::response::Response) -> Self {
        let (parts, body) = response.into_parts();
        let received = Self {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        };
        assert_eq!(received.header("x-content-type-options"), "nosniff");
        assert!(received.headers.contains_key("cache-control"));
        received
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// The body of a response with this status; a problem has its form.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{:?}", String::from_utf8_lossy(&self.body));
        if status < 400 {
            return self.json();
        }
        let problem = self.json();
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(self.header("cache-control"), "no-store");
        assert_eq!(problem["status"], status);
        for member in ["type", "title", "detail"] {
            assert!(problem[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {problem}");
        }
        assert!(problem["errors"].is_array(), "{problem}");
        assert_eq!([429, 503].contains(&status), self.headers.contains_key("retry-after"));
        problem
    }

    /// The faulty fields of a 422, sorted.
    #[track_caller]
    pub(crate) fn invalid_fields(&self) -> Vec<String> {
        self.faulty_fields(422)
    }

    #[track_caller]
    pub(crate) fn faulty_fields(&self, status: u16) -> Vec<String> {
        let problem = self.expect(status);
        let errors = problem["errors"].as_array().unwrap();
        assert!(errors.iter().all(|error| error["detail"].as_str().is_some_and(|text| !text.is_empty())));
        let mut fields: Vec<_> =
            errors.iter().map(|error| error["field"].as_str().unwrap().to_owned()).collect();
        fields.sort();
        fields
    }
}
