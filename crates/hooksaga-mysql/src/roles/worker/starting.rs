//! Starts of rate-limited subscriptions.

use crate::{
    error::DbResult,
    roles::rate_limits::{Buckets, START},
};
use hooksaga_saga::{Gate, Passage};
use hooksaga_store::{Started, Starting};
use mysql_async::{Conn, TxOpts};

pub(super) async fn start_limited(mut connection: Conn, starting: &[Starting]) -> DbResult<Vec<Started>> {
    let mut transaction = connection.start_transaction(TxOpts::default()).await?;
    let ids = starting.iter().map(|one| one.subscription_id);
    let buckets = Buckets::lock(&mut transaction, START, ids).await?;
    let mut started = Vec::with_capacity(starting.len());
    for Starting { subscription_id, limit, jobs } in starting.iter().copied() {
        let full_at = buckets.full_at(subscription_id);
        let Passage { passed, full_at } = limit.pass(Gate::Start, full_at, jobs, buckets.now);
        buckets.store(&mut transaction, subscription_id, full_at).await?;
        let wait = limit.wait(Gate::Start, Some(full_at), 1, buckets.now);
        started.push(Started { subscription_id, jobs: passed, wait });
    }
    transaction.commit().await?;
    Ok(started)
}
