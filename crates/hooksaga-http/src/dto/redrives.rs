//! Redrives.

use super::dead_letters::RequeueFilter;
use crate::{
    auth::Caller,
    cursor::ListKind,
    errors::FieldErrors,
    json::{self, Object},
    listing::ListParameters,
    query::Params,
    time::{self, ApiTime},
};
use hooksaga_saga::{SubscriptionId, Tenant, Timestamp};
use hooksaga_store::{DeadLetterFilter, Redrive, RedriveStatus, RedriveWork, Starter};
use serde::Serialize;
use utoipa::ToSchema;

/// What to send again: dead letters that match a filter, or the events of a subscription that it has no delivery of.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "describes what `read` takes in the OpenAPI document")]
pub(crate) struct NewRedriveRequest {
    /// `dead_letters` or `events`.
    #[schema(example = "events", pattern = "^(dead_letters|events)$")]
    kind: String,
    /// With `dead_letters`, and required there: which; `{}` means all.
    filter: Option<RequeueFilter>,
    /// With `events`, and required there: whose.
    #[schema(minimum = 1)]
    subscription_id: Option<i64>,
    /// With `events`, and required there: created at this time or later.
    #[schema(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// With `events`: created before this time; now, if it is not given.
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<Timestamp>,
}

/// A request that was read.
#[derive(Debug)]
pub(crate) struct NewRedrive {
    /// The tenant that the filter names.
    pub(crate) tenant: Option<Tenant>,
    pub(crate) work: RedriveWork,
}

impl NewRedriveRequest {
    pub(crate) fn read(mut object: Object<'_>, errors: &mut FieldErrors) -> Option<NewRedrive> {
        let kind = object.required("kind", errors, |value| match json::string(value)?.as_str() {
            "events" => Ok(true),
            "dead_letters" => Ok(false),
            _ => Err("must be dead_letters or events".to_owned()),
        });
        let read = match kind {
            Some(true) => Self::read_events(&mut object, errors),
            Some(false) => Self::read_dead_letters(&mut object, errors),
            None => {
                // What belongs to which kind cannot be said.
                for name in ["filter", "subscription_id", "since", "until"] {
                    object.optional(name, errors, |_| Ok(()));
                }
                None
            }
        };
        object.finish(errors);
        read
    }

    fn read_dead_letters(object: &mut Object<'_>, errors: &mut FieldErrors) -> Option<NewRedrive> {
        let filter = object.required("filter", errors, |value| Object::from_value(value, "filter"));
        let filter = filter.map(|filter| RequeueFilter::read(filter, errors));
        for name in ["subscription_id", "since", "until"] {
            absent(object, name, errors, "belongs to a redrive of events; name it in filter");
        }
        let filter = filter?;
        Some(NewRedrive { tenant: filter.tenant.clone(), work: RedriveWork::DeadLetters(filter.into()) })
    }

    fn read_events(object: &mut Object<'_>, errors: &mut FieldErrors) -> Option<NewRedrive> {
        let parse = |value| json::string(value).and_then(|text| time::parse(&text));
        let id = object.required("subscription_id", errors, |value| json::integer(value, 1..=i64::MAX));
        let since = object.required("since", errors, parse);
        let until = object.optional("until", errors, parse);
        absent(object, "filter", errors, "belongs to a redrive of dead_letters");
        if let (Some(since), Some(until)) = (since, until)
            && until <= since
        {
            errors.add("until", "must be later than since");
        }
        let work = RedriveWork::Events { subscription_id: SubscriptionId(id?), since: since?, until };
        Some(NewRedrive { tenant: None, work })
    }
}

/// A member of the other kind may only be null: so what a redrive is shown with can be sent as it is.
fn absent(object: &mut Object<'_>, name: &str, errors: &mut FieldErrors, why: &str) {
    object.optional::<()>(name, errors, |_| Err(why.to_owned()));
}

/// Large work, and how far it came.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RedriveView {
    id: i64,
    /// Null: every tenant's.
    #[schema(required)]
    tenant: Option<String>,
    /// `dead_letters` or `events`.
    kind: &'static str,
    /// `running`, `done`, `cancelled` or `failed`.
    #[schema(value_type = String)]
    status: &'static str,
    /// Why it failed.
    #[schema(required)]
    error: Option<String>,
    /// Dead letters or events that were asked for and looked at so far.
    examined: u64,
    /// New deliveries.
    created: u64,
    /// The rest: sent before, or not deliverable now.
    skipped: u64,
    /// Of a redrive of events: how much of the time from `since` to `until` has been looked through, in percent. It moves also
    /// while what comes along is other tenants' or of other types. Null for dead letters.
    #[schema(required, maximum = 100)]
    percent: Option<u8>,
    /// Of a redrive of events: whose, created when.
    #[schema(required)]
    subscription_id: Option<i64>,
    #[schema(required)]
    since: Option<ApiTime>,
    #[schema(required)]
    until: Option<ApiTime>,
    /// Of a redrive of dead letters: which.
    #[schema(required)]
    filter: Option<RedriveFilterView>,
    /// The name of the key that started it. Null for a key that is bound to a tenant, if another key did.
    #[schema(required)]
    started_by: Option<String>,
    /// Null: the root key, which is not stored, or a key whose name is not shown either.
    #[schema(required)]
    started_by_key_id: Option<i64>,
    created_at: ApiTime,
    updated_at: ApiTime,
}

/// Which dead letters a redrive sends again.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RedriveFilterView {
    #[schema(required)]
    subscription_id: Option<i64>,
    #[schema(required)]
    event_type: Option<String>,
    #[schema(required)]
    final_error_code: Option<String>,
    #[schema(required)]
    created_after: Option<ApiTime>,
    /// Never later than the redrive itself.
    #[schema(required)]
    created_before: Option<ApiTime>,
}

impl From<DeadLetterFilter> for RedriveFilterView {
    fn from(filter: DeadLetterFilter) -> Self {
        Self {
            subscription_id: filter.subscription_id.map(|id| id.0),
            event_type: filter.event_type.map(|it| it.to_string()),
            final_error_code: filter.final_error_code.map(|it| it.to_string()),
            created_after: filter.created_after.map(Into::into),
            created_before: filter.created_before.map(Into::into),
        }
    }
}

impl RedriveView {
    /// As this caller sees it. Who works for the operator is not the tenants' business: a key that is bound to a tenant
    /// sees only itself as the one that started something.
    pub(crate) fn for_caller(caller: &Caller, redrive: Redrive) -> Self {
        let (kind, percent) = (redrive.work.kind(), redrive.percent());
        let is_own = redrive.started_by.key_id.is_some() && redrive.started_by.key_id == caller.key_id;
        let starter: Option<Starter> = Some(redrive.started_by).filter(|_| caller.tenant.is_none() || is_own);
        let (filter, events) = match redrive.work {
            RedriveWork::DeadLetters(filter) => (Some(filter.into()), None),
            RedriveWork::Events { subscription_id, since, until } => {
                (None, Some((subscription_id, since, until)))
            }
        };
        Self {
            id: redrive.id.0,
            tenant: redrive.tenant,
            kind,
            status: RedriveStatus::as_str(redrive.status),
            error: redrive.error,
            examined: redrive.examined,
            created: redrive.created,
            skipped: redrive.skipped,
            percent,
            subscription_id: events.map(|(id, ..)| id.0),
            since: events.map(|(_, since, _)| since.into()),
            until: events.and_then(|(.., until)| until).map(Into::into),
            filter,
            started_by_key_id: starter.as_ref().and_then(|starter| starter.key_id).map(|id| id.0),
            started_by: starter.map(|starter| starter.name),
            created_at: redrive.created_at.into(),
            updated_at: redrive.updated_at.into(),
        }
    }
}

/// Redrives are listed without a filter of their own.
#[derive(Debug)]
pub(crate) struct RedrivesQuery;

impl ListParameters for RedrivesQuery {
    const LIST: ListKind = ListKind::Redrives;

    fn read(_: &mut Params, _: &mut FieldErrors) -> Self {
        Self
    }
}
