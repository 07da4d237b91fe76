//! A subscription as the API shows it: its columns and how they are read. Shared by the admin and the reader.

use crate::{
    error::DbResult,
    roles::rows::{natural, take},
    time::SqlTime,
};
use hooksaga_saga::{DisabledReason, ErrorCode, SubscriptionId};
use hooksaga_store::{Disabled, Subscription, Trusted, Verification, VerificationStatus};
use mysql_async::Row;

/// The columns that [`subscription`] reads, as a literal for `concat!`.
macro_rules! subscription_columns {
    () => {
        "id, event_type, callback_url, active, verified, max_retry_limit, created_at, updated_at, check_error, \
         checked_at, open_check_at IS NOT NULL, tenant, description, rate_limit, disabled_reason, \
         disabled_at, CASE WHEN verified THEN trusted_by END, trusted_at, header_names"
    };
}
pub(crate) use subscription_columns;

pub(crate) fn subscription(mut row: Row) -> DbResult<Subscription> {
    let row = &mut row;
    let reason: Option<String> = take(row, 14)?;
    let disabled_at: Option<SqlTime> = take(row, 15)?;
    let trusted_by: Option<String> = take(row, 16)?;
    let trusted_at: Option<SqlTime> = take(row, 17)?;
    let header_names: Option<String> = take(row, 18)?;
    let verified: bool = take(row, 4)?;
    let round_is_open: bool = take(row, 10)?;
    let status = match (round_is_open, verified) {
        (true, _) => VerificationStatus::Pending,
        (false, true) => VerificationStatus::Verified,
        (false, false) => VerificationStatus::Failed,
    };
    Ok(Subscription {
        id: SubscriptionId(take(row, 0)?),
        tenant: take(row, 11)?,
        event_type: take(row, 1)?,
        callback_url: take(row, 2)?,
        description: take(row, 12)?,
        active: take(row, 3)?,
        verified,
        max_retry_limit: take::<Option<i64>>(row, 5)?.map(natural),
        rate_limit: take::<Option<i64>>(row, 13)?.map(natural),
        disabled: reason
            .as_deref()
            .and_then(DisabledReason::from_name)
            .zip(disabled_at)
            .map(|(reason, at)| Disabled { reason, at: at.0 }),
        headers: header_names.iter().flat_map(|names| names.split(',')).map(str::to_owned).collect(),
        verification: Verification {
            status,
            last_error: take::<Option<String>>(row, 8)?.map(ErrorCode::from_stored),
            checked_at: take::<Option<SqlTime>>(row, 9)?.map(|time| time.0),
            trusted: trusted_by.zip(trusted_at).map(|(by, at)| Trusted { by, at: at.0 }),
        },
        created_at: take::<SqlTime>(row, 6)?.0,
        updated_at: take::<SqlTime>(row, 7)?.0,
    })
}
