//! How many deliveries ended per hour and minute: from the janitor's sums as far as they reach, and from the counts per minute
//! after that.

use crate::{
    error::{DbError, DbResult},
    roles::rows::count,
    time::SqlTime,
};
use hooksaga_saga::{SubscriptionId, Timestamp};
use hooksaga_store::{
    CountedDay, CountedMinutes, HOUR, MINUTE, MinuteCount, SUBSCRIPTIONS_LOOKED_AT, SubscriptionCount, each,
};
use mysql_async::{Conn, Params, prelude::Queryable as _};

pub(crate) const PROGRESS: &str = "/* reader.count_progress */
SELECT UTC_TIMESTAMP(6), (SELECT below FROM count_progress WHERE sums = 1),
       (SELECT below FROM count_progress WHERE sums = 2)";

const SUMS: &str = "CAST(SUM(delivered) AS SIGNED) AS delivered, CAST(SUM(failed) AS SIGNED) AS failed, \
                    CAST(SUM(dead_lettered) AS SIGNED) AS dead_lettered";

pub(crate) const OWN: &str = "/* reader.own_subscriptions */
SELECT id FROM subscriptions FORCE INDEX (idx_sub_tenant) WHERE tenant = ? ORDER BY id LIMIT ?";

/// Totals, read by their keys: a minute may have totals of many tenants.
pub(crate) fn totals(minutes: &[SqlTime]) -> String {
    format!(
        "/* reader.minute_totals */ SELECT minute, delivered, failed, dead_lettered \
         FROM minute_totals FORCE INDEX (PRIMARY) WHERE minute IN ({}) AND tenant = ? ORDER BY minute",
        literals(minutes)
    )
}

/// The minutes that have no totals yet.
pub(crate) fn minutes(of_tenant: bool) -> String {
    let of_tenant = if of_tenant {
        "STRAIGHT_JOIN subscriptions s FORCE INDEX (PRIMARY) ON s.id = c.subscription_id AND s.tenant = ?"
    } else {
        ""
    };
    format!(
        "/* reader.minutes */ SELECT c.minute, {SUMS} FROM delivery_counts c FORCE INDEX (PRIMARY) {of_tenant} \
         WHERE c.minute >= ? AND c.minute < ? GROUP BY c.minute ORDER BY c.minute"
    )
}

/// Of each hour and minute the first 1000 subscriptions. They include the first 1000 of the whole time, with all their counts.
pub(crate) fn subscriptions(day: &CountedDay) -> String {
    let hours = each(&day.hours, HOUR).map(|hour| {
        format!(
            "(SELECT subscription_id, delivered, failed, dead_lettered FROM delivery_hours FORCE INDEX (PRIMARY) \
             WHERE hour = {} ORDER BY subscription_id LIMIT 1000)",
            SqlTime(hour).literal()
        )
    });
    let minutes = day.minutes().map(|minute| {
        format!(
            "(SELECT subscription_id, {SUMS} FROM delivery_counts FORCE INDEX (PRIMARY) WHERE minute = {} \
             GROUP BY subscription_id ORDER BY subscription_id LIMIT 1000)",
            SqlTime(minute).literal()
        )
    });
    summed("reader.subscription_counts", &hours.chain(minutes).collect::<Vec<_>>())
}

/// The same of a tenant's subscriptions, by their keys.
pub(crate) fn own_subscriptions(day: &CountedDay, own: &[i64]) -> String {
    let own: Vec<String> = own.iter().map(i64::to_string).collect();
    let own = own.join(", ");
    let part = |table: &str, column: &str, times: &[SqlTime]| {
        format!(
            "(SELECT subscription_id, {SUMS} FROM {table} FORCE INDEX (PRIMARY) \
             WHERE {column} IN ({}) AND subscription_id IN ({own}) GROUP BY subscription_id)",
            literals(times)
        )
    };
    let hours: Vec<SqlTime> = each(&day.hours, HOUR).map(SqlTime).collect();
    let minutes: Vec<SqlTime> = day.minutes().map(SqlTime).collect();
    let mut parts = Vec::new();
    if !hours.is_empty() {
        parts.push(part("delivery_hours", "hour", &hours));
    }
    if !minutes.is_empty() {
        parts.push(part("delivery_counts", "minute", &minutes));
    }
    summed("reader.tenant_subscription_counts", &parts)
}

fn summed(name: &str, parts: &[String]) -> String {
    format!(
        "/* {name} */ SELECT subscription_id, {SUMS} FROM ({}) p \
         GROUP BY subscription_id ORDER BY subscription_id LIMIT 1000",
        parts.join(" UNION ALL ")
    )
}

fn literals(times: &[SqlTime]) -> String {
    times.iter().map(|time| time.literal()).collect::<Vec<_>>().join(", ")
}

pub(super) async fn read(
    connection: &mut Conn,
    tenant: Option<&str>,
) -> DbResult<(Vec<MinuteCount>, Vec<SubscriptionCount>)> {
    let (minutes, day) = by_minute(connection, tenant).await?;
    let per_subscription: Vec<(i64, i64, i64, i64)> = match tenant {
        None => connection.query(subscriptions(&day)).await?,
        Some(tenant) => {
            let own: Vec<i64> = connection.exec(OWN, (tenant, SUBSCRIPTIONS_LOOKED_AT)).await?;
            match own.is_empty() {
                true => Vec::new(),
                false => connection.query(own_subscriptions(&day, &own)).await?,
            }
        }
    };
    let subscription = |(id, delivered, failed, dead): (i64, i64, i64, i64)| SubscriptionCount {
        subscription_id: SubscriptionId(id),
        delivered: count(delivered),
        failed: count(failed),
        dead_lettered: count(dead),
    };
    Ok((minutes, per_subscription.into_iter().map(subscription).collect()))
}

/// The counts per minute, and the day of the counts per subscription.
pub(super) async fn by_minute(
    connection: &mut Conn,
    tenant: Option<&str>,
) -> DbResult<(Vec<MinuteCount>, CountedDay)> {
    let progress: Option<(SqlTime, Option<SqlTime>, Option<SqlTime>)> =
        connection.exec_first(PROGRESS, ()).await?;
    let (SqlTime(now), minutes_below, hours_below) =
        progress.ok_or_else(|| DbError::unreadable("no clock"))?;
    let below = |time: Option<SqlTime>| time.map_or(Timestamp::from_micros(0), |time| time.0);
    let shown = CountedMinutes::new(now, below(minutes_below));
    let day = CountedDay::new(now, below(hours_below));

    let mut found: Vec<(SqlTime, i64, i64, i64)> = Vec::new();
    let summed_up: Vec<SqlTime> = each(&shown.totals, MINUTE).map(SqlTime).collect();
    if !summed_up.is_empty() {
        let more: Vec<(SqlTime, i64, i64, i64)> =
            connection.exec(totals(&summed_up), (tenant.unwrap_or_default(),)).await?;
        found.extend(more);
    }
    let mut values: Vec<mysql_async::Value> = tenant.map(Into::into).into_iter().collect();
    values.extend([SqlTime(shown.minutes.start).into(), SqlTime(shown.minutes.end).into()]);
    let more: Vec<(SqlTime, i64, i64, i64)> =
        connection.exec(minutes(tenant.is_some()), Params::Positional(values)).await?;
    found.extend(more);
    let minute = |(minute, delivered, failed, dead): (SqlTime, i64, i64, i64)| MinuteCount {
        minute: minute.0,
        delivered: count(delivered),
        failed: count(failed),
        dead_lettered: count(dead),
    };
    Ok((found.into_iter().map(minute).collect(), day))
}
