//! `subscription_verifier`: finds subscriptions that need verification and records the outcome.

use crate::{
    error::DbResult,
    pool::RolePool,
    roles::{
        rows::{bigint, integer, natural},
        worker::secret_key_ids,
    },
    time::{SqlTime, micros},
};
use async_trait::async_trait;
use deadpool_postgres::Client;
use hooksaga_saga::{ErrorCode, SecretId, SubscriptionId, Timestamp};
use hooksaga_store::{
    Check, CheckOutcome, CheckPicker, CheckTurn, OpenCheck, SealedSecret, StoreResult, StoredSecret,
    TakenChecks, VerifierStore,
};
use std::{collections::HashMap, time::Duration};
use tokio_postgres::Row;

/// A stretch of the index of open rounds by tenant. A new round is due whatever `next_check_at` says: that is what the
/// last one left.
pub(crate) const OPEN_CHECKS: &str = "/* verifier.open_checks */
SELECT tenant, id, check_round <> verification_round OR next_check_at <= now() FROM subscriptions
WHERE (check_round <> verification_round OR NOT check_done) AND deleted_at IS NULL AND tenant > $1
ORDER BY tenant, CASE WHEN check_round <> verification_round THEN '-infinity'::timestamptz ELSE next_check_at END, id
LIMIT $2";

/// Of the picked subscriptions those that are still due and that no other verifier is taking.
pub(crate) const TAKE_CHECKS: &str = "/* verifier.take_checks */
WITH due AS MATERIALIZED (
    SELECT id FROM subscriptions
    WHERE id = ANY ($1::bigint[]) AND (check_round <> verification_round OR NOT check_done) AND deleted_at IS NULL
      AND (check_round <> verification_round OR next_check_at <= now())
    FOR UPDATE SKIP LOCKED
)
UPDATE subscriptions s
SET check_attempts = CASE WHEN s.check_round = s.verification_round THEN s.check_attempts + 1 ELSE 1 END,
    check_round = s.verification_round,
    check_done = false,
    check_number = s.check_number + 1,
    next_check_at = now() + $2::bigint * interval '1 microsecond'
WHERE s.id = ANY (ARRAY(SELECT id FROM due))
RETURNING s.id, s.callback_url, s.check_round, s.check_attempts, s.check_number, s.tenant,
          CASE WHEN s.vouched_round = s.verification_round THEN s.vouched_by END, s.header_names IS NOT NULL";

pub(crate) const SECRETS: &str = "/* verifier.secrets */
SELECT subscription_id, id, key_id, sealed FROM subscription_secrets
WHERE subscription_id = ANY ($1::bigint[]) AND (expires_at IS NULL OR expires_at > now())
ORDER BY subscription_id, id DESC";

/// Read in one snapshot with the URL that they are for: a check of another one goes without them.
const HEADERS: &str = "/* verifier.headers */
SELECT s.id, s.callback_url, h.key_id, h.sealed
FROM subscriptions s JOIN subscription_headers h ON h.subscription_id = s.id WHERE s.id = ANY ($1::bigint[])";

/// Fenced by round, attempt and URL. $5: it is verified, $8: because somebody vouched for it; $6: the error otherwise;
/// $7: nothing for the round's last try. A URL that was verified before stays so when it fails.
const RECORD: &str = "/* verifier.record */
UPDATE subscriptions
SET verified_url = CASE WHEN $5 THEN callback_url ELSE verified_url END,
    trusted_by = CASE WHEN $5 THEN $8 ELSE trusted_by END,
    trusted_at = CASE WHEN NOT $5 THEN trusted_at WHEN $8::text IS NOT NULL THEN now() END,
    check_done = $7::bigint IS NULL,
    check_error = $6,
    checked_at = now(),
    next_check_at = now() + coalesce($7::bigint, 0) * interval '1 microsecond'
WHERE id = $1 AND verification_round = $2 AND check_round = $2 AND check_attempts = $3 AND callback_url = $4
  AND NOT check_done AND deleted_at IS NULL";

pub(crate) const FREE_STRANDED: &str = "/* verifier.free_stranded */
WITH stranded AS MATERIALIZED (
    SELECT id FROM subscriptions
    WHERE (check_round <> verification_round OR NOT check_done) AND deleted_at IS NULL
      AND next_check_at > now() + $2::bigint * interval '1 microsecond'
    ORDER BY next_check_at LIMIT $1
    FOR UPDATE SKIP LOCKED
)
UPDATE subscriptions SET next_check_at = now() WHERE id = ANY (ARRAY(SELECT id FROM stranded))";

const NEXT_CHECK_AT: &str = "/* verifier.next_check_at */
SELECT min(CASE WHEN check_round <> verification_round THEN least(next_check_at, now()) ELSE next_check_at END)
FROM subscriptions WHERE (check_round <> verification_round OR NOT check_done) AND deleted_at IS NULL";

pub(crate) struct VerifierSql(pub(crate) RolePool);

#[async_trait]
impl VerifierStore for VerifierSql {
    async fn take_checks_in_turn(&self, turn: &CheckTurn, hold: Duration) -> StoreResult<TakenChecks> {
        self.0
            .run(|client| async move {
                let (picked, resume_after) = pick(&client, turn).await?;
                let taken = |checks| TakenChecks { checks, resume_after };
                if picked.is_empty() {
                    return Ok(taken(Vec::new()));
                }
                let statement = client.prepare_cached(TAKE_CHECKS).await?;
                let rows = client.query(&statement, &[&picked, &micros(hold)]).await?;
                let mut checks: Vec<Check> = rows
                    .iter()
                    .map(|row| {
                        Ok(Check {
                            subscription_id: SubscriptionId(row.try_get(0)?),
                            tenant: row.try_get(5)?,
                            callback_url: row.try_get(1)?,
                            round: row.try_get(2)?,
                            attempt: natural(row.try_get(3)?),
                            number: row.try_get(4)?,
                            secrets: Vec::new(),
                            headers: None,
                            vouched_by: row.try_get(6)?,
                        })
                    })
                    .collect::<DbResult<_>>()?;
                if checks.is_empty() {
                    return Ok(taken(checks));
                }
                let ids: Vec<i64> = checks.iter().map(|check| check.subscription_id.0).collect();
                let statement = client.prepare_cached(SECRETS).await?;
                let mut secrets: HashMap<SubscriptionId, Vec<StoredSecret>> = HashMap::new();
                for row in client.query(&statement, &[&ids]).await? {
                    let secret = SealedSecret { key_id: row.try_get(2)?, sealed: row.try_get(3)? };
                    let stored = StoredSecret { id: SecretId(row.try_get(1)?), secret };
                    secrets.entry(SubscriptionId(row.try_get(0)?)).or_default().push(stored);
                }
                let with_headers = with_headers(&rows)?;
                let mut headers: HashMap<(i64, String), SealedSecret> = HashMap::new();
                if !with_headers.is_empty() {
                    let statement = client.prepare_cached(HEADERS).await?;
                    for row in client.query(&statement, &[&with_headers]).await? {
                        let secret = SealedSecret { key_id: row.try_get(2)?, sealed: row.try_get(3)? };
                        headers.insert((row.try_get(0)?, row.try_get(1)?), secret);
                    }
                }
                for check in &mut checks {
                    check.headers = headers.remove(&(check.subscription_id.0, check.callback_url.clone()));
                    check.secrets = secrets.remove(&check.subscription_id).unwrap_or_default();
                }
                Ok(taken(checks))
            })
            .await
    }

    async fn record(&self, check: &Check, outcome: &CheckOutcome) -> StoreResult<bool> {
        let (verified, error, delay) = match outcome {
            CheckOutcome::Verified | CheckOutcome::Trusted => (true, None, None),
            CheckOutcome::Retry(code, delay) => (false, Some(code.as_str()), Some(micros(*delay))),
            CheckOutcome::GivenUp(code) => (false, Some(ErrorCode::as_str(code)), None),
        };
        let attempt = integer(check.attempt);
        let trusted_by = check.vouched_by.as_ref().filter(|_| *outcome == CheckOutcome::Trusted);
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(RECORD).await?;
                let changed = client
                    .execute(
                        &statement,
                        &[
                            &check.subscription_id.0,
                            &check.round,
                            &attempt,
                            &check.callback_url,
                            &verified,
                            &error,
                            &delay,
                            &trusted_by,
                        ],
                    )
                    .await?;
                Ok(changed > 0)
            })
            .await
    }

    async fn free_stranded(&self, limit: u32, furthest: Duration) -> StoreResult<u64> {
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(FREE_STRANDED).await?;
                Ok(client.execute(&statement, &[&bigint(limit), &micros(furthest)]).await?)
            })
            .await
    }

    async fn next_check_at(&self) -> StoreResult<Option<Timestamp>> {
        self.0
            .run(|client| async move {
                let statement = client.prepare_cached(NEXT_CHECK_AT).await?;
                let row = client.query_one(&statement, &[]).await?;
                Ok(row.try_get::<_, Option<SqlTime>>(0)?.map(|time| time.0))
            })
            .await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        secret_key_ids(&self.0).await
    }
}

/// The subscriptions whose turn it is, and the tenant after which the next turn begins.
async fn pick(client: &Client, turn: &CheckTurn) -> DbResult<(Vec<i64>, Option<String>)> {
    let statement = client.prepare_cached(OPEN_CHECKS).await?;
    let mut picker = CheckPicker::new(turn);
    while let Some((after, length)) = picker.next_stretch() {
        let rows = client.query(&statement, &[&after, &bigint(length)]).await?;
        let open = |row: &Row| {
            let subscription_id = SubscriptionId(row.try_get(1)?);
            Ok(OpenCheck { tenant: row.try_get(0)?, subscription_id, due: row.try_get(2)? })
        };
        picker.read(&rows.iter().map(open).collect::<DbResult<Vec<_>>>()?);
    }
    let (picked, resume_after) = picker.finish();
    Ok((picked.into_iter().map(|id| id.0).collect(), resume_after))
}

/// The subscriptions of [`TAKE_CHECKS`] that have headers.
fn with_headers(rows: &[Row]) -> DbResult<Vec<i64>> {
    let mut ids = Vec::new();
    for row in rows {
        if row.try_get(7)? {
            ids.push(row.try_get(0)?);
        }
    }
    Ok(ids)
}
