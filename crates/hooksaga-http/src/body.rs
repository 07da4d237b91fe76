//! Reads request bodies: JSON by content type, never more than the route's limit, never more in all requests
//! together than [`BodyBudget`] has room for, and never for longer than [`IDLE`] without a byte or [`TOTAL`] in all.

use crate::problem::{Kind, Problem};
use axum::{
    body::Body,
    extract::{FromRequest, Request},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use std::{sync::Arc, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A client that sends nothing for so long has gone.
const IDLE: Duration = Duration::from_secs(30);

/// One that is not done after so long never will be.
const TOTAL: Duration = Duration::from_secs(120);

/// All bodies that are held at one moment, in bytes.
const BUDGET: usize = 256 << 20;

/// What an event may have around its payload.
pub(crate) const ENVELOPE_ALLOWANCE: usize = 64 << 10;

/// Bodies of routes that take a few short fields.
pub(crate) const SMALL: usize = 64 << 10;

/// The memory that request bodies may take together.
#[derive(Clone)]
pub(crate) struct BodyBudget(Arc<Semaphore>);

impl BodyBudget {
    /// Room for at least four of the largest bodies.
    pub(crate) fn new(largest: usize) -> Self {
        let room = BUDGET.max(largest.saturating_mul(4)).min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Semaphore::new(room)))
    }

    fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Problem> {
        u32::try_from(bytes)
            .ok()
            .and_then(|bytes| Arc::clone(&self.0).try_acquire_many_owned(bytes).ok())
            .ok_or_else(|| Problem::new(Kind::Overloaded, "too many requests at once; try again shortly"))
    }
}

/// A body that has been read; its share of the budget is given back when it goes.
pub(crate) struct ReadBody {
    pub(crate) bytes: Bytes,
    _share: Option<OwnedSemaphorePermit>,
}

/// A body that has not been read yet: the handler knows the limit.
pub(crate) struct Unread {
    headers: HeaderMap,
    body: Body,
}

impl<S: Sync> FromRequest<S> for Unread {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        Ok(Self { headers: parts.headers, body })
    }
}

impl Unread {
    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body of a route that needs one.
    pub(crate) async fn json(self, limit: usize, budget: &BodyBudget) -> Result<ReadBody, Problem> {
        check_content_type(&self.headers)?;
        self.read_in_time(limit, budget).await
    }

    /// For routes that need no body: none, or an empty object.
    pub(crate) async fn nothing(self, budget: &BodyBudget) -> Result<(), Problem> {
        let content_type = check_content_type(&self.headers);
        let body = self.read_in_time(SMALL, budget).await?;
        if body.bytes.is_empty() {
            return Ok(());
        }
        content_type?;
        let mut errors = crate::errors::FieldErrors::default();
        crate::json::Object::from_body(&body.bytes)?.finish(&mut errors);
        errors.check()
    }

    async fn read_in_time(self, limit: usize, budget: &BodyBudget) -> Result<ReadBody, Problem> {
        tokio::time::timeout(TOTAL, self.read(limit, budget))
            .await
            .unwrap_or_else(|_| Err(Problem::new(Kind::TooSlow, "the body was not there after 120 seconds")))
    }

    async fn read(self, limit: usize, budget: &BodyBudget) -> Result<ReadBody, Problem> {
        let too_large = || Problem::new(Kind::TooLarge, format!("the body must have at most {limit} bytes"));
        let declared = self
            .headers
            .get(header::CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if declared
            .is_some_and(|declared| usize::try_from(declared).map_or(true, |declared| declared > limit))
        {
            return Err(too_large());
        }

        let mut body = self.body;
        let mut share: Option<OwnedSemaphorePermit> = None;
        let mut first = Bytes::new();
        let mut collected = BytesMut::new();
        loop {
            let frame = tokio::time::timeout(IDLE, body.frame())
                .await
                .map_err(|_| Problem::new(Kind::TooSlow, "no part of the body came for 30 seconds"))?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|_| Problem::new(Kind::BadBody, "the body broke off"))?;
            let Ok(data) = frame.into_data() else { continue };
            if first.len() + collected.len() + data.len() > limit {
                return Err(too_large());
            }
            let more = budget.take(data.len())?;
            match &mut share {
                Some(share) => share.merge(more),
                None => share = Some(more),
            }
            // Most bodies come in one piece, which is then used as it is.
            if first.is_empty() && collected.is_empty() {
                first = data;
            } else {
                if collected.is_empty() {
                    collected.extend_from_slice(&std::mem::take(&mut first));
                }
                collected.extend_from_slice(&data);
            }
        }
        let bytes = if collected.is_empty() { first } else { collected.freeze() };
        Ok(ReadBody { bytes, _share: share })
    }
}

/// `application/json`, or a type built on it (`application/merge-patch+json`).
fn check_content_type(headers: &HeaderMap) -> Result<(), Problem> {
    let essence = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .map(|text| text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    match essence.as_deref() {
        Some("application/json") => Ok(()),
        Some(other) if other.starts_with("application/") && other.ends_with("+json") => Ok(()),
        _ => Err(Problem::new(Kind::NotJsonByType, "send the header content-type: application/json")),
    }
}
