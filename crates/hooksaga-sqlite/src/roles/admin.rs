//! `subscription_admin`: configures subscriptions. It never writes the verification columns.

use super::{
    rows,
    subscription::{names, subscription, subscription_columns},
};
use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::SubscriptionId;
use hooksaga_store::{
    CreateOutcome, GONE_WITH_A_SUBSCRIPTION, NewSubscription, SealedHeaders, SealedSecret, Sealer, Seals,
    SecretRotation, StoreResult, Subscription, SubscriptionAdminStore, SubscriptionPatch, TenantScope,
    UpdateOutcome,
};
use rusqlite::OptionalExtension;

/// The column's default requests its first round of verification.
const INSERT_SUBSCRIPTION: &str = "/* admin.insert_subscription */
INSERT INTO subscriptions
    (tenant, event_type, callback_url, description, active, max_retry_limit, rate_limit, header_names, next_check_at,
     created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9, ?9)";

const INSERT_TOPIC: &str = "/* admin.insert_topic */
INSERT INTO subscription_topics (tenant, topic, subscription_id) VALUES (?1, ?2, ?3)";

const DELETE_TOPICS: &str = "/* admin.delete_topics */
DELETE FROM subscription_topics WHERE subscription_id = ?1";

const GET: &str = concat!(
    "/* admin.get */ SELECT ",
    subscription_columns!(),
    " FROM subscriptions WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2) AND deleted_at IS NULL"
);

const TAKEN: &str = "/* admin.taken */
SELECT id FROM subscriptions
 WHERE tenant = ?1 AND event_type = ?2 AND callback_url = ?3 AND deleted_at IS NULL";

const UPDATE: &str = "/* admin.update */
UPDATE subscriptions
   SET event_type = ?2, callback_url = ?3, description = ?4, active = ?5, max_retry_limit = ?6, rate_limit = ?7,
       header_names = ?10,
       disabled_reason = iif(?5, NULL, disabled_reason), disabled_at = iif(?5, NULL, disabled_at),
       verification_round = verification_round + ?8, updated_at = ?9
 WHERE id = ?1";

/// Deletes the counters of a failing endpoint: they were those of another URL, or counting starts again.
const END_RUN: &str = "/* admin.end_run */
UPDATE endpoint_failures SET since = NULL, failures = 0, announced = 0, gone_url = NULL WHERE subscription_id = ?1";

/// The scan that catches up, and waited while it was paused, continues at once.
const CATCH_UP_NOW: &str = "/* admin.catch_up_now */
UPDATE catch_ups SET next_at = ?2 WHERE subscription_id = ?1";

const REQUEST_VERIFICATION: &str = "/* admin.request_verification */
UPDATE subscriptions
   SET verification_round = verification_round + 1, vouched_by = ?3,
       vouched_round = iif(?3 IS NULL, NULL, verification_round + 1)
 WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2) AND deleted_at IS NULL";

const ADD_SECRET: &str = "/* admin.add_secret */
INSERT INTO subscription_secrets (subscription_id, key_id, sealed, created_at) VALUES (?1, ?2, ?3, ?4)";

const SET_HEADERS: &str = "/* admin.set_headers */
INSERT INTO subscription_headers (subscription_id, key_id, sealed) VALUES (?1, ?2, ?3)";

const DELETE_HEADERS: &str = "/* admin.delete_headers */
DELETE FROM subscription_headers WHERE subscription_id = ?1";

/// It is inactive from now on, so queries for active subscriptions need not exclude deleted ones.
const DELETE: &str = "/* admin.delete */
UPDATE subscriptions SET active = 0, header_names = NULL, deleted_at = ?2, updated_at = ?2 WHERE id = ?1";

const VALID_SECRETS: &str = "/* admin.valid_secrets */
SELECT id, expires_at FROM subscription_secrets
 WHERE subscription_id = ?1 AND (expires_at IS NULL OR expires_at > ?2) ORDER BY id DESC";

const RETIRE: &str = "/* admin.retire */
UPDATE subscription_secrets SET expires_at = ?2 WHERE id = ?1";

/// Secrets that have expired are of no interest: nobody opens them again.
const SECRET_KEY_IDS: &str = "/* admin.secret_key_ids */
SELECT key_id FROM subscription_secrets WHERE expires_at IS NULL OR expires_at > ?1
 UNION SELECT key_id FROM subscription_headers ORDER BY key_id";

pub(crate) struct AdminSql(pub(crate) RoleHandle);

#[async_trait]
impl SubscriptionAdminStore for AdminSql {
    async fn create(&self, new: &NewSubscription, secrets: &dyn Seals) -> StoreResult<CreateOutcome> {
        let (new, seal) = (new.clone(), secrets.sealer());
        self.0.write(move |tx| create(tx, &new, &seal)).await
    }

    async fn update(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
        patch: &SubscriptionPatch,
    ) -> StoreResult<UpdateOutcome> {
        let (scope, patch) = (scope.clone(), patch.clone());
        self.0.write(move |tx| update(tx, &scope, id, patch)).await
    }

    async fn request_verification(
        &self,
        scope: &TenantScope,
        id: SubscriptionId,
        vouched_by: Option<&str>,
    ) -> StoreResult<Option<Subscription>> {
        let (scope, vouched_by) = (scope.clone(), vouched_by.map(str::to_owned));
        self.0
            .write(move |tx| {
                tx.execute(REQUEST_VERIFICATION, (id.0, scope.tenant(), &vouched_by))?;
                read(tx, &scope, id)
            })
            .await
    }

    async fn delete(&self, scope: &TenantScope, id: SubscriptionId) -> StoreResult<bool> {
        let scope = scope.clone();
        self.0
            .write(move |tx| {
                if read(tx, &scope, id)?.is_none() {
                    return Ok(false);
                }
                tx.execute(DELETE, (id.0, tx.now.as_micros()))?;
                for table in GONE_WITH_A_SUBSCRIPTION {
                    let sql =
                        format!("/* admin.delete_rows */ DELETE FROM {table} WHERE subscription_id = ?1");
                    tx.execute(&sql, [id.0])?;
                }
                Ok(true)
            })
            .await
    }

    async fn rotate_secret(&self, scope: &TenantScope, rotation: &SecretRotation) -> StoreResult<bool> {
        let (scope, rotation) = (scope.clone(), rotation.clone());
        self.0.write(move |tx| rotate_secret(tx, &scope, &rotation)).await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        self.0.read(|tx| rows::all(tx, SECRET_KEY_IDS, [tx.now.as_micros()], |row| row.get(0))).await
    }
}

fn create(tx: &Tx<'_>, new: &NewSubscription, seal: &Sealer) -> DbResult<CreateOutcome> {
    let (tenant, topics, url) = (new.tenant.as_str(), new.topics.as_str(), new.callback_url.as_str());
    // Nobody else writes during this transaction: what is free now is free for the insert.
    if let Some(existing) = find(tx, tenant, topics, url)? {
        return Ok(CreateOutcome::Exists(existing));
    }
    tx.execute(
        INSERT_SUBSCRIPTION,
        (
            tenant,
            topics,
            url,
            &new.description,
            new.active,
            new.max_retry_limit,
            new.rate_limit,
            &new.headers,
            tx.now.as_micros(),
        ),
    )?;
    let id = SubscriptionId(tx.last_id());
    insert_topics(tx, id, tenant, topics)?;
    let sealed = seal(id);
    if let Some(headers) = sealed.headers.filter(|_| new.headers.is_some()) {
        insert_headers(tx, id, &headers)?;
    }
    insert_secret(tx, id, &sealed.secret)?;
    Ok(CreateOutcome::Created(read_again(tx, id)?))
}

fn update(
    tx: &Tx<'_>,
    scope: &TenantScope,
    id: SubscriptionId,
    patch: SubscriptionPatch,
) -> DbResult<UpdateOutcome> {
    let Some(old) = read(tx, scope, id)? else {
        return Ok(UpdateOutcome::NotFound);
    };
    let headers = patch.headers_for(&old.callback_url).map(Option::<&SealedHeaders>::cloned);
    let header_names = match &headers {
        Some(Some(headers)) => names(&headers.names),
        Some(None) => Vec::new(),
        None => old.headers.clone(),
    };
    let new = Subscription {
        event_type: patch.topics.map_or_else(|| old.event_type.clone(), |topics| topics.as_str().to_owned()),
        callback_url: patch
            .callback_url
            .map_or_else(|| old.callback_url.clone(), |url| url.as_str().to_owned()),
        description: patch.description.unwrap_or_else(|| old.description.clone()),
        active: patch.active.unwrap_or(old.active),
        max_retry_limit: patch.max_retry_limit.unwrap_or(old.max_retry_limit),
        rate_limit: patch.rate_limit.unwrap_or(old.rate_limit),
        headers: header_names,
        ..old.clone()
    };
    // Values cannot be compared: headers that are given are new.
    if new == old && !matches!(headers, Some(Some(_))) {
        return Ok(UpdateOutcome::Updated(old));
    }
    let taken = find(tx, &new.tenant, &new.event_type, &new.callback_url)?;
    if let Some(existing) = taken.filter(|existing| *existing != id) {
        return Ok(UpdateOutcome::Exists(existing));
    }
    let new_rounds = i64::from(new.callback_url != old.callback_url);
    tx.execute(
        UPDATE,
        (
            id.0,
            &new.event_type,
            &new.callback_url,
            &new.description,
            new.active,
            new.max_retry_limit,
            new.rate_limit,
            new_rounds,
            tx.now.as_micros(),
            Some(new.headers.join(",")).filter(|names| !names.is_empty()),
        ),
    )?;
    let activated = new.active && !old.active;
    if new.callback_url != old.callback_url || activated {
        tx.execute(END_RUN, [id.0])?;
    }
    if activated {
        tx.execute(CATCH_UP_NOW, (id.0, tx.now.as_micros()))?;
    }
    if let Some(headers) = headers {
        tx.execute(DELETE_HEADERS, [id.0])?;
        if let Some(headers) = headers {
            insert_headers(tx, id, &headers.secret)?;
        }
    }
    if new.event_type != old.event_type {
        tx.execute(DELETE_TOPICS, [id.0])?;
        insert_topics(tx, id, &new.tenant, &new.event_type)?;
    }
    Ok(UpdateOutcome::Updated(read_again(tx, id)?))
}

/// Puts a subscription into the routing index. `topics` is the canonical text, whose topics are distinct.
fn insert_topics(tx: &Tx<'_>, id: SubscriptionId, tenant: &str, topics: &str) -> DbResult<()> {
    let mut insert = tx.prepare(INSERT_TOPIC)?;
    for topic in topics.split(',') {
        insert.execute((tenant, topic, id.0))?;
    }
    Ok(())
}

fn rotate_secret(tx: &Tx<'_>, scope: &TenantScope, rotation: &SecretRotation) -> DbResult<bool> {
    let id = rotation.subscription_id;
    if read(tx, scope, id)?.is_none() {
        return Ok(false);
    }
    let older = rows::all(tx, VALID_SECRETS, (id.0, tx.now.as_micros()), |row| {
        Ok((row.get::<_, i64>(0)?, rows::optional_time(row, 1)?))
    })?;
    for (newer, (secret_id, expires_at)) in older.into_iter().enumerate() {
        let end = rotation.end_of(newer, expires_at, tx.now);
        tx.execute(RETIRE, (secret_id, end.as_micros()))?;
    }
    insert_secret(tx, id, &rotation.secret)?;
    Ok(true)
}

fn read(tx: &Tx<'_>, scope: &TenantScope, id: SubscriptionId) -> DbResult<Option<Subscription>> {
    Ok(tx.prepare(GET)?.query_row((id.0, scope.tenant()), subscription).optional()?)
}

/// One that this transaction has just written.
fn read_again(tx: &Tx<'_>, id: SubscriptionId) -> DbResult<Subscription> {
    Ok(tx.prepare(GET)?.query_row((id.0, None::<&str>), subscription)?)
}

fn find(tx: &Tx<'_>, tenant: &str, topics: &str, callback_url: &str) -> DbResult<Option<SubscriptionId>> {
    let found = tx.prepare(TAKEN)?.query_row([tenant, topics, callback_url], |row| row.get(0)).optional()?;
    Ok(found.map(SubscriptionId))
}

fn insert_headers(tx: &Tx<'_>, id: SubscriptionId, headers: &SealedSecret) -> DbResult<()> {
    tx.execute(SET_HEADERS, (id.0, &headers.key_id, &headers.sealed))?;
    Ok(())
}

fn insert_secret(tx: &Tx<'_>, id: SubscriptionId, secret: &SealedSecret) -> DbResult<()> {
    tx.execute(ADD_SECRET, (id.0, &secret.key_id, &secret.sealed, tx.now.as_micros()))?;
    Ok(())
}
