//! How many deliveries ended per hour and minute: from the janitor's sums as far as they reach, and from the counts per minute
//! after that.

use crate::{error::DbResult, time::SqlTime};
use deadpool_postgres::Client;
use hooksaga_saga::Timestamp;
use hooksaga_store::{CountedDay, CountedMinutes, SUBSCRIPTIONS_LOOKED_AT};
use tokio_postgres::Row;

pub(crate) const PROGRESS: &str = "/* reader.count_progress */
SELECT now(), (SELECT below FROM count_progress WHERE sums = 1), (SELECT below FROM count_progress WHERE sums = 2)";

/// `$4`: the tenant, or nothing for all. Totals by a look for each minute, since a minute may have those of many tenants.
pub(crate) const MINUTES: &str = "/* reader.minutes */
SELECT t.minute, t.delivered, t.failed, t.dead_lettered
FROM generate_series($1::timestamptz, $2::timestamptz - interval '1 minute', interval '1 minute') AS m (minute)
CROSS JOIN LATERAL (
    SELECT * FROM minute_totals WHERE minute = m.minute AND tenant = coalesce($4::text, '') OFFSET 0
) t
UNION ALL
SELECT c.minute, sum(c.delivered)::bigint, sum(c.failed)::bigint, sum(c.dead_lettered)::bigint
FROM delivery_counts c
WHERE c.minute >= $2 AND c.minute < $3
  AND ($4 IS NULL OR EXISTS (SELECT FROM subscriptions s WHERE s.id = c.subscription_id AND s.tenant = $4 OFFSET 0))
GROUP BY c.minute
ORDER BY 1";

/// Of each hour and minute the first 1000 subscriptions. They include the first 1000 of the whole time, with all their counts.
/// Where the hours have 1000, nothing behind the last of those is shown, and of the minutes only what comes before it is
/// read.
macro_rules! subscriptions {
    ($name:literal, $whose:literal) => {
        concat!(
            "/* ",
            $name,
            " */
WITH heads AS MATERIALIZED (
    SELECT c.* FROM generate_series($2::timestamptz, $3::timestamptz - interval '1 hour', interval '1 hour') AS h (hour)
    CROSS JOIN LATERAL (
        SELECT subscription_id, delivered, failed, dead_lettered FROM delivery_hours
        WHERE hour = h.hour",
            $whose,
            " ORDER BY subscription_id LIMIT 1000
    ) c
), bound AS MATERIALIZED (
    SELECT CASE WHEN count(*) < 1000 THEN 9223372036854775807 ELSE max(f.subscription_id) END AS last
    FROM (SELECT DISTINCT subscription_id FROM heads ORDER BY subscription_id LIMIT 1000) f
)
SELECT p.subscription_id, sum(p.delivered)::bigint, sum(p.failed)::bigint, sum(p.dead_lettered)::bigint
FROM (
    SELECT * FROM heads WHERE subscription_id <= (SELECT last FROM bound)
    UNION ALL
    SELECT c.* FROM (
        SELECT generate_series($1::timestamptz, $2 - interval '1 minute', interval '1 minute')
        UNION ALL
        SELECT generate_series($3, $4::timestamptz - interval '1 minute', interval '1 minute')
    ) AS m (minute)
    CROSS JOIN LATERAL (
        SELECT subscription_id, sum(delivered)::bigint, sum(failed)::bigint, sum(dead_lettered)::bigint
        FROM delivery_counts
        WHERE minute = m.minute AND subscription_id <= (SELECT last FROM bound)",
            $whose,
            " GROUP BY subscription_id ORDER BY subscription_id LIMIT 1000
    ) c
) p
GROUP BY p.subscription_id ORDER BY p.subscription_id LIMIT 1000"
        )
    };
}

pub(crate) const SUBSCRIPTIONS: &str = subscriptions!("reader.subscription_counts", "");

pub(crate) const OWN_SUBSCRIPTIONS: &str =
    subscriptions!("reader.tenant_subscription_counts", " AND subscription_id = ANY ($5::bigint[])");

pub(crate) const OWN: &str = "/* reader.own_subscriptions */
SELECT id FROM subscriptions WHERE tenant = $1 ORDER BY id LIMIT $2";

/// Rows of minutes and of subscriptions, each with delivered, failed and dead-lettered ones.
pub(super) async fn read(client: &Client, tenant: Option<&str>) -> DbResult<(Vec<Row>, Vec<Row>)> {
    let (minutes, day) = minutes(client, tenant).await?;
    let edges =
        [day.minutes_before.start, day.hours.start, day.hours.end, day.minutes_after.end].map(SqlTime);
    let [first, hours, after, end] = &edges;
    let subscriptions = match tenant {
        None => {
            let statement = client.prepare_cached(SUBSCRIPTIONS).await?;
            client.query(&statement, &[first, hours, after, end]).await?
        }
        Some(tenant) => {
            let statement = client.prepare_cached(OWN).await?;
            let most = i64::from(SUBSCRIPTIONS_LOOKED_AT);
            let own = client.query(&statement, &[&tenant, &most]).await?;
            let own = own.iter().map(|row| Ok(row.try_get(0)?)).collect::<DbResult<Vec<i64>>>()?;
            let statement = client.prepare_cached(OWN_SUBSCRIPTIONS).await?;
            client.query(&statement, &[first, hours, after, end, &own]).await?
        }
    };
    Ok((minutes, subscriptions))
}

/// The rows of minutes, and the day that the subscriptions' counts are of.
pub(super) async fn minutes(client: &Client, tenant: Option<&str>) -> DbResult<(Vec<Row>, CountedDay)> {
    let statement = client.prepare_cached(PROGRESS).await?;
    let row = client.query_one(&statement, &[]).await?;
    let now = row.try_get::<_, SqlTime>(0)?.0;
    let below = |column: usize| -> DbResult<Timestamp> {
        Ok(row.try_get::<_, Option<SqlTime>>(column)?.map_or(Timestamp::from_micros(0), |time| time.0))
    };
    let shown = CountedMinutes::new(now, below(1)?);
    let day = CountedDay::new(now, below(2)?);
    let (first, between, end) =
        (SqlTime(shown.totals.start), SqlTime(shown.totals.end), SqlTime(shown.minutes.end));
    let statement = client.prepare_cached(MINUTES).await?;
    let minutes = client.query(&statement, &[&first, &between, &end, &tenant]).await?;
    Ok((minutes, day))
}
