//! `subscription_verifier`: finds subscriptions that need verification and records the outcome.

use super::rows;
use crate::{engine::RoleHandle, error::DbResult, session::Tx};
use async_trait::async_trait;
use hooksaga_saga::{ErrorCode, SubscriptionId, Timestamp};
use hooksaga_store::{
    Check, CheckOutcome, CheckPicker, CheckTurn, OpenCheck, StoreResult, TakenChecks, VerifierStore,
};
use std::time::Duration;

/// A stretch of open rounds by tenant. INDEXED BY: the condition of that index is an OR, which draws the planner to
/// a scan of the table when it thinks that most rounds are open.
const OPEN_CHECKS: &str = "/* verifier.open_checks */
SELECT tenant, id, check_round <> verification_round OR next_check_at <= ?3
  FROM subscriptions INDEXED BY idx_sub_open_check_tenant
 WHERE (check_round <> verification_round OR NOT check_done) AND deleted_at IS NULL AND tenant > ?1
 ORDER BY tenant, CASE WHEN check_round <> verification_round THEN 0 ELSE next_check_at END, id LIMIT ?2";

const DUE_CHECK: &str = "/* verifier.due_check */
SELECT id, callback_url, verification_round,
       iif(check_round <> verification_round, 1, check_attempts + 1), check_number + 1, tenant,
       iif(vouched_round = verification_round, vouched_by, NULL), header_names IS NOT NULL
  FROM subscriptions WHERE id = ?1";

const HOLD: &str = "/* verifier.hold */
UPDATE subscriptions
   SET check_round = ?2, check_attempts = ?3, check_done = 0, check_number = ?4, next_check_at = ?5
 WHERE id = ?1";

const SECRETS: &str = "/* verifier.secrets */
SELECT id, key_id, sealed FROM subscription_secrets
 WHERE subscription_id = ?1 AND (expires_at IS NULL OR expires_at > ?2) ORDER BY id DESC";

const HEADERS: &str = "/* verifier.headers */
SELECT key_id, sealed FROM subscription_headers WHERE subscription_id = ?1";

/// `?6` is the URL that is verified now, or null: then the one that was before stays; `?11` who vouched for it.
const RECORD: &str = "/* verifier.record */
UPDATE subscriptions
   SET verified_url = coalesce(?6, verified_url),
       trusted_by = iif(?6 IS NULL, trusted_by, ?11),
       trusted_at = iif(?6 IS NULL, trusted_at, iif(?11 IS NULL, NULL, ?10)),
       check_done = ?7, next_check_at = ?8, check_error = ?9,
       checked_at = ?10
 WHERE id = ?1 AND verification_round = ?2 AND check_round = ?2 AND check_attempts = ?3 AND check_number = ?4
   AND NOT check_done AND callback_url = ?5 AND deleted_at IS NULL";

const FREE_STRANDED: &str = "/* verifier.free_stranded */
UPDATE subscriptions SET next_check_at = ?1
 WHERE id IN (SELECT id FROM subscriptions INDEXED BY idx_sub_open_check
               WHERE (check_round <> verification_round OR NOT check_done) AND deleted_at IS NULL
                 AND next_check_at > ?2 ORDER BY next_check_at LIMIT ?3)";

const NEXT_CHECK_AT: &str = "/* verifier.next_check_at */
SELECT min(iif(check_round <> verification_round, min(next_check_at, ?1), next_check_at))
  FROM subscriptions INDEXED BY idx_sub_open_check
 WHERE (check_round <> verification_round OR NOT check_done) AND deleted_at IS NULL";

/// Secrets that have expired are of no interest: nobody opens them again.
const SECRET_KEY_IDS: &str = "/* verifier.secret_key_ids */
SELECT key_id FROM subscription_secrets WHERE expires_at IS NULL OR expires_at > ?1
 UNION SELECT key_id FROM subscription_headers ORDER BY key_id";

#[cfg(feature = "test-support")]
pub(crate) const HOT: &[&str] =
    &[OPEN_CHECKS, DUE_CHECK, HOLD, SECRETS, HEADERS, FREE_STRANDED, NEXT_CHECK_AT];

pub(crate) struct VerifierSql(pub(crate) RoleHandle);

#[async_trait]
impl VerifierStore for VerifierSql {
    async fn take_checks_in_turn(&self, turn: &CheckTurn, hold: Duration) -> StoreResult<TakenChecks> {
        let turn = turn.clone();
        self.0.write(move |tx| take_checks(tx, &turn, hold)).await
    }

    async fn record(&self, check: &Check, outcome: &CheckOutcome) -> StoreResult<bool> {
        let (check, outcome) = (check.clone(), outcome.clone());
        self.0.write(move |tx| record(tx, &check, &outcome)).await
    }

    async fn free_stranded(&self, limit: u32, furthest: Duration) -> StoreResult<u64> {
        self.0
            .write(move |tx| {
                let beyond = tx.now.after(furthest).as_micros();
                Ok(tx.execute(FREE_STRANDED, (tx.now.as_micros(), beyond, limit))? as u64)
            })
            .await
    }

    async fn next_check_at(&self) -> StoreResult<Option<Timestamp>> {
        self.0
            .read(|tx| {
                let mut next = tx.prepare(NEXT_CHECK_AT)?;
                Ok(next.query_row([tx.now.as_micros()], |row| rows::optional_time(row, 0))?)
            })
            .await
    }

    async fn secret_key_ids(&self) -> StoreResult<Vec<String>> {
        self.0.read(|tx| rows::all(tx, SECRET_KEY_IDS, [tx.now.as_micros()], |row| row.get(0))).await
    }
}

fn take_checks(tx: &Tx<'_>, turn: &CheckTurn, hold: Duration) -> DbResult<TakenChecks> {
    let (picked, resume_after) = pick(tx, turn)?;
    let until = tx.now.after(hold).as_micros();
    let checks = picked.into_iter().map(|id| take_check(tx, id, until)).collect::<DbResult<_>>()?;
    Ok(TakenChecks { checks, resume_after })
}

/// The subscriptions whose turn it is, and the tenant after which the next turn begins.
fn pick(tx: &Tx<'_>, turn: &CheckTurn) -> DbResult<(Vec<SubscriptionId>, Option<String>)> {
    let mut picker = CheckPicker::new(turn);
    while let Some((after, length)) = picker.next_stretch() {
        let open = rows::all(tx, OPEN_CHECKS, (after, length, tx.now.as_micros()), |row| {
            let subscription_id = SubscriptionId(row.get(1)?);
            Ok(OpenCheck { tenant: row.get(0)?, subscription_id, due: row.get(2)? })
        })?;
        picker.read(&open);
    }
    Ok(picker.finish())
}

fn take_check(tx: &Tx<'_>, id: SubscriptionId, until: i64) -> DbResult<Check> {
    let (mut check, has_headers) = tx.prepare(DUE_CHECK)?.query_row([id.0], |row| {
        let check = Check {
            subscription_id: SubscriptionId(row.get(0)?),
            tenant: row.get(5)?,
            callback_url: row.get(1)?,
            round: row.get(2)?,
            attempt: row.get(3)?,
            number: row.get(4)?,
            secrets: Vec::new(),
            headers: None,
            vouched_by: row.get(6)?,
        };
        Ok((check, row.get::<_, bool>(7)?))
    })?;
    tx.execute(HOLD, (id.0, check.round, check.attempt, check.number, until))?;
    check.secrets = rows::secrets(tx, SECRETS, id)?;
    if has_headers {
        check.headers = rows::headers(tx, HEADERS, id)?;
    }
    Ok(check)
}

fn record(tx: &Tx<'_>, check: &Check, outcome: &CheckOutcome) -> DbResult<bool> {
    let (verified_url, done, next_check_at, error) = match outcome {
        CheckOutcome::Verified | CheckOutcome::Trusted => (Some(&check.callback_url), true, tx.now, None),
        CheckOutcome::Retry(code, delay) => (None, false, tx.now.after(*delay), Some(code)),
        CheckOutcome::GivenUp(code) => (None, true, tx.now, Some(code)),
    };
    let trusted_by = check.vouched_by.as_ref().filter(|_| *outcome == CheckOutcome::Trusted);
    let written = tx.execute(
        RECORD,
        (
            check.subscription_id.0,
            check.round,
            check.attempt,
            check.number,
            &check.callback_url,
            verified_url,
            done,
            next_check_at.as_micros(),
            error.map(ErrorCode::as_str),
            tx.now.as_micros(),
            trusted_by,
        ),
    )?;
    Ok(written > 0)
}
