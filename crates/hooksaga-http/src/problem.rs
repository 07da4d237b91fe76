//! Errors as clients see them: `application/problem+json` (RFC 9457).
//!
//! Every response that is not a success is a [`Problem`]. Faults of the client are reported per field; for what went
//! wrong in the server, the log has the reason under an id, and the client gets only that id.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use hooksaga_pipeline::{IngestError, LogThrottle, random_hex};
use hooksaga_store::{QUERY_LIMIT, StoreError};
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde::Serialize;
use std::time::{Duration, Instant};
use utoipa::ToSchema;

/// Requests that fail because the database is away, slow or full.
static OUTAGES: LogThrottle = LogThrottle::new(Duration::from_secs(5));

/// How long a client should wait before it tries again, in seconds.
const RETRY_AFTER_SECONDS: &str = "1";

/// What is wrong with one field, parameter or header.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct FieldError {
    /// The field's name; inside a batch or a filter with its path: `events[3].event_type`.
    pub(crate) field: String,
    pub(crate) detail: String,
}

/// An error (RFC 9457).
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody {
    /// A stable identifier of this kind of problem.
    #[serde(rename = "type")]
    #[schema(example = "urn:hooksaga:problem:invalid")]
    kind: String,
    title: &'static str,
    /// The HTTP status.
    status: u16,
    detail: String,
    /// What is wrong, field by field; empty where no field is to blame.
    errors: Vec<FieldError>,
    /// What is in the way, in responses with status 409.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    existing_id: Option<i64>,
}

/// The kinds of problems: status, identifier and title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    BadRequest,
    UriTooLong,
    HeadTooLarge,
    NotJson,
    BadCursor,
    BadId,
    BadBody,
    NoKey,
    ScopeMissing,
    NotForThisKey,
    NotFound,
    MethodNotAllowed,
    TooSlow,
    ExternalIdTaken,
    SubscriptionExists,
    NotDeliverable,
    StillOpen,
    TooManyRedrives,
    NotRunning,
    TooLarge,
    NotJsonByType,
    Encoded,
    NotAForm,
    CrossSite,
    Invalid,
    TooManyRequests,
    Internal,
    Overloaded,
    DatabaseAway,
    QueryTooSlow,
    NotReady,
}

impl Kind {
    const fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::BadRequest => (StatusCode::BAD_REQUEST, "bad-request", "The request is not valid HTTP"),
            Self::UriTooLong => (StatusCode::URI_TOO_LONG, "uri-too-long", "The path and query are too long"),
            Self::HeadTooLarge => (
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "headers-too-large",
                "The headers are too large",
            ),
            Self::NotJson => (StatusCode::BAD_REQUEST, "not-json", "The body is not JSON"),
            Self::BadCursor => (StatusCode::BAD_REQUEST, "bad-cursor", "Invalid cursor"),
            Self::BadId => {
                (StatusCode::BAD_REQUEST, "bad-id", "The id in the path is not a positive integer")
            }
            Self::BadBody => (StatusCode::BAD_REQUEST, "bad-body", "The body could not be read"),
            Self::NoKey => (StatusCode::UNAUTHORIZED, "unauthorized", "A valid API key is needed"),
            Self::ScopeMissing => (StatusCode::FORBIDDEN, "scope-missing", "The key lacks the scope"),
            Self::NotForThisKey => (StatusCode::FORBIDDEN, "not-for-this-key", "The key may not do this"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found", "Not found"),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "Method not allowed")
            }
            Self::TooSlow => (StatusCode::REQUEST_TIMEOUT, "too-slow", "The request body arrived too slowly"),
            Self::ExternalIdTaken => {
                (StatusCode::CONFLICT, "external-id-taken", "The external_id is taken by another event")
            }
            Self::SubscriptionExists => {
                (StatusCode::CONFLICT, "subscription-exists", "This subscription exists already")
            }
            Self::NotDeliverable => {
                (StatusCode::CONFLICT, "not-deliverable", "The subscription is not active and verified")
            }
            Self::StillOpen => (StatusCode::CONFLICT, "still-open", "The delivery has not ended"),
            Self::TooManyRedrives => {
                (StatusCode::TOO_MANY_REQUESTS, "too-many-redrives", "Too many redrives are running")
            }
            Self::NotRunning => (StatusCode::CONFLICT, "not-running", "The redrive has ended"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too-large", "Too large"),
            Self::NotJsonByType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-json-by-type", "The content type is not JSON")
            }
            Self::Encoded => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "encoded", "The body has a content encoding")
            }
            Self::NotAForm => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-a-form", "The content type is not a form's")
            }
            Self::CrossSite => (StatusCode::FORBIDDEN, "cross-site", "The request came from another site"),
            Self::Invalid => (StatusCode::UNPROCESSABLE_ENTITY, "invalid", "The request is not valid"),
            Self::TooManyRequests => {
                (StatusCode::TOO_MANY_REQUESTS, "too-many-requests", "Rate limit exceeded")
            }
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal error"),
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Overloaded"),
            Self::DatabaseAway => {
                (StatusCode::SERVICE_UNAVAILABLE, "database-away", "The database is not available")
            }
            Self::QueryTooSlow => {
                (StatusCode::SERVICE_UNAVAILABLE, "query-too-slow", "The query took too long")
            }
            Self::NotReady => (StatusCode::SERVICE_UNAVAILABLE, "not-ready", "Not ready"),
        }
    }
}

/// An error response. Boxed: results that carry one stay small.
#[derive(Clone, Debug)]
pub(crate) struct Problem(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: Kind,
    body: ProblemBody,
    headers: Vec<(HeaderName, HeaderValue)>,
    in_database: Option<FailedInDatabase>,
}

/// Goes with the response of a request that failed in the database, so that it is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedInDatabase {
    pub(crate) is_transient: bool,
}

impl Problem {
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        let (status, slug, title) = kind.parts();
        let mut headers = Vec::new();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.push((header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS)));
        }
        Self(Box::new(Inner {
            kind,
            body: ProblemBody {
                kind: format!("urn:hooksaga:problem:{slug}"),
                title,
                status: status.as_u16(),
                detail: detail.into(),
                errors: Vec::new(),
                existing_id: None,
            },
            headers,
            in_database: None,
        }))
    }

    /// It comes from the database, which may do the same later.
    fn in_database(mut self, is_transient: bool) -> Self {
        self.0.in_database = Some(FailedInDatabase { is_transient });
        self
    }

    /// A 404 for one row.
    pub(crate) fn no_such(what: &str, id: impl std::fmt::Display) -> Self {
        Self::new(Kind::NotFound, format!("there is no {what} {id}"))
    }

    /// A problem with exactly one field.
    pub(crate) fn with_field(kind: Kind, field: &str, detail: &str) -> Self {
        let error = FieldError { field: field.to_owned(), detail: detail.to_owned() };
        Self::new(kind, format!("{field}: {detail}")).with_errors(vec![error])
    }

    #[must_use]
    pub(crate) fn with_errors(mut self, errors: Vec<FieldError>) -> Self {
        self.0.body.errors = errors;
        self
    }

    #[must_use]
    pub(crate) fn with_existing(mut self, id: i64) -> Self {
        self.0.body.existing_id = Some(id);
        self
    }

    #[must_use]
    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.push((name, value));
        self
    }

    pub(crate) fn kind(&self) -> Kind {
        self.0.kind
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.0.kind.parts().0
    }

    /// What kind of problem it is, in words.
    pub(crate) fn title(&self) -> &'static str {
        self.0.body.title
    }

    pub(crate) fn detail(&self) -> &str {
        &self.0.body.detail
    }

    /// What is wrong with the fields, if any is to blame.
    pub(crate) fn errors(&self) -> &[FieldError] {
        &self.0.body.errors
    }

    /// What is in the way.
    pub(crate) fn existing(&self) -> Option<i64> {
        self.0.body.existing_id
    }

    /// The headers that belong to it, such as retry-after.
    pub(crate) fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.0.headers
    }

    /// The body alone: batch responses embed it.
    pub(crate) fn into_body(self) -> ProblemBody {
        self.0.body
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::from(&error)
    }
}

impl From<&StoreError> for Problem {
    fn from(error: &StoreError) -> Self {
        if let StoreError::Contended(text) = error {
            tracing::info!(%error, "request gave up waiting for another transaction");
            return Self::new(Kind::DatabaseAway, text.clone());
        }
        let shown = match error {
            StoreError::Unavailable(_) => Some("the database is not available; try again shortly"),
            StoreError::TimedOut(_) => Some("the database took too long; try again shortly"),
            StoreError::Unwritable(_) => {
                Some("the database takes no writes: its disk is full, or it is read-only; try again later")
            }
            _ => None,
        };
        if let Some(shown) = shown {
            // One line for all requests of a while: an outage under load must not fill the log.
            if let Some(unlogged) = OUTAGES.is_due(Instant::now()) {
                tracing::warn!(%error, unlogged, "a request failed in the database");
            }
            return Self::new(Kind::DatabaseAway, shown).in_database(true);
        }
        if let StoreError::TooSlow(_) = error {
            tracing::warn!(%error, "query cancelled: it exceeded its time limit");
            return Self::new(
                Kind::QueryTooSlow,
                format!(
                    "the query was ended after {} s: narrow the filter, for example to one subscription, event or \
                     type, or to a shorter time",
                    QUERY_LIMIT.as_secs()
                ),
            );
        }
        let error_id = random_hex(8);
        tracing::error!(%error, error_id, "a request failed in the database");
        let kind = match error {
            // Somebody has to repair the database or its set-up; the request was in order.
            StoreError::Denied(_) | StoreError::Schema(_) | StoreError::Setup(_) => Kind::DatabaseAway,
            _ => Kind::Internal,
        };
        Self::new(kind, format!("the server could not do this; its log has the reason under {error_id}"))
            .in_database(false)
    }
}

impl From<IngestError> for Problem {
    fn from(error: IngestError) -> Self {
        match error {
            IngestError::Overloaded => Self::new(
                Kind::Overloaded,
                "more events are waiting to be stored than fit; try again shortly",
            ),
            IngestError::Store(error) => {
                // Ingestion counts its own.
                let mut problem = Self::from(error);
                problem.0.in_database = None;
                problem
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Inner { kind, body, headers, in_database } = *self.0;
        let mut response = (kind.parts().0, Json(body)).into_response();
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response.headers_mut().extend(headers);
        if let Some(failure) = in_database {
            response.extensions_mut().insert(failure);
        }
        response
    }
}
