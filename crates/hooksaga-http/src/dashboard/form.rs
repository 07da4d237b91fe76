//! The fields of a form that somebody sent.

use crate::{problem::Problem, state::SharedState};
use axum::extract::{FromRequest, Request};

/// In the order of the form; a field may occur more than once.
pub(super) struct Form(Vec<(String, String)>);

impl FromRequest<SharedState> for Form {
    type Rejection = super::PageError;

    async fn from_request(request: Request, state: &SharedState) -> Result<Self, super::PageError> {
        let body = crate::body::Unread::from_request(request, state).await?;
        body.form(&state.bodies).await.map(Self).map_err(Problem::into)
    }
}

impl Form {
    /// The field's text without blanks around it; empty if there is none.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(field, _)| field == name).map_or("", |(_, value)| value.trim())
    }

    /// Every value of a field.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// The fields whose names begin so, without that beginning.
    pub(super) fn starting_with(&self, beginning: &str) -> impl Iterator<Item = (String, String)> {
        self.0.iter().filter_map(move |(field, value)| {
            field.strip_prefix(beginning).map(|name| (name.to_owned(), value.clone()))
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(field, _)| field == name)
    }
}
