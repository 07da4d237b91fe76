//! `key_admin`: API keys. Only their SHA-256 is stored.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::rows::{parsed, take},
    time::Time,
};
use async_trait::async_trait;
use hooksaga_saga::KeyId;
use hooksaga_store::{ApiKey, KeyStore, NewApiKey, StoreResult};
use mysql_async::{Row, prelude::Queryable as _};

const CREATE: &str = "/* keys.create */ INSERT INTO api_keys (name, scopes, sha256) VALUES (?, ?, ?)";

const LIST: &str = "/* keys.list */
SELECT id, name, scopes, created_at, revoked_at FROM api_keys ORDER BY id";

const GET: &str = "/* keys.get */
SELECT id, name, scopes, created_at, revoked_at FROM api_keys WHERE id = ?";

/// The first time counts.
const REVOKE: &str = "/* keys.revoke */
UPDATE api_keys SET revoked_at = UTC_TIMESTAMP(6) WHERE id = ? AND revoked_at IS NULL";

const FIND: &str = "/* keys.find */
SELECT id, name, scopes, created_at, revoked_at FROM api_keys WHERE sha256 = ? AND revoked_at IS NULL";

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
            .run(|mut connection| async move {
                connection.exec_drop(CREATE, (&key.name, scopes, &key.sha256[..])).await?;
                let id = connection.last_insert_id();
                let row: Option<Row> = connection.exec_first(GET, (id,)).await?;
                api_key(row.ok_or_else(|| DbError::unreadable("a new key that cannot be seen"))?)
            })
            .await
    }

    async fn list(&self) -> StoreResult<Vec<ApiKey>> {
        self.pool
            .run(|mut connection| async move {
                let rows: Vec<Row> = connection.exec(LIST, ()).await?;
                rows.into_iter().map(api_key).collect()
            })
            .await
    }

    async fn revoke(&self, id: KeyId) -> StoreResult<Option<ApiKey>> {
        self.pool
            .run(|mut connection| async move {
                connection.exec_drop(REVOKE, (id.0,)).await?;
                let row: Option<Row> = connection.exec_first(GET, (id.0,)).await?;
                row.map(api_key).transpose()
            })
            .await
    }

    async fn find(&self, sha256: &[u8; 32]) -> StoreResult<Option<ApiKey>> {
        self.pool
            .run(|mut connection| async move {
                let row: Option<Row> = connection.exec_first(FIND, (&sha256[..],)).await?;
                row.map(api_key).transpose()
            })
            .await
    }
}

fn api_key(mut row: Row) -> DbResult<ApiKey> {
    let row = &mut row;
    Ok(ApiKey {
        id: KeyId(take(row, 0)?),
        name: take(row, 1)?,
        scopes: parsed(&take::<String>(row, 2)?)?,
        created_at: take::<Time>(row, 3)?.0,
        revoked_at: take::<Option<Time>>(row, 4)?.map(|time| time.0),
    })
}
