//! `list_indexer`: keeps the coarse index that lists are read from.
//!
//! An index on sagas would be written with every version of every saga. This one says only in which blocks of
//! [`BLOCK`] ids there is something: of a subscription, of a tenant, of an event type, of a type of a tenant, of a time. It is
//! written once per block and value, some time behind the deliveries, by a component that they do not wait for. A list reads
//! the blocks, newest first, and then their rows: a block that no longer holds a matching row costs one lookup.
//!
//! Rows that are newer than the index are read without it. Rows are indexed once they are [`settled`](SETTLED), so that
//! a transaction that took its ids early and commits late is not missed. On a server an application may append events in
//! its own transaction, whose length nothing limits, and an event that commits behind the index would be missing from
//! lists: there events are indexed up to where no transaction can commit any more, each server in its own way.

use crate::{DeliveryFilter, EventFilter, StoreResult, TenantScope};
use async_trait::async_trait;
use hooksaga_saga::Timestamp;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

/// Ids per block.
pub const BLOCK: i64 = 256;

/// Rows that are younger may have a neighbour whose transaction is still open: twice the longest transaction there can be.
pub const SETTLED: Duration = Duration::from_secs(60);

/// Blocks that are asked for at once.
pub const BLOCKS_AT_ONCE: u32 = 64;

/// A list that is indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexedList {
    Deliveries,
    Events,
}

impl IndexedList {
    /// Its number in the database.
    pub const fn number(self) -> i16 {
        match self {
            Self::Deliveries => 1,
            Self::Events => 2,
        }
    }
}

/// What the rows of a block have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Facet {
    DeliverySubscription,
    DeliveryTenant,
    DeliveryType,
    EventType,
    /// A type of one tenant: where many tenants have much, blocks of the tenant that are blocks of the type may still hold no
    /// row of both.
    DeliveryTypeOfTenant,
    EventTypeOfTenant,
}

impl Facet {
    /// Those of a list.
    pub const fn of(list: IndexedList) -> &'static [Self] {
        match list {
            IndexedList::Deliveries => &[
                Self::DeliverySubscription,
                Self::DeliveryTenant,
                Self::DeliveryType,
                Self::DeliveryTypeOfTenant,
            ],
            IndexedList::Events => &[Self::EventType, Self::EventTypeOfTenant],
        }
    }

    /// Its number in the database.
    pub const fn number(self) -> i16 {
        match self {
            Self::DeliverySubscription => 1,
            Self::DeliveryTenant => 2,
            Self::DeliveryType => 3,
            Self::EventType => 4,
            Self::DeliveryTypeOfTenant => 5,
            Self::EventTypeOfTenant => 6,
        }
    }

    /// What is indexed of a delivery.
    pub fn of_delivery(subscription: i64, tenant: String, event_type: String) -> [(Self, String); 4] {
        [
            (Self::DeliverySubscription, subscription.to_string()),
            (Self::DeliveryTypeOfTenant, type_of_tenant(&tenant, &event_type)),
            (Self::DeliveryTenant, tenant),
            (Self::DeliveryType, event_type),
        ]
    }

    /// What is indexed of an event.
    pub fn of_event(tenant: &str, event_type: String) -> [(Self, String); 2] {
        [(Self::EventTypeOfTenant, type_of_tenant(tenant, &event_type)), (Self::EventType, event_type)]
    }
}

/// The names of neither have a slash.
fn type_of_tenant(tenant: &str, event_type: &str) -> String {
    format!("{tenant}/{event_type}")
}

/// Which blocks of a list are of interest: those that hold all of the values, and something of the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockFilter {
    pub list: IndexedList,
    pub values: Vec<(Facet, String)>,
    pub created_after: Option<Timestamp>,
    pub created_before: Option<Timestamp>,
}

impl BlockFilter {
    /// `None` where the index does not help: no such filter, or one that leads to few rows by itself.
    pub fn of_deliveries(scope: &TenantScope, wanted: &DeliveryFilter) -> Option<Self> {
        if wanted.event_id.is_some() || wanted.external_id.is_some() || wanted.correlation_id.is_some() {
            return None;
        }
        let subscription = wanted.subscription_id.map(|id| (Facet::DeliverySubscription, id.0.to_string()));
        let event_type = match (&wanted.event_type, scope.tenant()) {
            (Some(name), Some(tenant)) => {
                Some((Facet::DeliveryTypeOfTenant, type_of_tenant(tenant, name.as_ref())))
            }
            (Some(name), None) => Some((Facet::DeliveryType, name.to_string())),
            (None, _) => None,
        };
        // A subscription has one tenant, and so has its type.
        let tenant = scope.tenant().filter(|_| subscription.is_none() && event_type.is_none());
        let tenant = tenant.map(|tenant| (Facet::DeliveryTenant, tenant.to_owned()));
        Self {
            list: IndexedList::Deliveries,
            values: [subscription, tenant, event_type].into_iter().flatten().collect(),
            created_after: wanted.created_after,
            created_before: wanted.created_before,
        }
        .if_any()
    }

    /// The same for events, whose tenants have an index of their own.
    pub fn of_events(scope: &TenantScope, wanted: &EventFilter) -> Option<Self> {
        if wanted.external_id.is_some() || wanted.correlation_id.is_some() {
            return None;
        }
        let event_type = wanted.event_type.as_ref().map(|name| match scope.tenant() {
            Some(tenant) => (Facet::EventTypeOfTenant, type_of_tenant(tenant, name.as_ref())),
            None => (Facet::EventType, name.to_string()),
        });
        Self {
            list: IndexedList::Events,
            values: event_type.into_iter().collect(),
            created_after: wanted.created_after,
            created_before: wanted.created_before,
        }
        .if_any()
    }

    fn if_any(self) -> Option<Self> {
        let any = !self.values.is_empty() || self.created_after.is_some() || self.created_before.is_some();
        any.then_some(self)
    }
}

/// The ids of `blocks`, which are ordered newest first, that are below `below`; blocks side by side are one range.
pub(crate) fn ranges(blocks: &[i64], below: i64) -> Vec<Range<i64>> {
    let mut ranges: Vec<Range<i64>> = Vec::new();
    for block in blocks {
        let (start, end) = (block * BLOCK, ((block + 1) * BLOCK).min(below));
        match ranges.last_mut() {
            Some(last) if last.start == end => last.start = start,
            _ if start < end => ranges.push(start..end),
            _ => {}
        }
    }
    ranges
}

/// Rows on their way into the index: what is written of them.
#[derive(Debug, Default)]
pub struct IndexBatch {
    rows: i64,
    /// Facet, value and block.
    pub blocks: BTreeSet<(i16, String, i64)>,
    /// Of each block the first and the last time.
    pub times: BTreeMap<i64, (Timestamp, Timestamp)>,
    /// Where the next batch begins.
    pub below: Option<i64>,
}

impl IndexBatch {
    /// Adds a row; they come in the order of their ids. Whether it was settled: one that is not ends the batch.
    pub fn add(
        &mut self,
        id: i64,
        created_at: Timestamp,
        settled_before: Timestamp,
        values: impl IntoIterator<Item = (Facet, String)>,
    ) -> bool {
        if created_at >= settled_before {
            return false;
        }
        let block = id / BLOCK;
        self.rows += 1;
        self.below = Some(id + 1);
        self.blocks.extend(values.into_iter().map(|(facet, value)| (facet.number(), value, block)));
        let (first, last) = self.times.entry(block).or_insert((created_at, created_at));
        *first = created_at.min(*first);
        *last = created_at.max(*last);
        true
    }

    /// What the step did.
    pub fn step(&self, limit: u32) -> IndexStep {
        IndexStep::of(self.rows, limit)
    }
}

/// What a step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStep {
    /// Rows that are indexed now and were not before.
    pub rows: u64,
    /// There may be more at once.
    pub more: bool,
}

impl IndexStep {
    /// A step that indexed `rows` rows of at most `limit`.
    pub fn of(rows: i64, limit: u32) -> Self {
        let rows = u64::try_from(rows).unwrap_or(0);
        Self { rows, more: rows == u64::from(limit) }
    }
}

#[async_trait]
pub trait ListIndexStore: Send + Sync {
    /// Indexes up to `limit` rows of a list, in the order of their ids, that are older than `settled`. Of two at once, one
    /// waits or does nothing.
    async fn index(&self, list: IndexedList, limit: u32, settled: Duration) -> StoreResult<IndexStep>;

    /// Which lists it indexes.
    fn lists(&self) -> &'static [IndexedList] {
        &[IndexedList::Deliveries]
    }

    /// Looks at up to `limit` blocks behind `after`, and forgets those that hold no row any more.
    async fn trim(&self, list: IndexedList, after: i64, limit: u32) -> StoreResult<Trimmed>;
}

/// What a step of trimming did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Blocks that are forgotten.
    pub blocks: u64,
    /// The block that the next step resumes behind; nothing at the end.
    pub resume_after: Option<i64>,
}

impl Trimmed {
    /// A step that looked at these blocks, which are ordered, and forgot `forgotten` of them.
    pub fn of(looked_at: &[i64], limit: u32, forgotten: u64) -> Self {
        let full = looked_at.len() >= limit as usize;
        Self { blocks: forgotten, resume_after: looked_at.last().copied().filter(|_| full) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_side_by_side_are_one_range() {
        assert_eq!(ranges(&[], 10_000), []);
        assert_eq!(ranges(&[4, 3, 1], 10_000), [768..1280, 256..512]);
        assert_eq!(ranges(&[4, 3, 1], 1030), [768..1030, 256..512], "cut where the index ends");
        assert_eq!(ranges(&[4, 3, 1], 1024), [768..1024, 256..512], "a block behind it is left out");
    }

    #[test]
    fn ids_need_no_blocks_and_a_subscription_needs_no_tenant() {
        let one = TenantScope::One("a".parse().unwrap());
        let of = |wanted: &DeliveryFilter| BlockFilter::of_deliveries(&one, wanted);
        let values = |wanted: &DeliveryFilter| of(wanted).unwrap().values;
        assert_eq!(values(&DeliveryFilter::default()), [(Facet::DeliveryTenant, "a".to_owned())]);
        let wanted =
            DeliveryFilter { subscription_id: Some(hooksaga_saga::SubscriptionId(7)), ..Default::default() };
        assert_eq!(values(&wanted), [(Facet::DeliverySubscription, "7".to_owned())]);
        assert_eq!(of(&DeliveryFilter { external_id: Some("x".parse().unwrap()), ..wanted }), None);
        assert_eq!(BlockFilter::of_deliveries(&TenantScope::All, &DeliveryFilter::default()), None);
        assert_eq!(BlockFilter::of_events(&one, &EventFilter::default()), None);
    }

    #[test]
    fn a_type_is_asked_for_together_with_its_tenant() {
        let one = TenantScope::One("a".parse().unwrap());
        let wanted = DeliveryFilter { event_type: Some("x.y".parse().unwrap()), ..Default::default() };
        let values = |scope: &TenantScope, wanted: &DeliveryFilter| {
            BlockFilter::of_deliveries(scope, wanted).unwrap().values
        };
        let of_tenant = (Facet::DeliveryTypeOfTenant, "a/x.y".to_owned());
        assert_eq!(values(&one, &wanted), std::slice::from_ref(&of_tenant));
        assert_eq!(values(&TenantScope::All, &wanted), [(Facet::DeliveryType, "x.y".to_owned())]);
        let of_one = DeliveryFilter { subscription_id: Some(hooksaga_saga::SubscriptionId(7)), ..wanted };
        let subscription = (Facet::DeliverySubscription, "7".to_owned());
        assert_eq!(values(&one, &of_one), [subscription, of_tenant.clone()]);
        assert!(Facet::of_delivery(7, "a".to_owned(), "x.y".to_owned()).contains(&of_tenant));

        let wanted = EventFilter { event_type: Some("x.y".parse().unwrap()), ..Default::default() };
        let values = |scope: &TenantScope| BlockFilter::of_events(scope, &wanted).unwrap().values;
        let of_tenant = (Facet::EventTypeOfTenant, "a/x.y".to_owned());
        assert_eq!(values(&one), std::slice::from_ref(&of_tenant));
        assert_eq!(values(&TenantScope::All), [(Facet::EventType, "x.y".to_owned())]);
        assert!(Facet::of_event("a", "x.y".to_owned()).contains(&of_tenant));
    }

    #[test]
    fn every_facet_belongs_to_the_list_that_writes_it() {
        let name = || "x".to_owned();
        let facets: BTreeSet<i16> =
            Facet::of_delivery(1, name(), name()).map(|(facet, _)| facet.number()).into();
        assert_eq!(facets, Facet::of(IndexedList::Deliveries).iter().map(|facet| facet.number()).collect());
        let facets: BTreeSet<i16> = Facet::of_event("x", name()).map(|(facet, _)| facet.number()).into();
        assert_eq!(facets, Facet::of(IndexedList::Events).iter().map(|facet| facet.number()).collect());
    }
}
