//! `key_admin` creates and revokes API keys, `portal_key_writer` those of portal sessions; `key_reader` looks them up.
//! Only their SHA-256 is stored.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        batch::Batch,
        rows::{parsed, take},
    },
    time::{SqlTime, micros},
};
use async_trait::async_trait;
use hooksaga_saga::{KeyId, Tenant};
use hooksaga_store::{
    ApiKey, KeyCareStore, KeyReaderStore, KeyStore, KeyView, NewApiKey, NewAuditRecord, NewPortalKey,
    PORTAL_SESSION, Page, PageRequest, PortalKeyStore, StoreResult, key_columns,
};
use mysql_async::{Conn, Row, prelude::Queryable as _};

/// Without a duration the key has no end: a sum with NULL is NULL.
const CREATE: &str = "/* keys.create */
INSERT INTO api_keys (name, scopes, sha256, tenant, expires_at, by_admin)
VALUES (?, ?, ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, TRUE)";

const CREATE_PORTAL_KEY: &str = "/* portal_keys.create */
INSERT INTO api_keys (name, scopes, sha256, tenant, expires_at)
VALUES (?, ?, ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)";

const LIST: &str = concat!("/* keys.list */ SELECT ", key_columns!(), " FROM api_keys ORDER BY id");

const NEWEST: &str = concat!(
    "/* portal_keys.newest */ SELECT ",
    key_columns!(),
    " FROM api_keys
WHERE id < ? AND (revoked_at IS NULL AND (expires_at IS NULL OR expires_at > UTC_TIMESTAMP(6))) = ?
  AND (? IS NULL OR (name = ? AND tenant IS NOT NULL AND expires_at IS NOT NULL) = ?)
ORDER BY id DESC LIMIT ?"
);

const GET: &str = concat!("/* keys.get */ SELECT ", key_columns!(), " FROM api_keys WHERE id = ?");

/// A repeated call keeps the first time.
const REVOKE: &str = "/* keys.revoke */
UPDATE api_keys SET revoked_at = UTC_TIMESTAMP(6) WHERE id = ? AND revoked_at IS NULL";

const FIND: &str = concat!(
    "/* key_reader.find */ SELECT ",
    key_columns!(),
    " FROM api_keys FORCE INDEX (uniq_key_sha256)
WHERE sha256 = ? AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > UTC_TIMESTAMP(6))"
);

const NOTE_USE: &str = "/* key_reader.note_use */
UPDATE (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN api_keys k FORCE INDEX (PRIMARY) ON k.id = u.id
SET k.last_used_at = UTC_TIMESTAMP(6)";

const RECORD: &str = "/* keys.record */
INSERT INTO audit_records (key_id, key_name, action, target, tenant) VALUES (?, ?, ?, ?, ?)";

/// The keys, for each of the two roles that change them: each has its own pool.
pub(crate) struct KeysSql(pub(crate) RolePool);

#[async_trait]
impl KeyCareStore for KeysSql {
    async fn revoke(&self, id: KeyId) -> StoreResult<Option<ApiKey>> {
        self.0
            .run(|mut connection| async move {
                connection.exec_drop(REVOKE, (id.0,)).await?;
                let row: Option<Row> = connection.exec_first(GET, (id.0,)).await?;
                row.map(api_key).transpose()
            })
            .await
    }

    async fn record(&self, record: &NewAuditRecord) -> StoreResult<()> {
        self.0
            .run(|mut connection| async move {
                let tenant = record.tenant.as_ref().map(Tenant::as_str);
                let key_id = record.key_id.map(|id| id.0);
                let values = (key_id, &record.key_name, &record.action, &record.target, tenant);
                connection.exec_drop(RECORD, values).await?;
                Ok(())
            })
            .await
    }
}

#[async_trait]
impl KeyStore for KeysSql {
    async fn create(&self, key: &NewApiKey) -> StoreResult<ApiKey> {
        self.0.run(|connection| create(connection, CREATE, key)).await
    }

    async fn list(&self) -> StoreResult<Vec<ApiKey>> {
        self.0
            .run(|mut connection| async move {
                let rows: Vec<Row> = connection.exec(LIST, ()).await?;
                rows.into_iter().map(api_key).collect()
            })
            .await
    }
}

#[async_trait]
impl PortalKeyStore for KeysSql {
    async fn create(&self, key: &NewPortalKey) -> StoreResult<ApiKey> {
        let key = key.clone().into();
        self.0.run(|connection| create(connection, CREATE_PORTAL_KEY, &key)).await
    }

    async fn newest(&self, view: KeyView, page: PageRequest) -> StoreResult<Page<ApiKey>> {
        let (before, limit) = (page.before.unwrap_or(i64::MAX), i64::from(page.limit) + 1);
        let of_portal = view.of_portal();
        let wanted = (before, view.valid(), of_portal, PORTAL_SESSION, of_portal, limit);
        let rows = self.0.run(|mut connection| async move {
            let rows: Vec<Row> = connection.exec(NEWEST, wanted).await?;
            rows.into_iter().map(api_key).collect::<DbResult<Vec<_>>>()
        });
        Ok(Page::cut(rows.await?, page.limit, |key| key.id.0))
    }
}

async fn create(mut connection: Conn, insert: &str, key: &NewApiKey) -> DbResult<ApiKey> {
    let tenant = key.tenant.as_ref().map(Tenant::as_str);
    let scopes = key.scopes.to_string();
    let parameters = (&key.name, scopes, &key.sha256[..], tenant, key.expires_in.map(micros));
    connection.exec_drop(insert, parameters).await?;
    let id = connection.last_insert_id();
    let row: Option<Row> = connection.exec_first(GET, (id,)).await?;
    api_key(row.ok_or_else(|| DbError::unreadable("a new key that cannot be seen"))?)
}

pub(crate) struct KeyReaderSql(pub(crate) RolePool);

#[async_trait]
impl KeyReaderStore for KeyReaderSql {
    async fn find(&self, sha256: &[u8; 32]) -> StoreResult<Option<ApiKey>> {
        self.0
            .run(|mut connection| async move {
                let row: Option<Row> = connection.exec_first(FIND, (&sha256[..],)).await?;
                row.map(api_key).transpose()
            })
            .await
    }

    async fn note_use(&self, ids: &[KeyId]) -> StoreResult<()> {
        let mut sorted: Vec<i64> = ids.iter().map(|id| id.0).collect();
        sorted.sort_unstable();
        let documents = &Batch::ids(sorted);
        self.0
            .run(|mut connection| async move {
                for document in documents {
                    connection.exec_drop(NOTE_USE, (document,)).await?;
                }
                Ok(())
            })
            .await
    }
}

fn api_key(mut row: Row) -> DbResult<ApiKey> {
    let row = &mut row;
    let tenant = take::<Option<String>>(row, 3)?;
    Ok(ApiKey {
        id: KeyId(take(row, 0)?),
        name: take(row, 1)?,
        scopes: parsed(&take::<String>(row, 2)?)?,
        tenant: tenant.map(|tenant| tenant.parse::<Tenant>()).transpose().map_err(DbError::unreadable)?,
        created_at: take::<SqlTime>(row, 4)?.0,
        expires_at: take::<Option<SqlTime>>(row, 5)?.map(|time| time.0),
        revoked_at: take::<Option<SqlTime>>(row, 6)?.map(|time| time.0),
        last_used_at: take::<Option<SqlTime>>(row, 7)?.map(|time| time.0),
    })
}
