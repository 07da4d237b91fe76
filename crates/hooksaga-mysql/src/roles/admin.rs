//! `subscription_admin`: configures subscriptions. It never writes the verification columns.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        batch::{Batch, Field, identifier},
        rows::{expect_rows, rows, take},
        subscription::{subscription, subscription_columns},
        topics::topics,
        worker::secret_key_ids,
    },
    time::SqlTime,
};
use async_trait::async_trait;
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{
    CreateOutcome, GONE_WITH_A_SUBSCRIPTION, NewSubscription, SealedHeaders, Sealer, Seals, SecretRotation,
    StoreResult, Subscription, SubscriptionAdminStore, SubscriptionPatch, TenantScope, UpdateOutcome,
};
use mysql_async::{Conn, Row, Transaction, TxOpts, prelude::Queryable as _};
use std::collections::BTreeSet;

const TAKEN: &str = "/* admin.taken */
SELECT id FROM subscriptions FORCE INDEX (uniq_sub_tenant_type_url)
WHERE tenant = ? AND event_type = ? AND callback_url = ? AND kept";

const CREATE: &str = "/* admin.create */
INSERT INTO subscriptions (tenant, event_type, callback_url, description, active, max_retry_limit, rate_limit, header_names)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)";

const ADD_TOPICS: &str = concat!(
    "/* admin.add_topics */
INSERT INTO subscription_topics (tenant, topic, subscription_id)
SELECT ",
    identifier!("u.tenant"),
    ", ",
    identifier!("u.topic"),
    ", u.subscription_id
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    tenant VARCHAR(200) PATH '$[0]', topic VARCHAR(200) PATH '$[1]', subscription_id BIGINT PATH '$[2]')) AS u"
);

const REMOVE_TOPICS: &str = concat!(
    "/* admin.remove_topics */
DELETE i FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (
    tenant VARCHAR(200) PATH '$[0]', topic VARCHAR(200) PATH '$[1]', subscription_id BIGINT PATH '$[2]')) AS t) u
STRAIGHT_JOIN subscription_topics i FORCE INDEX (PRIMARY)
    ON i.tenant = ",
    identifier!("u.tenant"),
    " AND i.topic = ",
    identifier!("u.topic"),
    " AND i.subscription_id = u.subscription_id"
);

const ADD_SECRET: &str = "/* admin.add_secret */
INSERT INTO subscription_secrets (subscription_id, key_id, sealed) VALUES (?, ?, ?)";

const GET: &str =
    concat!("/* admin.get */ SELECT ", subscription_columns!(), " FROM subscriptions WHERE id = ?");

/// Serialises two changes of one subscription.
const LOCK: &str = "/* admin.lock */
SELECT tenant, event_type, callback_url, description, active, max_retry_limit, rate_limit, header_names
FROM subscriptions WHERE id = ? AND deleted_at IS NULL FOR UPDATE";

/// Writes all columns with their values after the patch. Each new URL adds one to the round.
const UPDATE: &str = "/* admin.update */
UPDATE subscriptions
SET event_type = ?, callback_url = ?, description = ?, active = ?, max_retry_limit = ?, rate_limit = ?, header_names = ?,
    disabled_reason = IF(?, NULL, disabled_reason), disabled_at = IF(?, NULL, disabled_at),
    verification_round = verification_round + ?, updated_at = UTC_TIMESTAMP(6)
WHERE id = ?";

/// Deletes the counters of a failing endpoint: they were those of another URL, or counting starts again.
const END_RUN: &str = "/* admin.end_run */
UPDATE endpoint_failures SET since = NULL, failures = 0, announced = FALSE, gone_url = NULL WHERE subscription_id = ?";

/// The scan that catches up, and waited while it was paused, continues at once.
const CATCH_UP_NOW: &str = "/* admin.catch_up_now */
UPDATE catch_ups FORCE INDEX (idx_catch_up_subscription) SET next_at = UTC_TIMESTAMP(6) WHERE subscription_id = ?";

const REQUEST_VERIFICATION: &str = "/* admin.request_verification */
UPDATE subscriptions
SET vouched_by = ?, vouched_round = IF(? IS NULL, NULL, verification_round + 1),
    verification_round = verification_round + 1
WHERE id = ?";

const SET_HEADERS: &str = "/* admin.set_headers */
INSERT INTO subscription_headers (subscription_id, key_id, sealed) VALUES (?, ?, ?)";

/// It is inactive from now on, so queries for active subscriptions need not exclude deleted ones.
const DELETE: &str = "/* admin.delete */
UPDATE subscriptions
SET active = FALSE, header_names = NULL, deleted_at = UTC_TIMESTAMP(6), updated_at = UTC_TIMESTAMP(6)
WHERE id = ?";

const DELETE_HEADERS: &str =
    "/* admin.delete_headers */ DELETE FROM subscription_headers WHERE subscription_id = ?";

const VALID_SECRETS: &str = "/* admin.valid_secrets */
SELECT id, expires_at, UTC_TIMESTAMP(6) FROM subscription_secrets
WHERE subscription_id = ? AND (expires_at IS NULL OR expires_at > UTC_TIMESTAMP(6)) ORDER BY id DESC";

const RETIRE: &str = "/* admin.retire */ UPDATE subscription_secrets SET expires_at = ? WHERE id = ?";

pub(crate) struct AdminSql(pub(crate) RolePool);

#[async_trait]
impl SubscriptionAdminStore for AdminSql {
    async fn create(&self, new: &NewSubscription, secrets: &dyn Seals) -> StoreResult<CreateOutcome> {
        let seal = &secrets.sealer();
        self.0.run_inserting(|connection| create(connection, new, seal)).await
    }

    async fn update(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
        patch: &SubscriptionPatch,
    ) -> StoreResult<UpdateOutcome> {
        self.0.run_inserting(|connection| update(connection, scope, id, patch)).await
    }

    async fn request_verification(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
        vouched_by: Option<&str>,
    ) -> StoreResult<Option<Subscription>> {
        self.0
            .run(|mut connection| async move {
                let mut transaction = connection.start_transaction(TxOpts::default()).await?;
                if lock(&mut transaction, scope, id).await?.is_none() {
                    transaction.rollback().await?;
                    return Ok(None);
                }
                transaction.exec_drop(REQUEST_VERIFICATION, (vouched_by, vouched_by, id.0)).await?;
                let found = get(&mut transaction, id).await?;
                transaction.commit().await?;
                Ok(found)
            })
            .await
    }

    async fn delete(&self, scope: &TenantScope, id: SubscriptionId) -> StoreResult<bool> {
        self.0.run(|connection| delete(connection, scope, id)).await
    }

    async fn rotate_secret(&self, scope: &TenantScope, rotation: &SecretRotation) -> StoreResult<bool> {
        self.0.run(|connection| rotate(connection, scope, rotation)).await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        secret_key_ids(&self.0).await
    }
}

async fn get(transaction: &mut Transaction<'_>, id: SubscriptionId) -> DbResult<Option<Subscription>> {
    let row: Option<Row> = transaction.exec_first(GET, (id.0,)).await?;
    row.map(subscription).transpose()
}

/// The configuration of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Configuration {
    tenant: String,
    /// The canonical text of its topics.
    topics: String,
    callback_url: String,
    description: Option<String>,
    active: bool,
    max_retry_limit: Option<u32>,
    rate_limit: Option<u32>,
    header_names: Option<String>,
}

impl Configuration {
    /// After the patch.
    fn patched(&self, patch: &SubscriptionPatch) -> Self {
        let header_names = match patch.headers_for(&self.callback_url) {
            Some(headers) => headers.map(|headers| headers.names.clone()),
            None => self.header_names.clone(),
        };
        let text = |new: Option<&str>, old: &str| new.unwrap_or(old).to_owned();
        Self {
            tenant: self.tenant.clone(),
            topics: text(patch.topics.as_ref().map(|topics| topics.as_str()), &self.topics),
            callback_url: text(patch.callback_url.as_ref().map(|url| url.as_str()), &self.callback_url),
            description: patch.description.clone().unwrap_or_else(|| self.description.clone()),
            active: patch.active.unwrap_or(self.active),
            max_retry_limit: patch.max_retry_limit.unwrap_or(self.max_retry_limit),
            rate_limit: patch.rate_limit.unwrap_or(self.rate_limit),
            header_names,
        }
    }
}

/// Locks a subscription, if the scope includes it.
async fn lock(
    transaction: &mut Transaction<'_>,
    scope: &TenantScope,
    id: SubscriptionId,
) -> DbResult<Option<Configuration>> {
    let row: Option<Row> = transaction.exec_first(LOCK, (id.0,)).await?;
    let Some(mut row) = row else { return Ok(None) };
    let row = &mut row;
    let found = Configuration {
        tenant: take(row, 0)?,
        topics: take(row, 1)?,
        callback_url: take(row, 2)?,
        description: take(row, 3)?,
        active: take(row, 4)?,
        max_retry_limit: take(row, 5)?,
        rate_limit: take(row, 6)?,
        header_names: take(row, 7)?,
    };
    Ok(Some(found).filter(|found| scope.includes(&found.tenant)))
}

async fn taken(
    transaction: &mut Transaction<'_>,
    tenant: &str,
    topics: &str,
    callback_url: &str,
) -> DbResult<Option<SubscriptionId>> {
    let id: Option<i64> = transaction.exec_first(TAKEN, (tenant, topics, callback_url)).await?;
    Ok(id.map(SubscriptionId))
}

/// Brings the routing index from one canonical text to another.
async fn change_topics(
    transaction: &mut Transaction<'_>,
    id: SubscriptionId,
    tenant: &str,
    before: Option<&str>,
    after: &str,
) -> DbResult<()> {
    let before: BTreeSet<&str> = before.into_iter().flat_map(topics).collect();
    let after: BTreeSet<&str> = topics(after).collect();
    for (sql, changed) in [(REMOVE_TOPICS, &before - &after), (ADD_TOPICS, &after - &before)] {
        let mut written = 0;
        for document in
            Batch::of(&changed, |topic| [Field::Text(tenant), Field::Text(topic), Field::Int(id.0)])
        {
            transaction.exec_drop(sql, (document,)).await?;
            written += transaction.affected_rows();
        }
        expect_rows("changing topics", rows(changed.len()), written)?;
    }
    Ok(())
}

async fn create(mut connection: Conn, new: &NewSubscription, seal: &Sealer) -> DbResult<CreateOutcome> {
    let (tenant, topics, url) = (new.tenant.as_str(), new.topics.as_str(), new.callback_url.as_str());
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    if let Some(id) = taken(&mut transaction, tenant, topics, url).await? {
        transaction.rollback().await?;
        return Ok(CreateOutcome::Exists(id));
    }
    let parameters = (
        tenant,
        topics,
        url,
        &new.description,
        new.active,
        new.max_retry_limit,
        new.rate_limit,
        &new.headers,
    );
    transaction.exec_drop(CREATE, parameters).await?;
    let id = transaction.last_insert_id().and_then(|id| i64::try_from(id).ok());
    let id = SubscriptionId(id.ok_or_else(|| DbError::unreadable("an insert without an id"))?);
    change_topics(&mut transaction, id, tenant, None, topics).await?;
    let sealed = seal(id);
    if let Some(headers) = sealed.headers.filter(|_| new.headers.is_some()) {
        transaction.exec_drop(SET_HEADERS, (id.0, &headers.key_id, &headers.sealed)).await?;
    }
    let secret = &sealed.secret;
    transaction.exec_drop(ADD_SECRET, (id.0, &secret.key_id, &secret.sealed)).await?;
    let created = get(&mut transaction, id).await?;
    transaction.commit().await?;
    let created = created.ok_or_else(|| DbError::unreadable("a new subscription that cannot be seen"))?;
    Ok(CreateOutcome::Created(created))
}

/// A patch that changes nothing writes nothing. A new URL starts a new verification; the generated column shows whether the
/// new URL is verified.
async fn update(
    mut connection: Conn,
    scope: &TenantScope,
    id: SubscriptionId,
    patch: &SubscriptionPatch,
) -> DbResult<UpdateOutcome> {
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let Some(before) = lock(&mut transaction, scope, id).await? else {
        transaction.rollback().await?;
        return Ok(UpdateOutcome::NotFound);
    };
    let after = before.patched(patch);
    let new_url = before.callback_url != after.callback_url;
    let new_topics = before.topics != after.topics;
    if (new_url || new_topics)
        && let Some(other) =
            taken(&mut transaction, &after.tenant, &after.topics, &after.callback_url).await?
    {
        transaction.rollback().await?;
        return Ok(UpdateOutcome::Exists(other));
    }
    let headers = patch.headers_for(&before.callback_url);
    // Values cannot be compared: headers that are given are new.
    if before != after || headers.flatten().is_some() {
        let parameters = (
            &after.topics,
            &after.callback_url,
            &after.description,
            after.active,
            after.max_retry_limit,
            after.rate_limit,
            &after.header_names,
            after.active,
            after.active,
            i64::from(new_url),
            id.0,
        );
        transaction.exec_drop(UPDATE, parameters).await?;
        let activated = after.active && !before.active;
        if new_url || activated {
            transaction.exec_drop(END_RUN, (id.0,)).await?;
        }
        if activated {
            transaction.exec_drop(CATCH_UP_NOW, (id.0,)).await?;
        }
        change_topics(&mut transaction, id, &after.tenant, Some(&before.topics), &after.topics).await?;
        if let Some(headers) = headers {
            transaction.exec_drop(DELETE_HEADERS, (id.0,)).await?;
            if let Some(SealedHeaders { secret, .. }) = headers {
                transaction.exec_drop(SET_HEADERS, (id.0, &secret.key_id, &secret.sealed)).await?;
            }
        }
    }
    let found = get(&mut transaction, id).await?;
    transaction.commit().await?;
    Ok(found.map_or(UpdateOutcome::NotFound, UpdateOutcome::Updated))
}

async fn delete(mut connection: Conn, scope: &TenantScope, id: SubscriptionId) -> DbResult<bool> {
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    if lock(&mut transaction, scope, id).await?.is_none() {
        transaction.rollback().await?;
        return Ok(false);
    }
    transaction.exec_drop(DELETE, (id.0,)).await?;
    for table in GONE_WITH_A_SUBSCRIPTION {
        let sql = format!("/* admin.delete_rows */ DELETE FROM {table} WHERE subscription_id = ?");
        transaction.exec_drop(sql, (id.0,)).await?;
    }
    transaction.commit().await?;
    Ok(true)
}

/// After this, at most `max_valid` secrets are valid, including the new one.
async fn rotate(mut connection: Conn, scope: &TenantScope, rotation: &SecretRotation) -> DbResult<bool> {
    let SecretRotation { subscription_id: id, secret, .. } = rotation;
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    if lock(&mut transaction, scope, *id).await?.is_none() {
        transaction.rollback().await?;
        return Ok(false);
    }
    // A statement after the lock sees what an earlier rotation left.
    let older: Vec<(i64, Option<SqlTime>, SqlTime)> = transaction.exec(VALID_SECRETS, (id.0,)).await?;
    for (newer, (secret_id, expires_at, now)) in older.into_iter().enumerate() {
        let end = rotation.end_of(newer, expires_at.map(|time| time.0), now.0);
        transaction.exec_drop(RETIRE, (SqlTime(end), secret_id)).await?;
    }
    transaction.exec_drop(ADD_SECRET, (id.0, &secret.key_id, &secret.sealed)).await?;
    transaction.commit().await?;
    Ok(true)
}
