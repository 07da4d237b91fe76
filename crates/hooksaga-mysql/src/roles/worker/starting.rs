//! Starts of rate-limited subscriptions.

use crate::{
    error::DbResult,
    roles::rate_limits::{Buckets, START},
};
use hooksaga_saga::Lead;
use hooksaga_store::{HeldBuckets, Starting, Starts};
use mysql_async::{Conn, TxOpts};

pub(super) async fn start_limited(
    mut connection: Conn,
    starting: &[Starting],
    lead: Lead,
    held: HeldBuckets,
) -> DbResult<Starts> {
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let ids = starting.iter().map(|one| one.subscription_id);
    let buckets = Buckets::lock(&mut transaction, START, ids, held).await?;
    let clock = buckets.clock;
    let (mut reserved, mut stored) = (Vec::with_capacity(starting.len()), Vec::new());
    for Starting { subscription_id, limit, jobs } in starting.iter().copied() {
        let bucket = buckets.full_at(subscription_id);
        let one = bucket.map(|full_at| limit.reserve(full_at, jobs, clock.time, lead));
        stored.extend(one.map(|one| (subscription_id, one.full_at)));
        reserved.push(one);
    }
    buckets.store(&mut transaction, &stored).await?;
    transaction.commit().await?;
    Ok(Starts { clock, reserved })
}
