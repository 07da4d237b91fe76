//! `key_admin`: API keys. Only their SHA-256 is stored.

use crate::{error::DbResult, pool::RolePool, roles::rows::parsed, time::Time};
use async_trait::async_trait;
use hooksaga_saga::KeyId;
use hooksaga_store::{ApiKey, KeyStore, NewApiKey, StoreResult};
use tokio_postgres::Row;

const CREATE: &str = "/* keys.create */
INSERT INTO api_keys (name, scopes, sha256) VALUES ($1, $2, $3)
RETURNING id, name, scopes, created_at, revoked_at";

const LIST: &str = "/* keys.list */
SELECT id, name, scopes, created_at, revoked_at FROM api_keys ORDER BY id";

/// The first time counts.
const REVOKE: &str = "/* keys.revoke */
UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1
RETURNING id, name, scopes, created_at, revoked_at";

const FIND: &str = "/* keys.find */
SELECT id, name, scopes, created_at, revoked_at FROM api_keys WHERE sha256 = $1 AND revoked_at IS NULL";

pub(crate) struct Keys {
    pool: RolePool,
}

impl Keys {
    pub(crate) fn new(pool: RolePool) -> Self {
        Self { pool }
    }
}

#[async_trait]
impl KeyStore for Keys {
    async fn create(&self, key: &NewApiKey) -> StoreResult<ApiKey> {
        let scopes = &key.scopes.to_string();
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(CREATE).await?;
                let row = client.query_one(&statement, &[&key.name, scopes, &&key.sha256[..]]).await?;
                api_key(&row)
            })
            .await
    }

    async fn list(&self) -> StoreResult<Vec<ApiKey>> {
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(LIST).await?;
                client.query(&statement, &[]).await?.iter().map(api_key).collect()
            })
            .await
    }

    async fn revoke(&self, id: KeyId) -> StoreResult<Option<ApiKey>> {
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(REVOKE).await?;
                client.query_opt(&statement, &[&id.0]).await?.as_ref().map(api_key).transpose()
            })
            .await
    }

    async fn find(&self, sha256: &[u8; 32]) -> StoreResult<Option<ApiKey>> {
        self.pool
            .run(|client| async move {
                let statement = client.prepare_cached(FIND).await?;
                client.query_opt(&statement, &[&&sha256[..]]).await?.as_ref().map(api_key).transpose()
            })
            .await
    }
}

fn api_key(row: &Row) -> DbResult<ApiKey> {
    Ok(ApiKey {
        id: KeyId(row.try_get(0)?),
        name: row.try_get(1)?,
        scopes: parsed(row.try_get(2)?)?,
        created_at: row.try_get::<_, Time>(3)?.0,
        revoked_at: row.try_get::<_, Option<Time>>(4)?.map(|time| time.0),
    })
}
