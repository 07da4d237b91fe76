//! A subscription as the API shows it: its columns and how they are read. Shared by the admin and the reader.

use crate::{error::DbResult, roles::rows::natural, time::SqlTime};
use hooksaga_saga::{DisabledReason, ErrorCode, SubscriptionId};
use hooksaga_store::{Disabled, Subscription, Trusted, Verification, VerificationStatus};
use tokio_postgres::Row;

/// The columns that [`subscription`] reads, as a literal for `concat!`.
macro_rules! subscription_columns {
    () => {
        "id, event_type, callback_url, active, verified, max_retry_limit, created_at, updated_at, check_error, \
         checked_at, check_round <> verification_round OR NOT check_done, tenant, description, rate_limit, disabled_reason, \
         disabled_at, CASE WHEN verified THEN trusted_by END, trusted_at, header_names"
    };
}
pub(crate) use subscription_columns;

pub(crate) fn subscription(row: &Row) -> DbResult<Subscription> {
    let verified: bool = row.try_get(4)?;
    let round_is_open: bool = row.try_get(10)?;
    let status = match (round_is_open, verified) {
        (true, _) => VerificationStatus::Pending,
        (false, true) => VerificationStatus::Verified,
        (false, false) => VerificationStatus::Failed,
    };
    Ok(Subscription {
        id: SubscriptionId(row.try_get(0)?),
        tenant: row.try_get(11)?,
        event_type: row.try_get(1)?,
        callback_url: row.try_get(2)?,
        description: row.try_get(12)?,
        active: row.try_get(3)?,
        verified,
        max_retry_limit: row.try_get::<_, Option<i32>>(5)?.map(natural),
        rate_limit: row.try_get::<_, Option<i32>>(13)?.map(natural),
        disabled: disabled(row)?,
        headers: row.try_get::<_, Option<&str>>(18)?.map(names).unwrap_or_default(),
        verification: Verification {
            status,
            last_error: row.try_get::<_, Option<String>>(8)?.map(ErrorCode::from_stored),
            checked_at: row.try_get::<_, Option<SqlTime>>(9)?.map(|time| time.0),
            trusted: trusted(row)?,
        },
        created_at: row.try_get::<_, SqlTime>(6)?.0,
        updated_at: row.try_get::<_, SqlTime>(7)?.0,
    })
}

fn disabled(row: &Row) -> DbResult<Option<Disabled>> {
    let reason = row.try_get::<_, Option<&str>>(14)?.and_then(DisabledReason::from_name);
    let at = row.try_get::<_, Option<SqlTime>>(15)?;
    Ok(reason.zip(at).map(|(reason, at)| Disabled { reason, at: at.0 }))
}

fn trusted(row: &Row) -> DbResult<Option<Trusted>> {
    let by: Option<String> = row.try_get(16)?;
    let at = row.try_get::<_, Option<SqlTime>>(17)?;
    Ok(by.zip(at).map(|(by, at)| Trusted { by, at: at.0 }))
}

/// The names of a text in which they are joined with commas.
fn names(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}
