//! Ids in paths: not a positive integer is 400; one that no row can have is unknown, 404.

use crate::problem::{Kind, Problem};
use axum::extract::{FromRequestParts, Path};
use http::request::Parts;

/// The id in the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Id(pub(crate) i64);

/// An event's id in the path, also as receivers see it: `evt_17`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventIdInPath(pub(crate) i64);

impl<S: Send + Sync> FromRequestParts<S> for EventIdInPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = text_in_path(parts, state).await?;
        parse(text.strip_prefix("evt_").unwrap_or(&text)).map(Self)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        parse(&text_in_path(parts, state).await?).map(Self)
    }
}

async fn text_in_path<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<String, Problem> {
    let Path(text) = Path::<String>::from_request_parts(parts, state).await.map_err(|_| bad())?;
    Ok(text)
}

fn parse(text: &str) -> Result<i64, Problem> {
    if text.is_empty() || text.starts_with('0') || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad());
    }
    text.parse().map_err(|_| Problem::new(Kind::NotFound, "no id is that large"))
}

fn bad() -> Problem {
    Problem::new(Kind::BadId, "the id in the path must be a positive integer")
}
