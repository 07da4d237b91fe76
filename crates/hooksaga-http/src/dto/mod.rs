//! What the API returns and reads: one file per resource. The OpenAPI document is made from these types.
//!
//! Requests are read field by field into these types ([`crate::json`]), so that every fault is reported and a
//! payload stays the bytes that came; responses are serialized from them.

mod audit;
mod dead_letters;
mod deliveries;
mod events;
mod health;
mod keys;
mod redrives;
mod stats;
mod subscriptions;

pub(crate) use audit::{AuditItem, AuditQuery};
pub(crate) use dead_letters::{
    DeadLetterItem, DeadLetterView, DeadLettersQuery, RequeueAllRequest, RequeueResult, RequeuedSaga,
};
pub(crate) use deliveries::{DeliveriesQuery, DeliveryItem, DeliveryView};
pub(crate) use events::{
    BatchRequest, BatchResult, BatchResults, EventItem, EventRequest, EventView, EventsQuery, IngestedEvent,
};
pub(crate) use health::SubscriptionDetailView;
pub(crate) use keys::{MeView, PortalSession, PortalSessionRequest};
pub(crate) use redrives::{NewRedriveRequest, RedriveView, RedrivesQuery};
pub(crate) use stats::{StatsQuery, StatsView};
pub(crate) use subscriptions::{
    NewSubscriptionRequest, NewSubscriptionView, RotatedSecret, SubscriptionChange, SubscriptionView,
    SubscriptionsQuery, TestDelivery, VerificationRequest,
};

use crate::cursor::{self, ListKind};
use hooksaga_store::Page;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

/// One page of a list, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PageOf<T> {
    items: Vec<T>,
    /// Give it as `cursor` to get the page that follows; null on the last page.
    #[schema(required)]
    next_cursor: Option<String>,
}

impl<T> PageOf<T> {
    pub(crate) fn new<R: Into<T>>(page: Page<R>, list: ListKind) -> Self {
        Self {
            items: page.items.into_iter().map(Into::into).collect(),
            next_cursor: page.next.map(|before| cursor::encode(list, before)),
        }
    }
}

/// The parameters that every list takes.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes `query::Params::page` in the OpenAPI document")]
pub(crate) struct PageQuery {
    /// Only this tenant's. A key that is bound to a tenant sees its own only, and may name no other.
    #[param(min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9_.:-]+$")]
    tenant: Option<String>,
    /// How many items a page has.
    #[param(minimum = 1, maximum = 500, default = 50)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}
