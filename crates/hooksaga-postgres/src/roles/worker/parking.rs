//! Jobs that are given back: to be claimed again soon, or only when their subscriptions can be delivered to.

/// Fenced by token; driven by the given keys (the status is hidden, as for a claim).
pub(crate) const HAND_BACK: &str = "/* worker.hand_back */
UPDATE webhook_delivery_jobs j
SET status = 'Pending', lease_until = now() + $5::bigint * interval '1 microsecond', lease_token = NULL,
    updated_at = now()
FROM unnest($1::bigint[], $2::timestamptz[], $3::bigint[], $4::bigint[]) AS u (saga_id, attempt_at, id, token)
WHERE j.saga_id = u.saga_id AND j.attempt_at = u.attempt_at
  AND j.id = u.id AND j.lease_token = u.token AND j.status = (SELECT 'Leased'::job_status)
RETURNING j.id";

/// Fenced by token. A subscription that is deliverable by now, or of which nothing is known, is no reason to wait.
pub(crate) const PARK: &str = "/* worker.park */
UPDATE webhook_delivery_jobs j
SET status = 'Pending', lease_token = NULL, updated_at = now(),
    lease_until = CASE WHEN (SELECT deliverable FROM subscriptions WHERE id = j.subscription_id) IS FALSE
                       THEN '9999-12-31 23:59:59.999999+00' ELSE now() END
FROM unnest($1::bigint[], $2::timestamptz[], $3::bigint[], $4::bigint[]) AS u (saga_id, attempt_at, id, token)
WHERE j.saga_id = u.saga_id AND j.attempt_at = u.attempt_at
  AND j.id = u.id AND j.lease_token = u.token AND j.status = (SELECT 'Leased'::job_status)
RETURNING j.id";

/// Hops through `idx_job_parked` from one subscription to the next, one entry each: what is parked for those that still
/// do not deliver is not examined.
pub(crate) const UNPARK: &str = "/* worker.unpark */
WITH RECURSIVE hops AS (
    (SELECT subscription_id FROM webhook_delivery_jobs
     WHERE status = 'Pending' AND lease_until = '9999-12-31 23:59:59.999999+00'
     ORDER BY subscription_id LIMIT 1)
    UNION ALL
    SELECT following.subscription_id
    FROM hops h CROSS JOIN LATERAL (
        SELECT j.subscription_id FROM webhook_delivery_jobs j
        WHERE j.status = 'Pending' AND j.lease_until = '9999-12-31 23:59:59.999999+00'
          AND j.subscription_id > h.subscription_id
        ORDER BY j.subscription_id LIMIT 1
    ) following
), resumed AS MATERIALIZED (
    SELECT sub.id FROM hops h CROSS JOIN LATERAL (
        SELECT id FROM subscriptions WHERE id = h.subscription_id AND deliverable OFFSET 0
    ) sub
), parked AS MATERIALIZED (
    SELECT j.place FROM resumed r CROSS JOIN LATERAL (
        SELECT ctid AS place FROM webhook_delivery_jobs
        WHERE status = 'Pending' AND lease_until = '9999-12-31 23:59:59.999999+00' AND subscription_id = r.id
        LIMIT $1 FOR UPDATE SKIP LOCKED
    ) j LIMIT $1
)
UPDATE webhook_delivery_jobs SET lease_until = now(), updated_at = now()
WHERE ctid = ANY (ARRAY(SELECT place FROM parked)) AND status = (SELECT 'Pending'::job_status)";
