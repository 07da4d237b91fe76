//! `key_admin` creates and revokes API keys, `portal_key_writer` those of portal sessions; `key_reader` looks them up.
//! Only their SHA-256 is stored.

use super::rows;
use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::{KeyId, Tenant};
use hooksaga_store::{
    ApiKey, KeyCareStore, KeyReaderStore, KeyStore, KeyView, NewApiKey, NewAuditRecord, NewPortalKey,
    PORTAL_SESSION, Page, PageRequest, PortalKeyStore, StoreResult, key_columns,
};
use rusqlite::{OptionalExtension, Row};

const INSERT_KEY: &str = "/* keys.insert_key */
INSERT INTO api_keys (name, scopes, sha256, tenant, created_at, expires_at, by_admin)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1)";

const INSERT_PORTAL_KEY: &str = "/* portal_keys.insert_key */
INSERT INTO api_keys (name, scopes, sha256, tenant, created_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

const LIST: &str = concat!("/* keys.list */ SELECT ", key_columns!(), " FROM api_keys ORDER BY id");

const NEWEST: &str = concat!(
    "/* portal_keys.newest */ SELECT ",
    key_columns!(),
    " FROM api_keys
 WHERE id < ?1 AND (revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?3)) = ?4
   AND (?5 IS NULL OR (name = ?6 AND tenant IS NOT NULL AND expires_at IS NOT NULL) = ?5)
 ORDER BY id DESC LIMIT ?2"
);

const REVOKE: &str = "/* keys.revoke */
UPDATE api_keys SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL";

const REVOKE_BY_API: &str = "/* portal_keys.revoke */
UPDATE api_keys SET revoked_at = ?2 WHERE id = ?1 AND revoked_at IS NULL";

const GET: &str = concat!("/* keys.get */ SELECT ", key_columns!(), " FROM api_keys WHERE id = ?1");

const READ_BY_API: &str =
    concat!("/* portal_keys.get */ SELECT ", key_columns!(), " FROM api_keys WHERE id = ?1");

const FIND: &str = concat!(
    "/* key_reader.find */ SELECT ",
    key_columns!(),
    " FROM api_keys WHERE sha256 = ?1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?2)"
);

const NOTE_USE: &str = "/* key_reader.note_use */
UPDATE api_keys SET last_used_at = ?2 WHERE id = ?1 AND (last_used_at IS NULL OR last_used_at < ?2)";

const RECORD: &str = "/* keys.record */
INSERT INTO audit_records (at, key_id, key_name, action, target, tenant) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

const RECORD_BY_API: &str = "/* portal_keys.record */
INSERT INTO audit_records (at, key_id, key_name, action, target, tenant) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

pub(crate) struct KeysSql(pub(crate) RoleHandle);

#[async_trait]
impl KeyCareStore for KeysSql {
    async fn revoke(&self, id: KeyId) -> StoreResult<Option<ApiKey>> {
        self.0.write(move |tx| revoke(tx, REVOKE, GET, id)).await
    }

    async fn record(&self, record: &NewAuditRecord) -> StoreResult<()> {
        let record = record.clone();
        self.0.write(move |tx| add_record(tx, RECORD, &record)).await
    }
}

#[async_trait]
impl KeyStore for KeysSql {
    async fn create(&self, key: &NewApiKey) -> StoreResult<ApiKey> {
        let key = key.clone();
        self.0.write(move |tx| create(tx, INSERT_KEY, key)).await
    }

    async fn list(&self) -> StoreResult<Vec<ApiKey>> {
        self.0.read(|tx| rows::all(tx, LIST, [], api_key)).await
    }
}

pub(crate) struct PortalKeysSql(pub(crate) RoleHandle);

#[async_trait]
impl KeyCareStore for PortalKeysSql {
    async fn revoke(&self, id: KeyId) -> StoreResult<Option<ApiKey>> {
        self.0.write(move |tx| revoke(tx, REVOKE_BY_API, READ_BY_API, id)).await
    }

    async fn record(&self, record: &NewAuditRecord) -> StoreResult<()> {
        let record = record.clone();
        self.0.write(move |tx| add_record(tx, RECORD_BY_API, &record)).await
    }
}

#[async_trait]
impl PortalKeyStore for PortalKeysSql {
    async fn create(&self, key: &NewPortalKey) -> StoreResult<ApiKey> {
        let key = key.clone().into();
        self.0.write(move |tx| create(tx, INSERT_PORTAL_KEY, key)).await
    }

    async fn newest(&self, view: KeyView, page: PageRequest) -> StoreResult<Page<ApiKey>> {
        let (before, limit) = (page.before.unwrap_or(i64::MAX), i64::from(page.limit) + 1);
        let read = move |tx: &Tx<'_>| {
            let now = tx.now.as_micros();
            let wanted = (before, limit, now, view.valid(), view.of_portal(), PORTAL_SESSION);
            rows::all(tx, NEWEST, wanted, api_key)
        };
        let rows = self.0.read(read).await?;
        Ok(Page::cut(rows, page.limit, |key| key.id.0))
    }
}

fn revoke(tx: &Tx<'_>, set: &'static str, read: &'static str, id: KeyId) -> DbResult<Option<ApiKey>> {
    tx.execute(set, (id.0, tx.now.as_micros()))?;
    Ok(tx.prepare(read)?.query_row([id.0], api_key).optional()?)
}

fn add_record(tx: &Tx<'_>, sql: &'static str, record: &NewAuditRecord) -> DbResult<()> {
    let tenant = record.tenant.as_ref().map(Tenant::as_str);
    let key_id = record.key_id.map(|id| id.0);
    tx.execute(sql, (tx.now.as_micros(), key_id, &record.key_name, &record.action, &record.target, tenant))?;
    Ok(())
}

pub(crate) struct KeyReaderSql(pub(crate) RoleHandle);

#[async_trait]
impl KeyReaderStore for KeyReaderSql {
    async fn find(&self, sha256: &[u8; 32]) -> StoreResult<Option<ApiKey>> {
        let sha256 = *sha256;
        self.0
            .read(move |tx| {
                let mut find = tx.prepare(FIND)?;
                Ok(find.query_row((&sha256[..], tx.now.as_micros()), api_key).optional()?)
            })
            .await
    }

    async fn note_use(&self, ids: &[KeyId]) -> StoreResult<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let ids = ids.to_vec();
        self.0
            .write(move |tx| {
                let mut note = tx.prepare(NOTE_USE)?;
                for id in ids {
                    note.execute((id.0, tx.now.as_micros()))?;
                }
                Ok(())
            })
            .await
    }
}

fn create(tx: &Tx<'_>, insert: &'static str, key: NewApiKey) -> DbResult<ApiKey> {
    let expires_at = key.expires_in.map(|valid| tx.now.after(valid));
    tx.execute(
        insert,
        (
            &key.name,
            key.scopes.to_string(),
            &key.sha256[..],
            key.tenant.as_ref().map(Tenant::as_str),
            tx.now.as_micros(),
            expires_at.map(hooksaga_saga::Timestamp::as_micros),
        ),
    )?;
    Ok(ApiKey {
        id: KeyId(tx.last_id()),
        name: key.name,
        scopes: key.scopes,
        tenant: key.tenant,
        created_at: tx.now,
        expires_at,
        revoked_at: None,
        last_used_at: None,
    })
}

fn api_key(row: &Row<'_>) -> rusqlite::Result<ApiKey> {
    Ok(ApiKey {
        id: KeyId(row.get(0)?),
        name: row.get(1)?,
        scopes: rows::parsed(row, 2)?,
        tenant: rows::optional_name(row, 3)?,
        created_at: rows::time(row, 4)?,
        expires_at: rows::optional_time(row, 5)?,
        revoked_at: rows::optional_time(row, 6)?,
        last_used_at: rows::optional_time(row, 7)?,
    })
}
