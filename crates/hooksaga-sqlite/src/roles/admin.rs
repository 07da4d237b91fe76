//! `subscription_admin`: configures subscriptions. Never what verification writes.

use super::{
    rows,
    subscription::{subscription, subscription_columns},
};
use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{
    CreateOutcome, NewSubscription, SealedSecret, StoreResult, Subscription, SubscriptionAdminStore,
    SubscriptionPatch, UpdateOutcome,
};
use rusqlite::OptionalExtension;
use std::time::Duration;

/// Its first round of verification is asked for by the column's default.
const INSERT_SUBSCRIPTION: &str = "/* subscription_admin: insert_subscription */
INSERT INTO subscriptions (event_type, callback_url, active, max_retry_limit, next_check_at, created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?5)";

const READ: &str = concat!(
    "/* subscription_admin: read */ SELECT ",
    subscription_columns!(),
    " FROM subscriptions WHERE id = ?1"
);

const FIND: &str = "/* subscription_admin: find */
SELECT id FROM subscriptions WHERE event_type = ?1 AND callback_url = ?2";

const UPDATE: &str = "/* subscription_admin: update */
UPDATE subscriptions
   SET event_type = ?2, callback_url = ?3, active = ?4, max_retry_limit = ?5,
       verification_round = verification_round + ?6, updated_at = ?7
 WHERE id = ?1";

const REQUEST_VERIFICATION: &str = "/* subscription_admin: request_verification */
UPDATE subscriptions SET verification_round = verification_round + 1 WHERE id = ?1";

const INSERT_SECRET: &str = "/* subscription_admin: insert_secret */
INSERT INTO subscription_secrets (subscription_id, key_id, sealed, created_at) VALUES (?1, ?2, ?3, ?4)";

const VALID_SECRETS: &str = "/* subscription_admin: valid_secrets */
SELECT id, expires_at FROM subscription_secrets
 WHERE subscription_id = ?1 AND (expires_at IS NULL OR expires_at > ?2) ORDER BY id DESC";

const EXPIRE_SECRET: &str = "/* subscription_admin: expire_secret */
UPDATE subscription_secrets SET expires_at = ?2 WHERE id = ?1";

/// Secrets that have expired are of no interest: nobody opens them again.
const SECRET_KEY_IDS: &str = "/* subscription_admin: secret_key_ids */
SELECT DISTINCT key_id FROM subscription_secrets WHERE expires_at IS NULL OR expires_at > ?1 ORDER BY key_id";

pub(crate) struct Admin(pub(crate) RoleHandle);

#[async_trait]
impl SubscriptionAdminStore for Admin {
    async fn create(&self, new: &NewSubscription, secret: &SealedSecret) -> StoreResult<CreateOutcome> {
        let (new, secret) = (new.clone(), secret.clone());
        self.0.write(move |tx| create(tx, &new, &secret)).await
    }

    async fn update(&self, id: SubscriptionId, patch: &SubscriptionPatch) -> StoreResult<UpdateOutcome> {
        let patch = patch.clone();
        self.0.write(move |tx| update(tx, id, patch)).await
    }

    async fn request_verification(&self, id: SubscriptionId) -> StoreResult<Option<Subscription>> {
        self.0
            .write(move |tx| {
                tx.execute(REQUEST_VERIFICATION, [id.0])?;
                read(tx, id)
            })
            .await
    }

    async fn rotate_secret(
        &self,
        id: SubscriptionId,
        secret: &SealedSecret,
        overlap: Duration,
        max_valid: u32,
    ) -> StoreResult<bool> {
        let secret = secret.clone();
        self.0.write(move |tx| rotate_secret(tx, id, &secret, overlap, max_valid)).await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        self.0.read(|tx| rows::all(tx, SECRET_KEY_IDS, [tx.now.as_micros()], |row| row.get(0))).await
    }
}

fn create(tx: &Tx<'_>, new: &NewSubscription, secret: &SealedSecret) -> DbResult<CreateOutcome> {
    // Nobody else writes during this transaction: what is free now is free for the insert.
    if let Some(existing) = find(tx, &new.event_type, &new.callback_url)? {
        return Ok(CreateOutcome::Exists(existing));
    }
    tx.execute(
        INSERT_SUBSCRIPTION,
        (&new.event_type, &new.callback_url, new.active, new.max_retry_limit, tx.now.as_micros()),
    )?;
    let id = SubscriptionId(tx.last_id());
    insert_secret(tx, id, secret)?;
    Ok(CreateOutcome::Created(tx.prepare(READ)?.query_row([id.0], subscription)?))
}

fn update(tx: &Tx<'_>, id: SubscriptionId, patch: SubscriptionPatch) -> DbResult<UpdateOutcome> {
    let Some(old) = read(tx, id)? else {
        return Ok(UpdateOutcome::NotFound);
    };
    let new = Subscription {
        event_type: patch.event_type.unwrap_or_else(|| old.event_type.clone()),
        callback_url: patch.callback_url.unwrap_or_else(|| old.callback_url.clone()),
        active: patch.active.unwrap_or(old.active),
        max_retry_limit: patch.max_retry_limit.unwrap_or(old.max_retry_limit),
        ..old.clone()
    };
    if new == old {
        return Ok(UpdateOutcome::Updated(old));
    }
    if let Some(existing) = find(tx, &new.event_type, &new.callback_url)?.filter(|existing| *existing != id) {
        return Ok(UpdateOutcome::Exists(existing));
    }
    let new_rounds = i64::from(new.callback_url != old.callback_url);
    tx.execute(
        UPDATE,
        (
            id.0,
            &new.event_type,
            &new.callback_url,
            new.active,
            new.max_retry_limit,
            new_rounds,
            tx.now.as_micros(),
        ),
    )?;
    Ok(UpdateOutcome::Updated(tx.prepare(READ)?.query_row([id.0], subscription)?))
}

fn rotate_secret(
    tx: &Tx<'_>,
    id: SubscriptionId,
    secret: &SealedSecret,
    overlap: Duration,
    max_valid: u32,
) -> DbResult<bool> {
    if read(tx, id)?.is_none() {
        return Ok(false);
    }
    let now = tx.now.as_micros();
    let older = rows::all(tx, VALID_SECRETS, (id.0, now), |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?))
    })?;
    let retire_at = tx.now.after(overlap).as_micros();
    let kept = max_valid.saturating_sub(1) as usize;
    for (position, (secret_id, expires_at)) in older.into_iter().enumerate() {
        let end = if position < kept { retire_at } else { now };
        if expires_at.is_none_or(|expires_at| expires_at > end) {
            tx.execute(EXPIRE_SECRET, (secret_id, end))?;
        }
    }
    insert_secret(tx, id, secret)?;
    Ok(true)
}

fn read(tx: &Tx<'_>, id: SubscriptionId) -> DbResult<Option<Subscription>> {
    Ok(tx.prepare(READ)?.query_row([id.0], subscription).optional()?)
}

fn find(tx: &Tx<'_>, event_type: &str, callback_url: &str) -> DbResult<Option<SubscriptionId>> {
    let found = tx.prepare(FIND)?.query_row([event_type, callback_url], |row| row.get(0)).optional()?;
    Ok(found.map(SubscriptionId))
}

fn insert_secret(tx: &Tx<'_>, id: SubscriptionId, secret: &SealedSecret) -> DbResult<()> {
    tx.execute(INSERT_SECRET, (id.0, &secret.key_id, &secret.sealed, tx.now.as_micros()))?;
    Ok(())
}
