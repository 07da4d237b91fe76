//! The fields of a form that somebody sent.

use super::list::Asked;
use crate::{
    body::{SIGN_IN, SMALL, Unread},
    problem::Problem,
    state::SharedState,
};
use axum::extract::{FromRequest, Request};

/// Before the name of a field that a form takes over from its list.
pub(super) const CARRIED: &str = "filter.";

/// In the order of the form; a field may occur more than once.
pub(super) struct Form(Vec<(String, String)>);

impl FromRequest<SharedState> for Form {
    type Rejection = super::PageError;

    async fn from_request(request: Request, state: &SharedState) -> Result<Self, super::PageError> {
        let body = Unread::from_request(request, state).await?;
        body.form(SMALL, &state.bodies).await.map(Self).map_err(Problem::into)
    }
}

/// The form of somebody who has shown no key yet.
pub(super) struct SignInForm(pub(super) Form);

impl FromRequest<SharedState> for SignInForm {
    type Rejection = super::PageError;

    async fn from_request(request: Request, state: &SharedState) -> Result<Self, super::PageError> {
        let body = Unread::from_request(request, state).await?;
        let fields = body.form(SIGN_IN, &state.sign_ins).await.map_err(super::PageError::from)?;
        Ok(Self(Form(fields)))
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

    /// The filter and place of the list that the form stood on, which [`carried`](super::list::carried) put into it.
    pub(super) fn filter(&self) -> Asked {
        let fields = self.0.iter();
        Asked::from_pairs(fields.filter_map(|(field, value)| {
            field.strip_prefix(CARRIED).map(|name| (name.to_owned(), value.clone()))
        }))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(field, _)| field == name)
    }
}
