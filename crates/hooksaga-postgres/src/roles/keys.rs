//! `key_admin` creates and revokes API keys, `portal_key_writer` those of portal sessions; `key_reader` looks them up.
//! Only their SHA-256 is stored.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::rows::parsed,
    time::{SqlTime, micros},
};
use async_trait::async_trait;
use deadpool_postgres::Client;
use hooksaga_saga::{KeyId, Tenant};
use hooksaga_store::{
    ApiKey, KeyCareStore, KeyReaderStore, KeyStore, KeyView, NewApiKey, NewAuditRecord, NewPortalKey,
    PORTAL_SESSION, Page, PageRequest, PortalKeyStore, StoreResult, key_columns,
};
use tokio_postgres::{Row, types::ToSql};

const CREATE: &str = concat!(
    "/* keys.create */
INSERT INTO api_keys (name, scopes, sha256, tenant, expires_at, by_admin)
VALUES ($1, $2, $3, $4, now() + $5::bigint * interval '1 microsecond', true)
RETURNING ",
    key_columns!()
);

const CREATE_PORTAL_KEY: &str = concat!(
    "/* portal_keys.create */
INSERT INTO api_keys (name, scopes, sha256, tenant, expires_at)
VALUES ($1, $2, $3, $4, now() + $5::bigint * interval '1 microsecond')
RETURNING ",
    key_columns!()
);

const LIST: &str = concat!("/* keys.list */ SELECT ", key_columns!(), " FROM api_keys ORDER BY id");

const NEWEST: &str = concat!(
    "/* portal_keys.newest */ SELECT ",
    key_columns!(),
    " FROM api_keys
WHERE id < $1 AND (revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())) = $3
  AND ($4::boolean IS NULL OR (name = $5 AND tenant IS NOT NULL AND expires_at IS NOT NULL) = $4)
ORDER BY id DESC LIMIT $2"
);

/// A repeated call keeps the first time.
const REVOKE: &str = concat!(
    "/* keys.revoke */
UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1
RETURNING ",
    key_columns!()
);

const FIND: &str = concat!(
    "/* key_reader.find */ SELECT ",
    key_columns!(),
    " FROM api_keys
WHERE sha256 = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())"
);

/// In the order of ids, so that two processes wait for each other instead of deadlocking.
const NOTE_USE: &str = "/* key_reader.note_use */
WITH used AS MATERIALIZED (SELECT id FROM api_keys WHERE id = ANY ($1::bigint[]) ORDER BY id FOR NO KEY UPDATE)
UPDATE api_keys SET last_used_at = now() WHERE id = ANY (ARRAY(SELECT id FROM used))";

const RECORD: &str = "/* keys.record */
INSERT INTO audit_records (key_id, key_name, action, target, tenant) VALUES ($1, $2, $3, $4, $5)";

/// The keys, for each of the two roles that change them: each has its own pool.
pub(crate) struct KeysSql(pub(crate) RolePool);

#[async_trait]
impl KeyCareStore for KeysSql {
    async fn revoke(&self, id: KeyId) -> StoreResult<Option<ApiKey>> {
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(REVOKE).await?;
                client.query_opt(&statement, &[&id.0]).await?.as_ref().map(api_key).transpose()
            })
            .await
    }

    async fn record(&self, record: &NewAuditRecord) -> StoreResult<()> {
        let (key_id, tenant) = (record.key_id.map(|id| id.0), record.tenant.as_ref().map(Tenant::as_str));
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(RECORD).await?;
                let values: [&(dyn ToSql + Sync); 5] =
                    [&key_id, &record.key_name, &record.action, &record.target, &tenant];
                client.execute(&statement, &values).await?;
                Ok(())
            })
            .await
    }
}

#[async_trait]
impl KeyStore for KeysSql {
    async fn create(&self, key: &NewApiKey) -> StoreResult<ApiKey> {
        self.0.run(|client| create(client, CREATE, key)).await
    }

    async fn list(&self) -> StoreResult<Vec<ApiKey>> {
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(LIST).await?;
                client.query(&statement, &[]).await?.iter().map(api_key).collect()
            })
            .await
    }
}

#[async_trait]
impl PortalKeyStore for KeysSql {
    async fn create(&self, key: &NewPortalKey) -> StoreResult<ApiKey> {
        let key = key.clone().into();
        self.0.run(|client| create(client, CREATE_PORTAL_KEY, &key)).await
    }

    async fn newest(&self, view: KeyView, page: PageRequest) -> StoreResult<Page<ApiKey>> {
        let (before, limit) = (page.before.unwrap_or(i64::MAX), i64::from(page.limit) + 1);
        let (valid, of_portal) = (view.valid(), view.of_portal());
        let rows = self.0.run(|client| async move {
            let statement = client.prepare_cached(NEWEST).await?;
            let wanted: [&(dyn ToSql + Sync); 5] = [&before, &limit, &valid, &of_portal, &PORTAL_SESSION];
            let rows = client.query(&statement, &wanted).await?;
            rows.iter().map(api_key).collect::<DbResult<Vec<_>>>()
        });
        Ok(Page::cut(rows.await?, page.limit, |key| key.id.0))
    }
}

async fn create(client: Client, insert: &str, key: &NewApiKey) -> DbResult<ApiKey> {
    let (scopes, tenant) = (key.scopes.to_string(), key.tenant.as_ref().map(Tenant::as_str));
    let expires_in = key.expires_in.map(micros);
    let values: [&(dyn ToSql + Sync); 5] = [&key.name, &scopes, &&key.sha256[..], &tenant, &expires_in];
    let statement = client.prepare_cached(insert).await?;
    api_key(&client.query_one(&statement, &values).await?)
}

pub(crate) struct KeyReaderSql(pub(crate) RolePool);

#[async_trait]
impl KeyReaderStore for KeyReaderSql {
    async fn find(&self, sha256: &[u8; 32]) -> StoreResult<Option<ApiKey>> {
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(FIND).await?;
                client.query_opt(&statement, &[&&sha256[..]]).await?.as_ref().map(api_key).transpose()
            })
            .await
    }

    async fn note_use(&self, ids: &[KeyId]) -> StoreResult<()> {
        let ids: &Vec<i64> = &ids.iter().map(|id| id.0).collect();
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(NOTE_USE).await?;
                client.execute(&statement, &[ids]).await?;
                Ok(())
            })
            .await
    }
}

fn api_key(row: &Row) -> DbResult<ApiKey> {
    let time =
        |column: usize| -> DbResult<_> { Ok(row.try_get::<_, Option<SqlTime>>(column)?.map(|time| time.0)) };
    let tenant = row.try_get::<_, Option<&str>>(3)?.map(str::parse::<Tenant>).transpose();
    Ok(ApiKey {
        id: KeyId(row.try_get(0)?),
        name: row.try_get(1)?,
        scopes: parsed(row.try_get(2)?)?,
        tenant: tenant.map_err(DbError::unreadable)?,
        created_at: row.try_get::<_, SqlTime>(4)?.0,
        expires_at: time(5)?,
        revoked_at: time(6)?,
        last_used_at: time(7)?,
    })
}
