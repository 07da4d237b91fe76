//! How many deliveries ended per hour and minute: from the janitor's sums as far as they reach, and from the counts per minute
//! after that.

use crate::{error::DbResult, roles::rows, session::Tx};
use hooksaga_saga::{SubscriptionId, Timestamp};
use hooksaga_store::{
    CountedDay, CountedMinutes, HOUR, MINUTE, MinuteCount, SUBSCRIPTIONS_LOOKED_AT, SubscriptionCount, each,
};
use rusqlite::{OptionalExtension, Row};
use std::collections::BTreeMap;

const PROGRESS: &str = "/* reader.count_progress */
SELECT (SELECT below FROM count_progress WHERE sums = 1), (SELECT below FROM count_progress WHERE sums = 2)";

/// By a look for each minute, since a minute may have the totals of many tenants.
pub(super) const TOTAL: &str = "/* reader.minute_total */
SELECT delivered, failed, dead_lettered FROM minute_totals WHERE minute = ?1 AND tenant = ?2";

/// A null tenant is everybody's.
pub(super) const MINUTE_COUNT: &str = "/* reader.minute_count */
SELECT sum(c.delivered), sum(c.failed), sum(c.dead_lettered) FROM delivery_counts AS c
 WHERE c.minute = ?1
   AND (?2 IS NULL OR ?2 = (SELECT s.tenant FROM subscriptions AS s WHERE s.id = c.subscription_id))
 GROUP BY c.minute";

/// The first of an hour or a minute. Among the first 1000 of each are the first 1000 of all, with all that they have.
/// Where the hours have 1000, nothing behind the last of those is shown, and of the minutes only what comes before it is
/// read.
pub(super) const OF_HOUR: &str = "/* reader.counts_of_hour */
SELECT subscription_id, delivered, failed, dead_lettered FROM delivery_hours
 WHERE hour = ?1 ORDER BY subscription_id LIMIT 1000";
pub(super) const OF_MINUTE: &str = "/* reader.counts_of_minute */
SELECT subscription_id, sum(delivered), sum(failed), sum(dead_lettered) FROM delivery_counts
 WHERE minute = ?1 AND subscription_id <= ?2 GROUP BY subscription_id ORDER BY subscription_id LIMIT 1000";

/// The same of a tenant, from its subscriptions on, so that others' rows cost nothing.
pub(super) const OWN_OF_HOUR: &str = "/* reader.own_counts_of_hour */
SELECT c.subscription_id, c.delivered, c.failed, c.dead_lettered
  FROM (SELECT id FROM subscriptions INDEXED BY idx_sub_tenant WHERE tenant = ?2 ORDER BY id LIMIT ?3) AS s
 CROSS JOIN delivery_hours AS c ON c.hour = ?1 AND c.subscription_id = s.id LIMIT 1000";
pub(super) const OWN_OF_MINUTE: &str = "/* reader.own_counts_of_minute */
SELECT c.subscription_id, sum(c.delivered), sum(c.failed), sum(c.dead_lettered)
  FROM (SELECT id FROM subscriptions INDEXED BY idx_sub_tenant WHERE tenant = ?2 ORDER BY id LIMIT ?3) AS s
 CROSS JOIN delivery_counts AS c ON c.minute = ?1 AND c.subscription_id = s.id
 GROUP BY c.subscription_id ORDER BY c.subscription_id LIMIT 1000";

/// The most subscriptions that are shown.
const SHOWN: usize = 1000;

/// Delivered, failed and dead-lettered ones.
type Totals = [u64; 3];

pub(super) fn minutes(tx: &Tx<'_>, tenant: Option<&str>) -> DbResult<(Vec<MinuteCount>, CountedDay)> {
    let below = |row: &Row<'_>, column| -> rusqlite::Result<Timestamp> {
        Ok(rows::optional_time(row, column)?.unwrap_or(Timestamp::from_micros(0)))
    };
    let (minutes_below, hours_below) =
        tx.prepare(PROGRESS)?.query_row([], |row| Ok((below(row, 0)?, below(row, 1)?)))?;
    let shown = CountedMinutes::new(tx.now, minutes_below);
    let mut minutes = Vec::new();
    let mut add = |minute: Timestamp, found: Option<Totals>| {
        let count = |[delivered, failed, dead_lettered]: Totals| MinuteCount {
            minute,
            delivered,
            failed,
            dead_lettered,
        };
        minutes.extend(found.map(count));
    };
    for minute in each(&shown.totals, MINUTE) {
        let key = (minute.as_micros(), tenant.unwrap_or_default());
        add(minute, tx.prepare(TOTAL)?.query_row(key, |row| counts(row, 0)).optional()?);
    }
    for minute in each(&shown.minutes, MINUTE) {
        let key = (minute.as_micros(), tenant);
        add(minute, tx.prepare(MINUTE_COUNT)?.query_row(key, |row| counts(row, 0)).optional()?);
    }
    Ok((minutes, CountedDay::new(tx.now, hours_below)))
}

pub(super) fn subscriptions(
    tx: &Tx<'_>,
    tenant: Option<&str>,
    day: &CountedDay,
) -> DbResult<Vec<SubscriptionCount>> {
    let mut sums: BTreeMap<i64, Totals> = BTreeMap::new();
    let read = |row: &Row<'_>| Ok((row.get(0)?, counts(row, 1)?));
    for hour in each(&day.hours, HOUR).map(Timestamp::as_micros) {
        let found = match tenant {
            None => rows::all(tx, OF_HOUR, [hour], read)?,
            Some(tenant) => rows::all(tx, OWN_OF_HOUR, (hour, tenant, SUBSCRIPTIONS_LOOKED_AT), read)?,
        };
        add(&mut sums, found);
    }
    let last = sums.keys().nth(SHOWN - 1).copied().unwrap_or(i64::MAX);
    for minute in day.minutes().map(Timestamp::as_micros) {
        let found = match tenant {
            None => rows::all(tx, OF_MINUTE, (minute, last), read)?,
            Some(tenant) => rows::all(tx, OWN_OF_MINUTE, (minute, tenant, SUBSCRIPTIONS_LOOKED_AT), read)?,
        };
        add(&mut sums, found);
    }
    let count = |(id, [delivered, failed, dead_lettered]): (i64, Totals)| SubscriptionCount {
        subscription_id: SubscriptionId(id),
        delivered,
        failed,
        dead_lettered,
    };
    Ok(sums.into_iter().take(SHOWN).map(count).collect())
}

fn add(sums: &mut BTreeMap<i64, Totals>, found: Vec<(i64, Totals)>) {
    for (subscription, counts) in found {
        for (sum, more) in sums.entry(subscription).or_default().iter_mut().zip(counts) {
            *sum = sum.saturating_add(more);
        }
    }
}

fn counts(row: &Row<'_>, first: usize) -> rusqlite::Result<Totals> {
    Ok([rows::count(row, first)?, rows::count(row, first + 1)?, rows::count(row, first + 2)?])
}
