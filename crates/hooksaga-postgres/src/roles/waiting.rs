//! The subscriptions with anything waiting: a common table expression of the scheduler and the gauges.

/// `WITH RECURSIVE waiting (subscription_id, next_attempt_at)`: hops through `idx_saga_waiting` from one subscription to
/// the next, one entry each, which is also the earliest. A backlog, paused or not yet due, costs one look.
macro_rules! with_waiting {
    () => {
        "WITH RECURSIVE waiting AS (
    (SELECT subscription_id, next_attempt_at FROM webhook_delivery_sagas
     WHERE status IN ('Pending', 'PendingRetry')
     ORDER BY subscription_id, next_attempt_at LIMIT 1)
    UNION ALL
    SELECT following.subscription_id, following.next_attempt_at
    FROM waiting w CROSS JOIN LATERAL (
        SELECT s.subscription_id, s.next_attempt_at FROM webhook_delivery_sagas s
        WHERE s.status IN ('Pending', 'PendingRetry') AND s.subscription_id > w.subscription_id
        ORDER BY s.subscription_id, s.next_attempt_at LIMIT 1
    ) following
)"
    };
}

pub(crate) use with_waiting;
