//! `subscription_admin`: configures subscriptions. Never what verification writes.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        rows::{bigint, integer},
        subscription::{subscription, subscription_columns},
        worker::secret_key_ids,
    },
    time::micros,
};
use async_trait::async_trait;
use deadpool_postgres::Client;
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{
    CreateOutcome, NewSubscription, SealedSecret, StoreError, StoreResult, Subscription,
    SubscriptionAdminStore, SubscriptionPatch, UpdateOutcome,
};
use std::time::Duration;
use tokio_postgres::error::SqlState;

const CREATE: &str = concat!(
    "/* admin.create */
WITH created AS (
    INSERT INTO subscriptions (event_type, callback_url, active, max_retry_limit) VALUES ($1, $2, $3, $4)
    ON CONFLICT DO NOTHING
    RETURNING *
), secret AS (
    INSERT INTO subscription_secrets (subscription_id, key_id, sealed) SELECT id, $5, $6 FROM created
)
SELECT ",
    subscription_columns!(),
    " FROM created"
);

const TAKEN: &str = "/* admin.taken */
SELECT id FROM subscriptions WHERE event_type = $1 AND callback_url = $2";

/// Only a patch that changes something writes. A URL that differs asks for verification anew; whether the new
/// one is verified follows from the generated column.
const UPDATE: &str = concat!(
    "/* admin.update */
UPDATE subscriptions
SET event_type = coalesce($2, event_type),
    callback_url = coalesce($3, callback_url),
    active = coalesce($4, active),
    max_retry_limit = CASE WHEN $5 THEN $6 ELSE max_retry_limit END,
    verification_round = verification_round + CASE WHEN callback_url <> $3 THEN 1 ELSE 0 END,
    updated_at = now()
WHERE id = $1
  AND (event_type <> $2 OR callback_url <> $3 OR active <> $4
       OR ($5 AND max_retry_limit IS DISTINCT FROM $6))
RETURNING ",
    subscription_columns!()
);

const GET: &str =
    concat!("/* admin.get */ SELECT ", subscription_columns!(), " FROM subscriptions WHERE id = $1");

/// Whose the patched event type and URL are.
const IN_THE_WAY: &str = "/* admin.in_the_way */
SELECT other.id
FROM subscriptions mine
JOIN subscriptions other
    ON other.event_type = coalesce($2, mine.event_type) AND other.callback_url = coalesce($3, mine.callback_url)
WHERE mine.id = $1 AND other.id <> mine.id";

const REQUEST_VERIFICATION: &str = concat!(
    "/* admin.request_verification */
UPDATE subscriptions SET verification_round = verification_round + 1 WHERE id = $1
RETURNING ",
    subscription_columns!()
);

/// Two rotations of one subscription come one after the other.
const LOCK: &str = "/* admin.lock */ SELECT id FROM subscriptions WHERE id = $1 FOR UPDATE";

/// A statement of its own, after the lock: only then does it see what an earlier rotation left. With the new one
/// at most $3 are valid; `rank` counts the older ones from the newest.
const RETIRE: &str = "/* admin.retire */
UPDATE subscription_secrets k
SET expires_at = CASE WHEN older.rank >= $3 THEN now()
                      ELSE least(k.expires_at, now() + $2::bigint * interval '1 microsecond') END
FROM (SELECT id, row_number() OVER (ORDER BY id DESC) AS rank
      FROM subscription_secrets
      WHERE subscription_id = $1 AND (expires_at IS NULL OR expires_at > now())) older
WHERE k.id = older.id";

const ADD_SECRET: &str = "/* admin.add_secret */
INSERT INTO subscription_secrets (subscription_id, key_id, sealed) VALUES ($1, $2, $3)";

/// How often a create or update is tried whose place was taken and then free again.
const TRIES: usize = 5;

pub(crate) struct Admin {
    pool: RolePool,
}

impl Admin {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool }
    }
}

fn taken_and_freed() -> StoreError {
    StoreError::Unavailable("the event type and URL are taken and freed again and again".to_owned())
}

#[async_trait]
impl SubscriptionAdminStore for Admin {
    async fn create(&self, new: &NewSubscription, secret: &SealedSecret) -> StoreResult<CreateOutcome> {
        self.pool
            .run(|client| async move {
                let limit = new.max_retry_limit.map(integer);
                let create = client.prepare_cached(CREATE).await?;
                let taken = client.prepare_cached(TAKEN).await?;
                for _ in 0..TRIES {
                    let row = client
                        .query_opt(
                            &create,
                            &[
                                &new.event_type,
                                &new.callback_url,
                                &new.active,
                                &limit,
                                &secret.key_id,
                                &secret.sealed,
                            ],
                        )
                        .await?;
                    if let Some(row) = row {
                        return Ok(CreateOutcome::Created(subscription(&row)?));
                    }
                    if let Some(row) = client.query_opt(&taken, &[&new.event_type, &new.callback_url]).await?
                    {
                        return Ok(CreateOutcome::Exists(SubscriptionId(row.try_get(0)?)));
                    }
                }
                Err(DbError::Store(taken_and_freed()))
            })
            .await
    }

    async fn update(&self, id: SubscriptionId, patch: &SubscriptionPatch) -> StoreResult<UpdateOutcome> {
        self.pool
            .run(|client| async move {
                for _ in 0..TRIES {
                    if let Some(outcome) = update(&client, id, patch).await? {
                        return Ok(outcome);
                    }
                }
                Err(DbError::Store(taken_and_freed()))
            })
            .await
    }

    async fn request_verification(&self, id: SubscriptionId) -> StoreResult<Option<Subscription>> {
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(REQUEST_VERIFICATION).await?;
                client.query_opt(&statement, &[&id.0]).await?.as_ref().map(subscription).transpose()
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
        self.pool
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let lock = transaction.prepare_cached(LOCK).await?;
                if transaction.query_opt(&lock, &[&id.0]).await?.is_none() {
                    transaction.rollback().await?;
                    return Ok(false);
                }
                let retire = transaction.prepare_cached(RETIRE).await?;
                transaction.execute(&retire, &[&id.0, &micros(overlap), &bigint(max_valid)]).await?;
                let add = transaction.prepare_cached(ADD_SECRET).await?;
                transaction.execute(&add, &[&id.0, &secret.key_id, &secret.sealed]).await?;
                transaction.commit().await?;
                Ok(true)
            })
            .await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        secret_key_ids(&self.pool).await
    }
}

/// Nothing if another subscription was in the way and is no longer.
async fn update(
    client: &Client,
    id: SubscriptionId,
    patch: &SubscriptionPatch,
) -> DbResult<Option<UpdateOutcome>> {
    let sets_limit = patch.max_retry_limit.is_some();
    let limit = patch.max_retry_limit.flatten().map(integer);
    let statement = client.prepare_cached(UPDATE).await?;
    let changed = client
        .query_opt(
            &statement,
            &[&id.0, &patch.event_type, &patch.callback_url, &patch.active, &sets_limit, &limit],
        )
        .await;
    match changed {
        Ok(Some(row)) => return Ok(Some(UpdateOutcome::Updated(subscription(&row)?))),
        Ok(None) => {}
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
            let statement = client.prepare_cached(IN_THE_WAY).await?;
            let row = client.query_opt(&statement, &[&id.0, &patch.event_type, &patch.callback_url]).await?;
            return row.map(|row| Ok(UpdateOutcome::Exists(SubscriptionId(row.try_get(0)?)))).transpose();
        }
        Err(error) => return Err(error.into()),
    }
    let statement = client.prepare_cached(GET).await?;
    Ok(Some(match client.query_opt(&statement, &[&id.0]).await? {
        Some(row) => UpdateOutcome::Updated(subscription(&row)?),
        None => UpdateOutcome::NotFound,
    }))
}
