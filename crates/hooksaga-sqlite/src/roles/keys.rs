//! `key_admin`: API keys. Only their SHA-256 is stored.

use super::rows;
use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::KeyId;
use hooksaga_store::{ApiKey, KeyStore, NewApiKey, StoreResult};
use rusqlite::{OptionalExtension, Row};

const INSERT_KEY: &str = "/* key_admin: insert_key */
INSERT INTO api_keys (name, scopes, sha256, created_at) VALUES (?1, ?2, ?3, ?4)";

const LIST: &str = "/* key_admin: list */
SELECT id, name, scopes, created_at, revoked_at FROM api_keys ORDER BY id";

const REVOKE: &str = "/* key_admin: revoke */
UPDATE api_keys SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL";

const READ: &str = "/* key_admin: read */
SELECT id, name, scopes, created_at, revoked_at FROM api_keys WHERE id = ?1";

const FIND: &str = "/* key_admin: find */
SELECT id, name, scopes, created_at, revoked_at FROM api_keys WHERE sha256 = ?1 AND revoked_at IS NULL";

pub(crate) struct Keys(pub(crate) RoleHandle);

#[async_trait]
impl KeyStore for Keys {
    async fn create(&self, key: &NewApiKey) -> StoreResult<ApiKey> {
        let key = key.clone();
        self.0.write(move |tx| create(tx, key)).await
    }

    async fn list(&self) -> StoreResult<Vec<ApiKey>> {
        self.0.read(|tx| rows::all(tx, LIST, [], api_key)).await
    }

    async fn revoke(&self, id: KeyId) -> StoreResult<Option<ApiKey>> {
        self.0
            .write(move |tx| {
                tx.execute(REVOKE, (id.0, tx.now.as_micros()))?;
                Ok(tx.prepare(READ)?.query_row([id.0], api_key).optional()?)
            })
            .await
    }

    async fn find(&self, sha256: &[u8; 32]) -> StoreResult<Option<ApiKey>> {
        let sha256 = *sha256;
        self.0.read(move |tx| Ok(tx.prepare(FIND)?.query_row([&sha256[..]], api_key).optional()?)).await
    }
}

fn create(tx: &Tx<'_>, key: NewApiKey) -> DbResult<ApiKey> {
    tx.execute(INSERT_KEY, (&key.name, key.scopes.to_string(), &key.sha256[..], tx.now.as_micros()))?;
    Ok(ApiKey {
        id: KeyId(tx.last_id()),
        name: key.name,
        scopes: key.scopes,
        created_at: tx.now,
        revoked_at: None,
    })
}

fn api_key(row: &Row<'_>) -> rusqlite::Result<ApiKey> {
    Ok(ApiKey {
        id: KeyId(row.get(0)?),
        name: row.get(1)?,
        scopes: rows::parsed(row, 2)?,
        created_at: rows::time(row, 3)?,
        revoked_at: rows::optional_time(row, 4)?,
    })
}
