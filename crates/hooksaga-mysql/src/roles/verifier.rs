//! `subscription_verifier`: finds subscriptions that need verification and records the outcome.

use crate::{
    error::{DbError, DbResult},
    pool::RolePool,
    roles::{
        batch::Batch,
        rows::{natural, take},
        worker::secret_key_ids,
    },
    time::{SqlTime, micros},
};
use async_trait::async_trait;
use hooksaga_saga::{ErrorCode, SecretId, SubscriptionId, Timestamp};
use hooksaga_store::{
    Check, CheckOutcome, CheckPicker, CheckTurn, OpenCheck, SealedSecret, StoreResult, StoredSecret,
    TakenChecks, VerifierStore,
};
use mysql_async::{Conn, Row, TxOpts, Value, prelude::Queryable as _};
use std::{collections::HashMap, time::Duration};

/// The clock, when a check that begins now may be taken over, and whether there is anything to do, before a transaction
/// is begun: an idle pass is this one statement.
pub(crate) const PEEK: &str = "/* verifier.peek */
SELECT UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,
       EXISTS (SELECT 1 FROM subscriptions FORCE INDEX (idx_sub_open_check)
               WHERE open_check_at <= UTC_TIMESTAMP(6))";

/// A range of the index of open rounds by tenant, in which a new round is always due.
pub(crate) const OPEN_CHECKS: &str = "/* verifier.open_checks */
SELECT open_check_tenant, id, open_check_at <= ?
FROM subscriptions FORCE INDEX (idx_sub_open_check_tenant)
WHERE open_check_tenant > ? ORDER BY open_check_tenant, open_check_at, id LIMIT ?";

/// Of the picked subscriptions those that are still due and that no other verifier is taking.
pub(crate) const PICK: &str = "/* verifier.pick */
SELECT s.id, s.callback_url, s.verification_round, IF(s.check_round = s.verification_round, s.check_attempts, 0) + 1,
       s.check_number + 1, s.tenant, IF(s.vouched_round = s.verification_round, s.vouched_by, NULL),
       s.header_names IS NOT NULL
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = u.id
WHERE s.open_check_at <= ? FOR UPDATE SKIP LOCKED";

/// An assignment may see the new values of columns that are assigned before it: so check_round comes after check_attempts.
pub(crate) const HOLD: &str = "/* verifier.hold */
UPDATE (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = u.id
SET s.check_attempts = IF(s.check_round = s.verification_round, s.check_attempts, 0) + 1,
    s.check_round = s.verification_round, s.check_done = FALSE, s.check_number = s.check_number + 1,
    s.next_check_at = ?";

pub(crate) const SECRETS: &str = "/* verifier.secrets */
SELECT k.subscription_id, k.id, k.key_id, k.sealed
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN subscription_secrets k FORCE INDEX (idx_secret_subscription) ON k.subscription_id = u.id
WHERE k.expires_at IS NULL OR k.expires_at > UTC_TIMESTAMP(6)
ORDER BY k.subscription_id, k.id DESC";

/// Their subscriptions are locked: these are for the URLs that were read.
pub(crate) const HEADERS: &str = "/* verifier.headers */
SELECT h.subscription_id, h.key_id, h.sealed
FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN subscription_headers h FORCE INDEX (PRIMARY) ON h.subscription_id = u.id";

/// Guarded by round, attempt and URL. If the check fails, a URL that was verified before stays verified.
const RECORD: &str = "/* verifier.record */
UPDATE subscriptions
SET verified_url = IF(?, callback_url, verified_url), trusted_by = IF(?, ?, trusted_by),
    trusted_at = IF(?, IF(? IS NULL, NULL, UTC_TIMESTAMP(6)), trusted_at), check_done = ?, check_error = ?,
    checked_at = UTC_TIMESTAMP(6), next_check_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND
WHERE id = ? AND verification_round = ? AND check_round = ? AND check_attempts = ? AND callback_url = ?
  AND NOT check_done AND deleted_at IS NULL";

/// Checks that lie further ahead than a right clock can have put them.
pub(crate) const PICK_STRANDED: &str = "/* verifier.pick_stranded */
SELECT id FROM subscriptions FORCE INDEX (idx_sub_open_check)
WHERE open_check_at > UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND ORDER BY open_check_at LIMIT ? FOR UPDATE SKIP LOCKED";

pub(crate) const FREE: &str = "/* verifier.free */
UPDATE (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]')) AS t) u
STRAIGHT_JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = u.id
SET s.next_check_at = UTC_TIMESTAMP(6)";

/// A new round is due now, and has been since it was requested.
const NEXT_CHECK_AT: &str = "/* verifier.next_check_at */
SELECT IF(check_round <> verification_round, LEAST(next_check_at, UTC_TIMESTAMP(6)), next_check_at)
FROM subscriptions FORCE INDEX (idx_sub_open_check)
WHERE open_check_at IS NOT NULL ORDER BY open_check_at LIMIT 1";

pub(crate) struct VerifierSql(pub(crate) RolePool);

#[async_trait]
impl VerifierStore for VerifierSql {
    async fn take_checks_in_turn(&self, turn: &CheckTurn, hold: Duration) -> StoreResult<TakenChecks> {
        self.0.run(|connection| take_checks(connection, turn, hold)).await
    }

    async fn record(&self, check: &Check, outcome: &CheckOutcome) -> StoreResult<bool> {
        let (verified, error, delay) = match outcome {
            CheckOutcome::Verified | CheckOutcome::Trusted => (true, None, None),
            CheckOutcome::Retry(code, delay) => (false, Some(code.as_str()), Some(micros(*delay))),
            CheckOutcome::GivenUp(code) => (false, Some(ErrorCode::as_str(code)), None),
        };
        let trusted_by = check.vouched_by.as_deref().filter(|_| *outcome == CheckOutcome::Trusted);
        self.0
            .run(|mut connection| async move {
                let parameters: Vec<Value> = vec![
                    verified.into(),
                    verified.into(),
                    trusted_by.into(),
                    verified.into(),
                    trusted_by.into(),
                    delay.is_none().into(),
                    error.into(),
                    delay.unwrap_or(0).into(),
                    check.subscription_id.0.into(),
                    check.round.into(),
                    check.round.into(),
                    check.attempt.into(),
                    (&check.callback_url).into(),
                ];
                connection.exec_drop(RECORD, parameters).await?;
                Ok(connection.affected_rows() > 0)
            })
            .await
    }

    async fn free_stranded(&self, limit: u32, furthest: Duration) -> StoreResult<u64> {
        self.0
            .run(|mut connection| async move {
                let mut transaction = connection.start_transaction(TxOpts::default()).await?;
                let mut picked: Vec<i64> = transaction.exec(PICK_STRANDED, (micros(furthest), limit)).await?;
                picked.sort_unstable();
                let mut changed = 0;
                for document in Batch::ids(picked) {
                    transaction.exec_drop(FREE, (document,)).await?;
                    changed += transaction.affected_rows();
                }
                transaction.commit().await?;
                Ok(changed)
            })
            .await
    }

    async fn next_check_at(&self) -> StoreResult<Option<Timestamp>> {
        self.0
            .run(|mut connection| async move {
                let next: Option<SqlTime> = connection.exec_first(NEXT_CHECK_AT, ()).await?;
                Ok(next.map(|time| time.0))
            })
            .await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        secret_key_ids(&self.0).await
    }
}

async fn take_checks(mut connection: Conn, turn: &CheckTurn, duration: Duration) -> DbResult<TakenChecks> {
    let peek: Option<(SqlTime, SqlTime, bool)> = connection.exec_first(PEEK, (micros(duration),)).await?;
    let (now, until, waiting) = peek.ok_or_else(|| DbError::unreadable("no clock"))?;
    if !waiting {
        return Ok(TakenChecks { checks: Vec::new(), resume_after: None });
    }
    let (ids, resume_after) = pick(&mut connection, turn, now).await?;
    let checks = if ids.is_empty() { Vec::new() } else { hold(&mut connection, ids, now, until).await? };
    Ok(TakenChecks { checks, resume_after })
}

/// The subscriptions whose turn it is, and the tenant after which the next turn begins.
async fn pick(connection: &mut Conn, turn: &CheckTurn, now: SqlTime) -> DbResult<(Vec<i64>, Option<String>)> {
    let mut picker = CheckPicker::new(turn);
    while let Some((after, length)) = picker.next_stretch() {
        let rows: Vec<(String, i64, bool)> = connection.exec(OPEN_CHECKS, (now, after, length)).await?;
        let open = |(tenant, id, due)| OpenCheck { tenant, subscription_id: SubscriptionId(id), due };
        picker.read(&rows.into_iter().map(open).collect::<Vec<_>>());
    }
    let (picked, resume_after) = picker.finish();
    Ok((picked.into_iter().map(|id| id.0).collect(), resume_after))
}

/// Takes those that are still due; another verifier may take them over after a time.
async fn hold(connection: &mut Conn, ids: Vec<i64>, now: SqlTime, until: SqlTime) -> DbResult<Vec<Check>> {
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let mut picked: Vec<Row> = Vec::with_capacity(ids.len());
    for document in Batch::ids(ids) {
        picked.extend(transaction.exec::<Row, _, _>(PICK, (document, now)).await?);
    }
    if picked.is_empty() {
        transaction.rollback().await?;
        return Ok(Vec::new());
    }
    let mut checks: Vec<Check> = Vec::with_capacity(picked.len());
    let mut with_headers: Vec<i64> = Vec::new();
    for mut row in picked {
        checks.push(Check {
            subscription_id: SubscriptionId(take(&mut row, 0)?),
            tenant: take(&mut row, 5)?,
            callback_url: take(&mut row, 1)?,
            round: take(&mut row, 2)?,
            attempt: natural(take(&mut row, 3)?),
            number: take(&mut row, 4)?,
            secrets: Vec::new(),
            headers: None,
            vouched_by: take(&mut row, 6)?,
        });
        if take(&mut row, 7)? {
            with_headers.push(checks[checks.len() - 1].subscription_id.0);
        }
    }
    let mut ids: Vec<i64> = checks.iter().map(|check| check.subscription_id.0).collect();
    ids.sort_unstable();
    let documents = Batch::ids(ids);
    for document in &documents {
        transaction.exec_drop(HOLD, (document, until)).await?;
    }
    let mut secrets: HashMap<SubscriptionId, Vec<StoredSecret>> = HashMap::new();
    for document in documents {
        let read: Vec<Row> = transaction.exec(SECRETS, (document,)).await?;
        for mut row in read {
            let secret = SealedSecret { key_id: take(&mut row, 2)?, sealed: take(&mut row, 3)? };
            let stored = StoredSecret { id: SecretId(take(&mut row, 1)?), secret };
            secrets.entry(SubscriptionId(take(&mut row, 0)?)).or_default().push(stored);
        }
    }
    let mut headers: HashMap<SubscriptionId, SealedSecret> = HashMap::new();
    for document in Batch::ids(with_headers) {
        let read: Vec<Row> = transaction.exec(HEADERS, (document,)).await?;
        for mut row in read {
            let secret = SealedSecret { key_id: take(&mut row, 1)?, sealed: take(&mut row, 2)? };
            headers.insert(SubscriptionId(take(&mut row, 0)?), secret);
        }
    }
    transaction.commit().await?;
    for check in &mut checks {
        check.headers = headers.remove(&check.subscription_id);
        check.secrets = secrets.remove(&check.subscription_id).unwrap_or_default();
    }
    Ok(checks)
}
