//! `subscription_admin`: configures subscriptions. It never writes the verification columns.
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
    CreateOutcome, GONE_WITH_A_SUBSCRIPTION, NewSubscription, SealedHeaders, Sealer, Seals, SecretRotation,
    StoreError, StoreResult, Subscription, SubscriptionAdminStore, SubscriptionPatch, TenantScope,
    UpdateOutcome,
};
use tokio_postgres::error::SqlState;

const CREATE: &str = concat!(
    "/* admin.create */
WITH created AS (
    INSERT INTO subscriptions (tenant, event_type, callback_url, description, active, max_retry_limit, rate_limit,
                               header_names)
    VALUES ($1, $2, $3, $4, $5, $6, $8, $9)
    ON CONFLICT DO NOTHING
    RETURNING *
), topics AS (
    INSERT INTO subscription_topics (tenant, topic, subscription_id)
    SELECT created.tenant, topic, created.id FROM created CROSS JOIN unnest($7::text[]) AS topic
)
SELECT ",
    subscription_columns!(),
    " FROM created"
);

const TAKEN: &str = "/* admin.taken */
SELECT id FROM subscriptions WHERE tenant = $1 AND event_type = $2 AND callback_url = $3 AND deleted_at IS NULL";

/// Serialises two changes of one subscription. What follows in the transaction is a statement of its own:
/// only then does it see what an earlier change left.
const LOCK: &str = "/* admin.lock */
SELECT callback_url, header_names IS NOT NULL, active FROM subscriptions
WHERE id = $1 AND ($2::text IS NULL OR tenant = $2) AND deleted_at IS NULL FOR UPDATE";

/// Deletes the counters of a failing endpoint: they were those of another URL, or counting starts again.
const END_RUN: &str = "/* admin.end_run */
UPDATE endpoint_failures SET since = NULL, failures = 0, announced = false, gone_url = NULL WHERE subscription_id = $1";

/// The scan that catches up, and waited while it was paused, continues at once.
const CATCH_UP_NOW: &str =
    "/* admin.catch_up_now */ UPDATE catch_ups SET next_at = now() WHERE subscription_id = $1";

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
    rate_limit = CASE WHEN $9 THEN $10 ELSE rate_limit END,
    header_names = CASE WHEN $11 THEN $12 ELSE header_names END,
    disabled_reason = CASE WHEN $4 THEN NULL ELSE disabled_reason END,
    disabled_at = CASE WHEN $4 THEN NULL ELSE disabled_at END,
    verification_round = verification_round + CASE WHEN callback_url <> $3 THEN 1 ELSE 0 END,
    updated_at = now()
WHERE id = $1
  AND (event_type <> $2 OR callback_url <> $3 OR active <> $4
       OR ($5 AND max_retry_limit IS DISTINCT FROM $6) OR ($7 AND description IS DISTINCT FROM $8)
       OR ($9 AND rate_limit IS DISTINCT FROM $10) OR $11)
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
WHERE mine.id = $1 AND other.id <> mine.id AND other.deleted_at IS NULL";

const REQUEST_VERIFICATION: &str = concat!(
    "/* admin.request_verification */
UPDATE subscriptions
SET verification_round = verification_round + 1, vouched_by = $3,
    vouched_round = CASE WHEN $3::text IS NOT NULL THEN verification_round + 1 END
WHERE id = $1 AND ($2::text IS NULL OR tenant = $2) AND deleted_at IS NULL
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

const SET_HEADERS: &str = "/* admin.set_headers */
INSERT INTO subscription_headers (subscription_id, key_id, sealed) VALUES ($1, $2, $3)";

/// It is inactive from now on, so queries for active subscriptions need not exclude deleted ones.
const DELETE: &str = "/* admin.delete */
UPDATE subscriptions SET active = false, header_names = NULL, deleted_at = now(), updated_at = now() WHERE id = $1";

const DELETE_HEADERS: &str =
    "/* admin.delete_headers */ DELETE FROM subscription_headers WHERE subscription_id = $1";

/// How often a create or update is tried whose place was taken and then free again.
const TRIES: usize = 5;

pub(crate) struct AdminSql(pub(crate) RolePool);

fn taken_and_freed() -> StoreError {
    StoreError::Unavailable(
        "other transactions keep inserting and rolling back these topics with this URL".to_owned(),
    )
}

fn each(topics: &Topics) -> Vec<&str> {
    topics.iter().map(Topic::as_str).collect()
}

#[async_trait]
impl SubscriptionAdminStore for AdminSql {
    async fn create(&self, new: &NewSubscription, secrets: &dyn Seals) -> StoreResult<CreateOutcome> {
        let seal = &secrets.sealer();
        self.0
            .run(|mut client| async move {
                for _ in 0..TRIES {
                    if let Some(outcome) = create(&mut client, new, seal).await? {
                        return Ok(outcome);
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
        self.0
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
        vouched_by: Option<&str>,
    ) -> StoreResult<Option<Subscription>> {
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(REQUEST_VERIFICATION).await?;
                let row = client.query_opt(&statement, &[&id.0, &scope.tenant(), &vouched_by]).await?;
                row.as_ref().map(subscription).transpose()
            })
            .await
    }

    async fn delete(&self, scope: &TenantScope, id: SubscriptionId) -> StoreResult<bool> {
        self.0
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let lock = transaction.prepare_cached(LOCK).await?;
                if transaction.query_opt(&lock, &[&id.0, &scope.tenant()]).await?.is_none() {
                    transaction.rollback().await?;
                    return Ok(false);
                }
                let statement = transaction.prepare_cached(DELETE).await?;
                transaction.execute(&statement, &[&id.0]).await?;
                for table in GONE_WITH_A_SUBSCRIPTION {
                    let sql =
                        format!("/* admin.delete_rows */ DELETE FROM {table} WHERE subscription_id = $1");
                    let statement = transaction.prepare_cached(&sql).await?;
                    transaction.execute(&statement, &[&id.0]).await?;
                }
                transaction.commit().await?;
                Ok(true)
            })
            .await
    }

    async fn rotate_secret(&self, scope: &TenantScope, rotation: &SecretRotation) -> StoreResult<bool> {
        let SecretRotation { subscription_id: id, secret, overlap, max_valid } = rotation;
        self.0
            .run(|mut client| async move {
                let transaction = client.transaction().await?;
                let lock = transaction.prepare_cached(LOCK).await?;
                if transaction.query_opt(&lock, &[&id.0, &scope.tenant()]).await?.is_none() {
                    transaction.rollback().await?;
                    return Ok(false);
                }
                let retire = transaction.prepare_cached(RETIRE).await?;
                transaction.execute(&retire, &[&id.0, &micros(*overlap), &bigint(*max_valid)]).await?;
                let add = transaction.prepare_cached(ADD_SECRET).await?;
                transaction.execute(&add, &[&id.0, &secret.key_id, &secret.sealed]).await?;
                transaction.commit().await?;
                Ok(true)
            })
            .await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        secret_key_ids(&self.0).await
    }
}

/// Nothing if another subscription was in the way and is no longer.
async fn create(
    client: &mut Client,
    new: &NewSubscription,
    seal: &Sealer,
) -> DbResult<Option<CreateOutcome>> {
    let (tenant, topics, url) = (new.tenant.as_str(), new.topics.as_str(), new.callback_url.as_str());
    let (limit, rate_limit) = (new.max_retry_limit.map(integer), new.rate_limit.map(integer));
    let transaction = client.transaction().await?;
    let statement = transaction.prepare_cached(CREATE).await?;
    let row = transaction
        .query_opt(
            &statement,
            &[
                &tenant,
                &topics,
                &url,
                &new.description,
                &new.active,
                &limit,
                &each(&new.topics),
                &rate_limit,
                &new.headers,
            ],
        )
        .await?;
    let Some(row) = row else {
        transaction.rollback().await?;
        let taken = client.prepare_cached(TAKEN).await?;
        let row = client.query_opt(&taken, &[&tenant, &topics, &url]).await?;
        return row.map(|row| Ok(CreateOutcome::Exists(SubscriptionId(row.try_get(0)?)))).transpose();
    };
    let created = subscription(&row)?;
    let sealed = seal(created.id);
    let headers = sealed.headers.filter(|_| new.headers.is_some());
    for (sql, text) in [(ADD_SECRET, Some(sealed.secret)), (SET_HEADERS, headers)] {
        let Some(text) = text else { continue };
        let statement = transaction.prepare_cached(sql).await?;
        transaction.execute(&statement, &[&created.id.0, &text.key_id, &text.sealed]).await?;
    }
    transaction.commit().await?;
    Ok(Some(CreateOutcome::Created(created)))
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
    let rate_limit = patch.rate_limit.flatten().map(integer);
    let description = patch.description.as_ref().and_then(Option::as_deref);

    let transaction = client.transaction().await?;
    let lock = transaction.prepare_cached(LOCK).await?;
    let Some(locked) = transaction.query_opt(&lock, &[&id.0, &scope.tenant()]).await? else {
        transaction.rollback().await?;
        return Ok(Some(UpdateOutcome::NotFound));
    };
    let activated = patch.active == Some(true) && !locked.try_get::<_, bool>(2)?;
    let moved = callback_url.is_some_and(|url| locked.try_get::<_, &str>(0).is_ok_and(|old| old != url));
    // Values cannot be compared: headers that are given are new.
    let had_headers: bool = locked.try_get(1)?;
    let headers = patch.headers_for(locked.try_get(0)?).filter(|headers| had_headers || headers.is_some());
    let header_names = headers.flatten().map(|headers| &headers.names);
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
                &patch.rate_limit.is_some(),
                &rate_limit,
                &headers.is_some(),
                &header_names,
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
    if activated || moved {
        transaction.execute(END_RUN, &[&id.0]).await?;
    }
    if activated {
        transaction.execute(CATCH_UP_NOW, &[&id.0]).await?;
    }
    if let Some(topics) = topics {
        let statement = transaction.prepare_cached(SET_TOPICS).await?;
        transaction.execute(&statement, &[&id.0, &each(topics)]).await?;
    }
    if let Some(headers) = headers {
        let statement = transaction.prepare_cached(DELETE_HEADERS).await?;
        transaction.execute(&statement, &[&id.0]).await?;
        if let Some(SealedHeaders { secret, .. }) = headers {
            let statement = transaction.prepare_cached(SET_HEADERS).await?;
            transaction.execute(&statement, &[&id.0, &secret.key_id, &secret.sealed]).await?;
        }
    }
    transaction.commit().await?;
    Ok(Some(UpdateOutcome::Updated(subscription(&row)?)))
}
