//! `subscription_admin`: configures subscriptions. Never what verification writes.
//!
//! `subscription_topics`, which routing looks up, is written in the transaction that writes a subscription's topics.

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
use hooksaga_saga::{CallbackUrl, SubscriptionId, Topic, Topics};
use hooksaga_store::{
    CreateOutcome, NewSubscription, SealedSecret, StoreError, StoreResult, Subscription,
    SubscriptionAdminStore, SubscriptionPatch, TenantScope, UpdateOutcome,
};
use std::time::Duration;
use tokio_postgres::error::SqlState;

const CREATE: &str = concat!(
    "/* admin.create */
WITH created AS (
    INSERT INTO subscriptions (tenant, event_type, callback_url, description, active, max_retry_limit)
    VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT DO NOTHING
    RETURNING *
), topics AS (
    INSERT INTO subscription_topics (tenant, topic, subscription_id)
    SELECT created.tenant, topic, created.id FROM created CROSS JOIN unnest($7::text[]) AS topic
), secret AS (
    INSERT INTO subscription_secrets (subscription_id, key_id, sealed) SELECT id, $8, $9 FROM created
)
SELECT ",
    subscription_columns!(),
    " FROM created"
);

const TAKEN: &str = "/* admin.taken */
SELECT id FROM subscriptions WHERE tenant = $1 AND event_type = $2 AND callback_url = $3";

/// Two changes of one subscription come one after the other. What follows in the transaction is a statement of its own:
/// only then does it see what an earlier change left.
const LOCK: &str = "/* admin.lock */
SELECT id FROM subscriptions WHERE id = $1 AND ($2::text IS NULL OR tenant = $2) FOR UPDATE";

/// Only a patch that changes something writes. A URL that differs asks for verification anew; whether the new
/// one is verified follows from the generated column.
const UPDATE: &str = concat!(
    "/* admin.update */
UPDATE subscriptions
SET event_type = coalesce($2, event_type),
    callback_url = coalesce($3, callback_url),
    active = coalesce($4, active),
    max_retry_limit = CASE WHEN $5 THEN $6 ELSE max_retry_limit END,
    description = CASE WHEN $7 THEN $8 ELSE description END,
    verification_round = verification_round + CASE WHEN callback_url <> $3 THEN 1 ELSE 0 END,
    updated_at = now()
WHERE id = $1
  AND (event_type <> $2 OR callback_url <> $3 OR active <> $4
       OR ($5 AND max_retry_limit IS DISTINCT FROM $6) OR ($7 AND description IS DISTINCT FROM $8))
RETURNING ",
    subscription_columns!()
);

/// Makes the routing index what the topics are.
const SET_TOPICS: &str = "/* admin.set_topics */
WITH gone AS (
    DELETE FROM subscription_topics WHERE subscription_id = $1 AND topic <> ALL ($2::text[])
)
INSERT INTO subscription_topics (tenant, topic, subscription_id)
SELECT s.tenant, topic, s.id FROM subscriptions s CROSS JOIN unnest($2::text[]) AS topic WHERE s.id = $1
ON CONFLICT DO NOTHING";

const GET: &str =
    concat!("/* admin.get */ SELECT ", subscription_columns!(), " FROM subscriptions WHERE id = $1");

/// Whose the patched topics and URL are.
const IN_THE_WAY: &str = "/* admin.in_the_way */
SELECT other.id
FROM subscriptions mine
JOIN subscriptions other
    ON other.tenant = mine.tenant AND other.event_type = coalesce($2, mine.event_type)
   AND other.callback_url = coalesce($3, mine.callback_url)
WHERE mine.id = $1 AND other.id <> mine.id";

const REQUEST_VERIFICATION: &str = concat!(
    "/* admin.request_verification */
UPDATE subscriptions SET verification_round = verification_round + 1
WHERE id = $1 AND ($2::text IS NULL OR tenant = $2)
RETURNING ",
    subscription_columns!()
);

/// After the lock, see there. With the new one at most $3 are valid; `rank` counts the older ones from the newest.
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
    StoreError::Unavailable("the topics and URL are taken and freed again and again".to_owned())
}

fn each(topics: &Topics) -> Vec<&str> {
    topics.iter().map(Topic::as_str).collect()
}

#[async_trait]
impl SubscriptionAdminStore for Admin {
    async fn create(&self, new: &NewSubscription, secret: &SealedSecret) -> StoreResult<CreateOutcome> {
        let key = &[new.tenant.as_str(), new.topics.as_str(), new.callback_url.as_str()];
        let topics = &each(&new.topics);
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
                                &key[0],
                                &key[1],
                                &key[2],
                                &new.description,
                                &new.active,
                                &limit,
                                topics,
                                &secret.key_id,
                                &secret.sealed,
                            ],
                        )
                        .await?;
                    if let Some(row) = row {
                        return Ok(CreateOutcome::Created(subscription(&row)?));
                    }
                    if let Some(row) = client.query_opt(&taken, &[&key[0], &key[1], &key[2]]).await? {
                        return Ok(CreateOutcome::Exists(SubscriptionId(row.try_get(0)?)));
                    }
                }
                Err(DbError::Store(taken_and_freed()))
            })
            .await
    }

    async fn update(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
        patch: &SubscriptionPatch,
    ) -> StoreResult<UpdateOutcome> {
        self.pool
            .run(|mut client| async move {
                for _ in 0..TRIES {
                    if let Some(outcome) = update(&mut client, scope, id, patch).await? {
                        return Ok(outcome);
                    }
                }
                Err(DbError::Store(taken_and_freed()))
            })
            .await
    }

    async fn request_verification(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
    ) -> StoreResult<Option<Subscription>> {
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(REQUEST_VERIFICATION).await?;
                let row = client.query_opt(&statement, &[&id.0, &scope.tenant()]).await?;
                row.as_ref().map(subscription).transpose()
            })
            .await
    }

    async fn rotate_secret(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
        secret: &SealedSecret,
        overlap: Duration,
        max_valid: u32,
    ) -> StoreResult<bool> {
        self.pool
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let lock = transaction.prepare_cached(LOCK).await?;
                if transaction.query_opt(&lock, &[&id.0, &scope.tenant()]).await?.is_none() {
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
    client: &mut Client,
    scope: &TenantScope,
    id: SubscriptionId,
    patch: &SubscriptionPatch,
) -> DbResult<Option<UpdateOutcome>> {
    let topics = patch.topics.as_ref();
    let event_type = topics.map(Topics::as_str);
    let callback_url = patch.callback_url.as_ref().map(CallbackUrl::as_str);
    let limit = patch.max_retry_limit.flatten().map(integer);
    let description = patch.description.as_ref().and_then(Option::as_deref);

    let transaction = client.transaction().await?;
    let lock = transaction.prepare_cached(LOCK).await?;
    if transaction.query_opt(&lock, &[&id.0, &scope.tenant()]).await?.is_none() {
        transaction.rollback().await?;
        return Ok(Some(UpdateOutcome::NotFound));
    }
    let statement = transaction.prepare_cached(UPDATE).await?;
    let changed = transaction
        .query_opt(
            &statement,
            &[
                &id.0,
                &event_type,
                &callback_url,
                &patch.active,
                &patch.max_retry_limit.is_some(),
                &limit,
                &patch.description.is_some(),
                &description,
            ],
        )
        .await;
    let row = match changed {
        Ok(Some(row)) => row,
        Ok(None) => {
            let statement = transaction.prepare_cached(GET).await?;
            transaction.query_one(&statement, &[&id.0]).await?
        }
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
            transaction.rollback().await?;
            let statement = client.prepare_cached(IN_THE_WAY).await?;
            let row = client.query_opt(&statement, &[&id.0, &event_type, &callback_url]).await?;
            return row.map(|row| Ok(UpdateOutcome::Exists(SubscriptionId(row.try_get(0)?)))).transpose();
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(topics) = topics {
        let statement = transaction.prepare_cached(SET_TOPICS).await?;
        transaction.execute(&statement, &[&id.0, &each(topics)]).await?;
    }
    transaction.commit().await?;
    Ok(Some(UpdateOutcome::Updated(subscription(&row)?)))
}
