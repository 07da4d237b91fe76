//! `subscription_admin`: configures subscriptions. Never what verification writes.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        rows::take,
        subscription::{subscription, subscription_columns},
        worker::secret_key_ids,
    },
    time::{Time, micros},
};
use async_trait::async_trait;
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{
    CreateOutcome, NewSubscription, SealedSecret, StoreResult, Subscription, SubscriptionAdminStore,
    SubscriptionPatch, UpdateOutcome,
};
use mysql_async::{Conn, Row, Transaction, TxOpts, prelude::Queryable as _};
use std::time::Duration;

const TAKEN: &str = "/* admin.taken */
SELECT id FROM subscriptions WHERE event_type = ? AND callback_url = ?";

const CREATE: &str = "/* admin.create */
INSERT INTO subscriptions (event_type, callback_url, active, max_retry_limit) VALUES (?, ?, ?, ?)";

const ADD_SECRET: &str = "/* admin.add_secret */
INSERT INTO subscription_secrets (subscription_id, key_id, sealed) VALUES (?, ?, ?)";

const GET: &str =
    concat!("/* admin.get */ SELECT ", subscription_columns!(), " FROM subscriptions WHERE id = ?");

/// Two changes of one subscription come one after the other.
const LOCK: &str = "/* admin.lock */
SELECT event_type, callback_url, active, max_retry_limit FROM subscriptions WHERE id = ? FOR UPDATE";

/// All columns, as the patch leaves them; the round is one more for each new URL.
const UPDATE: &str = "/* admin.update */
UPDATE subscriptions
SET event_type = ?, callback_url = ?, active = ?, max_retry_limit = ?,
    verification_round = verification_round + ?, updated_at = UTC_TIMESTAMP(6)
WHERE id = ?";

const REQUEST_VERIFICATION: &str = "/* admin.request_verification */
UPDATE subscriptions SET verification_round = verification_round + 1 WHERE id = ?";

const VALID_SECRETS: &str = "/* admin.valid_secrets */
SELECT id, expires_at, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND FROM subscription_secrets
WHERE subscription_id = ? AND (expires_at IS NULL OR expires_at > UTC_TIMESTAMP(6)) ORDER BY id DESC";

const RETIRE: &str = "/* admin.retire */ UPDATE subscription_secrets SET expires_at = ? WHERE id = ?";

pub(crate) struct Admin {
    pool: RolePool,
}

impl Admin {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool }
    }
}

#[async_trait]
impl SubscriptionAdminStore for Admin {
    async fn create(&self, new: &NewSubscription, secret: &SealedSecret) -> StoreResult<CreateOutcome> {
        self.pool.run_inserting(|connection| create(connection, new, secret)).await
    }

    async fn update(&self, id: SubscriptionId, patch: &SubscriptionPatch) -> StoreResult<UpdateOutcome> {
        self.pool.run_inserting(|connection| update(connection, id, patch)).await
    }

    async fn request_verification(&self, id: SubscriptionId) -> StoreResult<Option<Subscription>> {
        self.pool
            .run(|mut connection| async move {
                let mut transaction = connection.start_transaction(TxOpts::default()).await?;
                transaction.exec_drop(REQUEST_VERIFICATION, (id.0,)).await?;
                let found = get(&mut transaction, id).await?;
                transaction.commit().await?;
                Ok(found)
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
        self.pool.run(|connection| rotate(connection, id, secret, overlap, max_valid)).await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        secret_key_ids(&self.pool).await
    }
}

async fn get(transaction: &mut Transaction<'_>, id: SubscriptionId) -> DbResult<Option<Subscription>> {
    let row: Option<Row> = transaction.exec_first(GET, (id.0,)).await?;
    row.map(subscription).transpose()
}

async fn taken(
    transaction: &mut Transaction<'_>,
    event_type: &str,
    callback_url: &str,
) -> DbResult<Option<SubscriptionId>> {
    let id: Option<i64> = transaction.exec_first(TAKEN, (event_type, callback_url)).await?;
    Ok(id.map(SubscriptionId))
}

async fn create(
    mut connection: Conn,
    new: &NewSubscription,
    secret: &SealedSecret,
) -> DbResult<CreateOutcome> {
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    if let Some(id) = taken(&mut transaction, &new.event_type, &new.callback_url).await? {
        transaction.rollback().await?;
        return Ok(CreateOutcome::Exists(id));
    }
    let parameters = (&new.event_type, &new.callback_url, new.active, new.max_retry_limit);
    transaction.exec_drop(CREATE, parameters).await?;
    let id = transaction.last_insert_id().and_then(|id| i64::try_from(id).ok());
    let id = SubscriptionId(id.ok_or_else(|| DbError::unreadable("an insert without an id"))?);
    transaction.exec_drop(ADD_SECRET, (id.0, &secret.key_id, &secret.sealed)).await?;
    let created = get(&mut transaction, id).await?;
    transaction.commit().await?;
    let created = created.ok_or_else(|| DbError::unreadable("a new subscription that cannot be seen"))?;
    Ok(CreateOutcome::Created(created))
}

/// Only a patch that changes something writes. A URL that differs asks for verification anew; whether the new one is
/// verified follows from the generated column.
async fn update(
    mut connection: Conn,
    id: SubscriptionId,
    patch: &SubscriptionPatch,
) -> DbResult<UpdateOutcome> {
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let row: Option<Row> = transaction.exec_first(LOCK, (id.0,)).await?;
    let Some(mut row) = row else {
        transaction.rollback().await?;
        return Ok(UpdateOutcome::NotFound);
    };
    let before = NewSubscription {
        event_type: take(&mut row, 0)?,
        callback_url: take(&mut row, 1)?,
        active: take(&mut row, 2)?,
        max_retry_limit: take(&mut row, 3)?,
    };
    let after = NewSubscription {
        event_type: patch.event_type.clone().unwrap_or_else(|| before.event_type.clone()),
        callback_url: patch.callback_url.clone().unwrap_or_else(|| before.callback_url.clone()),
        active: patch.active.unwrap_or(before.active),
        max_retry_limit: patch.max_retry_limit.unwrap_or(before.max_retry_limit),
    };
    let new_url = before.callback_url != after.callback_url;
    let new_key = new_url || before.event_type != after.event_type;
    let changes = new_key || before.active != after.active || before.max_retry_limit != after.max_retry_limit;
    if new_key && let Some(other) = taken(&mut transaction, &after.event_type, &after.callback_url).await? {
        transaction.rollback().await?;
        return Ok(UpdateOutcome::Exists(other));
    }
    if changes {
        let parameters = (
            &after.event_type,
            &after.callback_url,
            after.active,
            after.max_retry_limit,
            i64::from(new_url),
            id.0,
        );
        transaction.exec_drop(UPDATE, parameters).await?;
    }
    let found = get(&mut transaction, id).await?;
    transaction.commit().await?;
    Ok(found.map_or(UpdateOutcome::NotFound, UpdateOutcome::Updated))
}

/// With the new one at most `max_valid` are valid.
async fn rotate(
    mut connection: Conn,
    id: SubscriptionId,
    secret: &SealedSecret,
    overlap: Duration,
    max_valid: u32,
) -> DbResult<bool> {
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let row: Option<Row> = transaction.exec_first(LOCK, (id.0,)).await?;
    if row.is_none() {
        transaction.rollback().await?;
        return Ok(false);
    }
    // A statement after the lock sees what an earlier rotation left.
    let older: Vec<(i64, Option<Time>, Time, Time)> =
        transaction.exec(VALID_SECRETS, (micros(overlap), id.0)).await?;
    for (rank, (secret_id, expires_at, now, overlapped)) in (1..).zip(older) {
        let end = match rank >= max_valid {
            true => now,
            false => expires_at.map_or(overlapped, |expires_at| expires_at.min(overlapped)),
        };
        transaction.exec_drop(RETIRE, (end, secret_id)).await?;
    }
    transaction.exec_drop(ADD_SECRET, (id.0, &secret.key_id, &secret.sealed)).await?;
    transaction.commit().await?;
    Ok(true)
}
