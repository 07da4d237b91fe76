//! A subscription as the API shows it: its columns and how they are read. Shared by the admin and the reader.

use super::rows::{optional_error_code, optional_time, time};
use hooksaga_saga::{DisabledReason, SubscriptionId};
use hooksaga_store::{Disabled, Subscription, Trusted, Verification, VerificationStatus};
use rusqlite::{Result, Row};

/// What [`subscription`] reads, in its order. A round is open while it is new or not done.
macro_rules! subscription_columns {
    () => {
        "subscriptions.id, subscriptions.event_type, callback_url, active, verified, max_retry_limit, \
         check_round <> verification_round OR NOT check_done, check_error, checked_at, created_at, updated_at, \
         subscriptions.tenant, description, rate_limit, disabled_reason, disabled_at, \
         iif(verified, trusted_by, NULL), trusted_at, header_names"
    };
}
pub(super) use subscription_columns;

pub(super) fn subscription(row: &Row<'_>) -> Result<Subscription> {
    let verified = row.get(4)?;
    let status = match (row.get(6)?, verified) {
        (true, _) => VerificationStatus::Pending,
        (false, true) => VerificationStatus::Verified,
        (false, false) => VerificationStatus::Failed,
    };
    Ok(Subscription {
        id: SubscriptionId(row.get(0)?),
        event_type: row.get(1)?,
        callback_url: row.get(2)?,
        active: row.get(3)?,
        verified,
        max_retry_limit: row.get(5)?,
        verification: Verification {
            status,
            last_error: optional_error_code(row, 7)?,
            checked_at: optional_time(row, 8)?,
            trusted: row
                .get::<_, Option<String>>(16)?
                .zip(optional_time(row, 17)?)
                .map(|(by, at)| Trusted { by, at }),
        },
        created_at: time(row, 9)?,
        updated_at: time(row, 10)?,
        tenant: row.get(11)?,
        description: row.get(12)?,
        rate_limit: row.get(13)?,
        headers: row.get_ref(18)?.as_str_or_null()?.map(names).unwrap_or_default(),
        disabled: row
            .get_ref(14)?
            .as_str_or_null()?
            .and_then(DisabledReason::from_name)
            .zip(optional_time(row, 15)?)
            .map(|(reason, at)| Disabled { reason, at }),
    })
}

/// The names of a text in which they are joined with commas.
pub(super) fn names(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}
