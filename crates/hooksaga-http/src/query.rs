//! Query parameters: unknown, repeated and invalid ones are all reported; none is ignored.

use crate::{
    auth::Caller,
    cursor::{self, ListKind},
    errors::FieldErrors,
    problem::Problem,
    validate,
};
use axum::extract::{FromRequestParts, Query};
use hooksaga_saga::Invalid;
use hooksaga_store::{PageRequest, TenantScope};
use http::request::Parts;
use std::{ops::RangeInclusive, str::FromStr};

const PAGE_LIMITS: RangeInclusive<u32> = 1..=500;
const DEFAULT_PAGE: u32 = 50;

/// The parameters of a request, from which known ones are taken one by one.
#[derive(Debug)]
pub(crate) struct Params(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // Any query string is a list of pairs; what is not UTF-8 in it becomes U+FFFD, which no value allows.
        let pairs = Query::try_from_uri(&parts.uri).map(|Query(pairs)| pairs).unwrap_or_default();
        Ok(Self(pairs))
    }
}

impl From<Vec<(String, String)>> for Params {
    fn from(pairs: Vec<(String, String)>) -> Self {
        Self(pairs)
    }
}

impl Params {
    pub(crate) fn take<T>(
        &mut self,
        name: &str,
        errors: &mut FieldErrors,
        read: impl FnOnce(String) -> Result<T, String>,
    ) -> Option<T> {
        let at = self.0.iter().position(|(param, _)| param == name)?;
        let (_, value) = self.0.remove(at);
        let before = self.0.len();
        self.0.retain(|(param, _)| param != name);
        if self.0.len() < before {
            errors.add(name, "is given more than once");
        }
        errors.note(name, read(value))
    }

    /// Takes a parameter whose type has a parser of its own.
    pub(crate) fn parsed<T: FromStr<Err = Invalid>>(
        &mut self,
        name: &str,
        errors: &mut FieldErrors,
    ) -> Option<T> {
        self.take(name, errors, |text| validate::parsed(&text))
    }

    /// Takes a parameter that may be given more than once.
    pub(crate) fn take_all<T>(
        &mut self,
        name: &str,
        errors: &mut FieldErrors,
        read: impl Fn(String) -> Result<T, String>,
    ) -> Vec<T> {
        let (taken, rest) = std::mem::take(&mut self.0).into_iter().partition(|(param, _)| param == name);
        self.0 = rest;
        let taken: Vec<(String, String)> = taken;
        taken.into_iter().filter_map(|(_, value)| errors.note(name, read(value))).collect()
    }

    /// Takes `tenant`, which every list has: whose rows the caller asks for.
    pub(crate) fn scope(
        &mut self,
        caller: &Caller,
        errors: &mut FieldErrors,
    ) -> Result<TenantScope, Problem> {
        caller.scope(self.parsed("tenant", errors))
    }

    /// Whatever was not taken is unknown.
    pub(crate) fn finish(self, errors: &mut FieldErrors) {
        for (name, _) in &self.0 {
            errors.add(name, "is not a known query parameter");
        }
    }

    /// Takes `limit` and `cursor`, which every list has, and ends the reading.
    pub(crate) fn page(mut self, list: ListKind, mut errors: FieldErrors) -> Result<PageRequest, Problem> {
        let limit = self.take("limit", &mut errors, |text| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|limit| digits && PAGE_LIMITS.contains(limit)).ok_or_else(|| {
                format!("must be an integer from {} to {}", PAGE_LIMITS.start(), PAGE_LIMITS.end())
            })
        });
        let cursor = self.take("cursor", &mut errors, Ok);
        self.finish(&mut errors);
        errors.check()?;
        let before = cursor.map(|cursor| cursor::decode(list, &cursor)).transpose()?;
        Ok(PageRequest { limit: limit.unwrap_or(DEFAULT_PAGE), before })
    }
}

/// For routes that take no parameters.
#[derive(Debug)]
pub(crate) struct NoParams;

impl<S: Sync> FromRequestParts<S> for NoParams {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let mut errors = FieldErrors::default();
        Params::from_request_parts(parts, state).await?.finish(&mut errors);
        errors.check().map(|()| Self)
    }
}
