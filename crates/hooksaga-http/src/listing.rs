//! The parameters of a list: tenant, filters and page. The API and the dashboard read them in the same way.

use crate::{
    auth::{Allowed, Caller, Read},
    cursor::ListKind,
    errors::FieldErrors,
    problem::Problem,
    query::Params,
    state::SharedState,
};
use axum::extract::FromRequestParts;
use hooksaga_store::{PageRequest, TenantScope};
use http::request::Parts;
use std::sync::Arc;

/// The filter of a list.
pub(crate) trait ListParameters: Sized {
    /// The list whose cursors are accepted.
    const LIST: ListKind;

    /// Takes the parameters that belong to it.
    fn read(params: &mut Params, errors: &mut FieldErrors) -> Self;
}

/// A request for a page of a list. As an extractor it asks for a key with the scope `read`.
pub(crate) struct ListRequest<Q> {
    pub(crate) caller: Arc<Caller>,
    pub(crate) scope: TenantScope,
    pub(crate) query: Q,
    pub(crate) page: PageRequest,
}

impl<Q: ListParameters> ListRequest<Q> {
    /// Reads all parameters; what is wrong with any of them is reported together.
    pub(crate) fn read(caller: &Arc<Caller>, mut params: Params) -> Result<Self, Problem> {
        let mut errors = FieldErrors::default();
        let scope = params.scope(caller, &mut errors)?;
        let query = Q::read(&mut params, &mut errors);
        let page = params.page(Q::LIST, errors)?;
        Ok(Self { caller: Arc::clone(caller), scope, query, page })
    }
}

impl<Q: ListParameters> FromRequestParts<SharedState> for ListRequest<Q> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &SharedState) -> Result<Self, Problem> {
        let Allowed { caller, .. } = Allowed::<Read>::from_request_parts(parts, state).await?;
        Self::read(&caller, Params::from_request_parts(parts, state).await?)
    }
}
