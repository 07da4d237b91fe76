//! Jobs for subscriptions with a rate limit: as many as it lets through now, in one transaction with what it let through.
//! Nobody waits for a process that is just doing the same: it may be frozen, and those without a limit would wait, too.

use super::schedule::{JobCheck, insert};
use crate::{
    error::DbResult,
    roles::rate_limits::{ADMISSION, Buckets},
};
use hooksaga_saga::{RateLimit, SubscriptionId};
use hooksaga_store::{Allotted, HeldBuckets, Limited, ScheduledSaga};
use mysql_async::{Conn, TxOpts};
use std::collections::{BTreeMap, HashMap};

/// `sagas`: the oldest due ones of these subscriptions, in their order; those that are not let through are taken out.
pub(super) async fn admit(
    connection: &mut Conn,
    limits: &BTreeMap<SubscriptionId, RateLimit>,
    allotted: &[Allotted],
    sagas: &mut Vec<ScheduledSaga>,
) -> DbResult<Vec<Limited>> {
    let wanted: HashMap<SubscriptionId, u32> =
        allotted.iter().map(|one| (one.subscription_id, one.jobs)).collect();
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let buckets =
        Buckets::lock(&mut transaction, ADMISSION, limits.keys().copied(), HeldBuckets::PassOver).await?;
    let now = buckets.clock.time;
    let let_through: HashMap<SubscriptionId, u32> = limits
        .iter()
        .filter_map(|(id, limit)| {
            let wanted = wanted.get(id).copied().unwrap_or(0);
            Some((*id, limit.pass(buckets.full_at(*id)?, wanted, now).passed))
        })
        .collect();
    let mut left = let_through.clone();
    sagas.retain(|saga| match left.get_mut(&saga.subscription_id) {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    });
    insert(&mut transaction, sagas, now, JobCheck::First).await?;
    let mut created: HashMap<SubscriptionId, u32> = HashMap::new();
    for saga in sagas.iter().filter(|saga| saga.job_id.is_some()) {
        *created.entry(saga.subscription_id).or_default() += 1;
    }
    let (mut stored, mut limited) = (Vec::new(), Vec::new());
    for (id, limit) in limits {
        let new = created.get(id).copied().unwrap_or(0);
        let Some(mut full_at) = buckets.full_at(*id) else {
            limited.push(Limited::held(*id));
            continue;
        };
        if let Some(after) = limit.to_store(full_at, new, now) {
            stored.push((*id, after));
            full_at = Some(after);
        }
        let passed = let_through.get(id).copied().unwrap_or(0);
        if passed < wanted.get(id).copied().unwrap_or(0) && left.get(id) == Some(&0) {
            let wait = limit.wait(full_at, limit.batch(), now);
            limited.push(Limited { subscription_id: *id, wait });
        }
    }
    buckets.store(&mut transaction, &stored).await?;
    transaction.commit().await?;
    Ok(limited)
}
