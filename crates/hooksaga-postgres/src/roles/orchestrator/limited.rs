//! Jobs for subscriptions with a rate limit: as many as it lets through now, in one transaction with what it let through.
//! Nobody waits for a process that is just doing the same: it may be frozen, and those without a limit would wait, too.

use super::schedule::{Passed, read_pass};
use crate::{
    error::DbResult,
    roles::{
        rate_limits::{ADMISSION, Buckets},
        rows::{bigint, natural},
    },
    time::SqlTime,
};
use deadpool_postgres::Client;
use hooksaga_saga::{RateLimit, SubscriptionId, Timestamp};
use hooksaga_store::{HeldBuckets, Limited};
use std::collections::HashMap;

pub(crate) const RATES: &str = "/* orchestrator.rates */
SELECT id, rate_limit FROM subscriptions WHERE id = ANY ($1::bigint[]) AND rate_limit IS NOT NULL ORDER BY id";

/// `wanted`: what each of them was allotted, by subscription.
pub(super) async fn create_jobs(
    client: &mut Client,
    wanted: &HashMap<i64, i64>,
    unmoved: &[i64],
) -> DbResult<(Passed, Vec<Limited>)> {
    let transaction = client.transaction().await?;
    let ids: Vec<i64> = wanted.keys().copied().collect();
    let rates = transaction.prepare_cached(RATES).await?;
    let mut limits = Vec::with_capacity(ids.len());
    for row in transaction.query(&rates, &[&ids]).await? {
        limits.push((row.try_get::<_, i64>(0)?, RateLimit::per_second(natural(row.try_get(1)?))));
    }
    // One that has lost its limit meanwhile gets its jobs in the next pass.
    let ids: Vec<i64> = limits.iter().map(|(id, _)| *id).collect();
    let buckets = Buckets::lock(&transaction, ADMISSION, &ids, HeldBuckets::PassOver).await?;
    let now = buckets.clock.time;
    let (limits, held): (Vec<_>, Vec<_>) =
        limits.into_iter().partition(|(id, _)| buckets.full_at(SubscriptionId(*id)).is_some());
    let ids: Vec<i64> = limits.iter().map(|(id, _)| *id).collect();
    let jobs: Vec<i64> = limits
        .iter()
        .map(|(id, limit)| {
            let wanted = u32::try_from(wanted.get(id).copied().unwrap_or(0)).unwrap_or(0);
            let full_at = buckets.full_at(SubscriptionId(*id));
            bigint(limit.pass(full_at, wanted, now).passed)
        })
        .collect();
    let since = vec![SqlTime(Timestamp::from_micros(i64::MIN)); ids.len()];
    let insert = transaction.prepare_cached(super::schedule::CREATE_LIMITED).await?;
    let passed = read_pass(&transaction.query(&insert, &[&ids, &jobs, &since, &unmoved]).await?)?;

    let mut counts: HashMap<i64, (u32, u32)> = HashMap::new();
    for saga in &passed.sagas {
        let (found, new) = counts.entry(saga.subscription_id.0).or_default();
        *found += 1;
        *new += u32::from(saga.job_id.is_some());
    }
    let held = held.into_iter().map(|(id, _)| Limited::held(SubscriptionId(id)));
    let (mut stored, mut limited) = (Vec::new(), held.collect::<Vec<_>>());
    for ((id, limit), jobs) in limits.into_iter().zip(jobs) {
        let subscription_id = SubscriptionId(id);
        let (found, new) = counts.get(&id).copied().unwrap_or_default();
        let mut full_at = buckets.full_at(subscription_id);
        if let Some(after) = limit.to_store(full_at, new, now) {
            stored.push((subscription_id, after));
            full_at = Some(after);
        }
        if jobs < wanted.get(&id).copied().unwrap_or(0) && i64::from(found) >= jobs {
            let wait = limit.wait(full_at, limit.batch(), now);
            limited.push(Limited { subscription_id, wait });
        }
    }
    buckets.store(&transaction, &stored).await?;
    transaction.commit().await?;
    Ok((passed, limited))
}
