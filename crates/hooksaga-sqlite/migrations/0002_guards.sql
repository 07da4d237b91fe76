-- The guards of docs/SCHEMA.md: they refuse what no role may do. Each has its whole condition in WHEN and can do nothing but
-- refuse. The authorizer relies on that, and lets a guard read the columns in its condition.
-- They refuse with FAIL, before the row is written. ABORT would make SQLite keep a journal of every statement in order to
-- undo it, which costs a third of an update. The caller rolls the transaction back, with the statements before it.
-- There is one trigger per table and kind of write: each costs a call per row, however small its condition.
-- INSERT OR REPLACE deletes rows. The delete guards fire for it where recursive_triggers is on, as on every connection of
-- this program.

CREATE TRIGGER guard_event_update BEFORE UPDATE ON events
BEGIN SELECT RAISE(FAIL, 'events are append-only: no event is ever changed'); END;

-- History is deleted in one way only: the janitor lists what it removes, whole events at a time. What is open, waits in a
-- queue, or has been final for less than a minute cannot be listed.
CREATE TRIGGER guard_removal_insert BEFORE INSERT ON removals
WHEN (NEW.kind = 'event' AND (
        NOT EXISTS (SELECT 1 FROM events WHERE id = NEW.subject_id
                     AND created_at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 60000000)
        OR EXISTS (SELECT 1 FROM unrouted_events WHERE event_id = NEW.subject_id)
        OR EXISTS (SELECT 1 FROM webhook_delivery_sagas WHERE event_id = NEW.subject_id
                    AND NOT (status IN ('Completed', 'DeadLettered')
                             AND updated_at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 60000000))
        OR EXISTS (SELECT 1 FROM webhook_delivery_sagas AS g JOIN pending_dead_letters AS p ON p.saga_id = g.id
                    WHERE g.event_id = NEW.subject_id)
        OR EXISTS (SELECT 1 FROM dead_letters WHERE event_id = NEW.subject_id
                    AND created_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 60000000)))
    OR (NEW.kind = 'redrive' AND NOT EXISTS (
        SELECT 1 FROM redrives WHERE id = NEW.subject_id AND status <> 'running'
           AND updated_at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 60000000))
    OR (NEW.kind = 'audit' AND NOT EXISTS (
        SELECT 1 FROM audit_records WHERE id = NEW.subject_id
           AND at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 60000000))
BEGIN SELECT RAISE(FAIL, 'only what has been final for a minute can be removed'); END;

CREATE TRIGGER guard_removal_update BEFORE UPDATE ON removals
BEGIN SELECT RAISE(FAIL, 'what is to be removed never becomes something else'); END;

CREATE TRIGGER guard_event_delete BEFORE DELETE ON events
WHEN NOT EXISTS (SELECT 1 FROM removals WHERE kind = 'event' AND subject_id = OLD.id)
    OR OLD.created_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 60000000
    OR EXISTS (SELECT 1 FROM webhook_delivery_sagas WHERE event_id = OLD.id)
    OR EXISTS (SELECT 1 FROM dead_letters WHERE event_id = OLD.id)
BEGIN SELECT RAISE(FAIL, 'events are append-only: one only goes as finished history, after all that belongs to it'); END;

-- The authorizer sees the columns of an UPDATE but not those of an INSERT. Without this guard, a role that may create a
-- subscription could create a verified one.
CREATE TRIGGER guard_subscription_insert BEFORE INSERT ON subscriptions
WHEN NEW.verified_url IS NOT NULL OR NEW.trusted_by IS NOT NULL OR NEW.disabled_reason IS NOT NULL
    OR NEW.deleted_at IS NOT NULL
BEGIN SELECT RAISE(FAIL, 'a subscription is born unverified, and neither disabled nor deleted'); END;

CREATE TRIGGER guard_subscription_update BEFORE UPDATE ON subscriptions
WHEN OLD.deleted_at IS NOT NULL
BEGIN SELECT RAISE(FAIL, 'a deleted subscription never changes'); END;

-- after_subscription_id only grows: otherwise the event would be routed again, perhaps for ever.
CREATE TRIGGER guard_unrouted_update BEFORE UPDATE ON unrouted_events
WHEN NEW.event_id <> OLD.event_id OR NEW.after_subscription_id < OLD.after_subscription_id
BEGIN SELECT RAISE(FAIL, 'of a queued event only after_subscription_id changes, and it only grows'); END;

CREATE TRIGGER guard_saga_insert BEFORE INSERT ON webhook_delivery_sagas
WHEN NEW.status <> 'Pending' OR NEW.attempt_count <> 0
BEGIN SELECT RAISE(FAIL, 'a saga is born Pending, with attempt_count 0'); END;

CREATE TRIGGER guard_saga_update BEFORE UPDATE ON webhook_delivery_sagas
WHEN
    -- The identity of a saga never changes.
    NEW.id <> OLD.id
    OR NEW.event_id <> OLD.event_id
    OR NEW.subscription_id <> OLD.subscription_id
    OR NEW.generation <> OLD.generation
    OR NEW.max_retry_limit <> OLD.max_retry_limit
    OR NEW.created_at <> OLD.created_at
    -- A finished saga never changes at all. (The other columns are covered above and below.)
    OR (OLD.status IN ('Completed', 'DeadLettered')
        AND (NEW.final_error_code IS NOT OLD.final_error_code OR NEW.updated_at <> OLD.updated_at))
    -- The legal transitions.
    OR (NEW.status <> OLD.status AND NOT (
        (OLD.status IN ('Pending', 'PendingRetry') AND NEW.status = 'InProgress')
        OR (OLD.status = 'InProgress' AND NEW.status <> 'Pending')))
    -- An attempt is counted on leaving InProgress, always and only then.
    OR NEW.attempt_count <> OLD.attempt_count + (OLD.status = 'InProgress' AND NEW.status <> 'InProgress')
    -- The next attempt is set on leaving InProgress. A retry must be later than the previous attempt: otherwise the key
    -- of its job would be taken, and the saga stuck.
    OR (NEW.next_attempt_at <> OLD.next_attempt_at AND NOT (
        OLD.status = 'InProgress' AND NEW.status <> 'InProgress'
        AND NEW.next_attempt_at > OLD.next_attempt_at))
    OR (OLD.status = 'InProgress' AND NEW.status = 'PendingRetry'
        AND NEW.next_attempt_at <= OLD.next_attempt_at)
BEGIN SELECT RAISE(FAIL, 'a saga changes only by its legal transitions, a finished one never'); END;

CREATE TRIGGER guard_saga_delete BEFORE DELETE ON webhook_delivery_sagas
WHEN OLD.status NOT IN ('Completed', 'DeadLettered')
    OR OLD.updated_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 60000000
    OR NOT EXISTS (SELECT 1 FROM removals WHERE kind = 'event' AND subject_id = OLD.event_id)
    OR EXISTS (SELECT 1 FROM webhook_delivery_jobs WHERE saga_id = OLD.id)
    OR EXISTS (SELECT 1 FROM dead_letters WHERE saga_id = OLD.id)
BEGIN SELECT RAISE(FAIL, 'a saga can be deleted only together with its event, after its jobs and its dead letter'); END;

CREATE TRIGGER guard_job_insert BEFORE INSERT ON webhook_delivery_jobs
WHEN NEW.status <> 'Pending'
BEGIN SELECT RAISE(FAIL, 'a job is born Pending'); END;

CREATE TRIGGER guard_job_update BEFORE UPDATE ON webhook_delivery_jobs
WHEN
    -- The identity of a job never changes.
    NEW.id <> OLD.id
    OR NEW.saga_id <> OLD.saga_id
    OR NEW.subscription_id <> OLD.subscription_id
    OR NEW.attempt_at <> OLD.attempt_at
    OR NEW.created_at <> OLD.created_at
    -- A finished job never changes at all. (The other columns are covered above and below.)
    OR (OLD.status IN ('Completed', 'Failed')
        AND (NEW.lease_until <> OLD.lease_until
            OR NEW.lease_token IS NOT OLD.lease_token
            OR NEW.lease_resets <> OLD.lease_resets
            OR NEW.response_status IS NOT OLD.response_status
            OR NEW.error_code IS NOT OLD.error_code
            OR NEW.duration_ms IS NOT OLD.duration_ms
            OR NEW.started_at IS NOT OLD.started_at
            OR NEW.retry_at IS NOT OLD.retry_at
            OR NEW.callback_url IS NOT OLD.callback_url
            OR NEW.response_excerpt IS NOT OLD.response_excerpt
            OR NEW.updated_at <> OLD.updated_at))
    -- The legal transitions.
    OR (NEW.status <> OLD.status AND NOT (
        (OLD.status = 'Pending' AND NEW.status = 'Leased')
        OR OLD.status = 'Leased'))
BEGIN SELECT RAISE(FAIL, 'a job changes only by its legal transitions, a finished one never'); END;

CREATE TRIGGER guard_job_delete BEFORE DELETE ON webhook_delivery_jobs
WHEN OLD.status NOT IN ('Completed', 'Failed')
    OR NOT EXISTS (SELECT 1 FROM webhook_delivery_sagas AS g JOIN removals AS r ON r.kind = 'event' AND r.subject_id = g.event_id
                    WHERE g.id = OLD.saga_id)
    OR EXISTS (SELECT 1 FROM dead_letters WHERE saga_id = OLD.saga_id)
BEGIN SELECT RAISE(FAIL, 'a job can be deleted only together with its event, after the dead letter'); END;

CREATE TRIGGER guard_dead_letter_update BEFORE UPDATE ON dead_letters
BEGIN SELECT RAISE(FAIL, 'no dead letter is ever changed'); END;

CREATE TRIGGER guard_dead_letter_delete BEFORE DELETE ON dead_letters
WHEN OLD.created_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 60000000
    OR NOT EXISTS (SELECT 1 FROM removals WHERE kind = 'event' AND subject_id = OLD.event_id)
BEGIN SELECT RAISE(FAIL, 'a dead letter can be deleted only together with its event'); END;

-- The columns that lists of letters are filtered by. These are no guards: the authorizer lets these three triggers write
-- letter_heads, by their names.
CREATE TRIGGER keep_head AFTER INSERT ON dead_letters
BEGIN
    INSERT INTO letter_heads
        (letter_id, saga_id, subscription_id, tenant, event_type, final_error_code, created_at, saga_created_at, requeued)
    SELECT NEW.id, NEW.saga_id, NEW.subscription_id, e.tenant, e.event_type, NEW.final_error_code, NEW.created_at, g.created_at,
           EXISTS (SELECT 1 FROM webhook_delivery_sagas AS n
                    WHERE n.event_id = g.event_id AND n.subscription_id = g.subscription_id
                      AND n.generation = g.generation + 1)
      FROM webhook_delivery_sagas AS g CROSS JOIN events AS e ON e.id = NEW.event_id
     WHERE g.id = NEW.saga_id;
END;

CREATE TRIGGER forget_head AFTER DELETE ON dead_letters
BEGIN DELETE FROM letter_heads WHERE letter_id = OLD.id; END;

CREATE TRIGGER mark_requeued AFTER INSERT ON webhook_delivery_sagas
WHEN NEW.generation > 0
BEGIN
    UPDATE letter_heads SET requeued = 1
     WHERE saga_id = (SELECT id FROM webhook_delivery_sagas
                       WHERE event_id = NEW.event_id AND subscription_id = NEW.subscription_id
                         AND generation = NEW.generation - 1);
END;

-- Rows of the configuration are changed or marked as deleted, but never deleted, not even by REPLACE.
CREATE TRIGGER guard_subscription_delete BEFORE DELETE ON subscriptions
BEGIN SELECT RAISE(FAIL, 'no subscription is ever deleted'); END;

CREATE TRIGGER guard_secret_delete BEFORE DELETE ON subscription_secrets
WHEN (SELECT deleted_at FROM subscriptions WHERE id = OLD.subscription_id) IS NULL
BEGIN SELECT RAISE(FAIL, 'secrets go with their subscription only'); END;

-- The table has the same rule. It is repeated here because the API's role reads by_admin as NULL, whatever it wrote
-- (authorizer.rs).
CREATE TRIGGER guard_key_insert BEFORE INSERT ON api_keys
WHEN (NEW.tenant IS NULL OR NEW.expires_at IS NULL) AND NEW.by_admin IS NOT 1
BEGIN SELECT RAISE(FAIL, 'a key that key_admin did not create has a tenant and an end'); END;

CREATE TRIGGER guard_key_delete BEFORE DELETE ON api_keys
WHEN OLD.expires_at IS NULL OR OLD.expires_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER)
BEGIN SELECT RAISE(FAIL, 'only a key that has expired is deleted'); END;

CREATE TRIGGER guard_key_revival BEFORE UPDATE OF revoked_at ON api_keys
WHEN OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS NOT OLD.revoked_at
BEGIN SELECT RAISE(FAIL, 'a key that was revoked stays revoked'); END;

-- An ended redrive never changes. What a redrive was started with never changes, and its progress only grows.
CREATE TRIGGER guard_redrive_insert BEFORE INSERT ON redrives
WHEN NEW.status <> 'running' OR NEW.after_id <> 0 OR NEW.examined <> 0 OR NEW.created <> 0 OR NEW.skipped <> 0
BEGIN SELECT RAISE(FAIL, 'a redrive begins running, at its beginning'); END;

CREATE TRIGGER guard_redrive_update BEFORE UPDATE ON redrives
WHEN OLD.status <> 'running'
    OR NEW.id <> OLD.id OR NEW.tenant IS NOT OLD.tenant OR NEW.kind <> OLD.kind
    OR NEW.subscription_id IS NOT OLD.subscription_id OR NEW.event_type IS NOT OLD.event_type
    OR NEW.final_error_code IS NOT OLD.final_error_code OR NEW.since IS NOT OLD.since OR NEW.until <> OLD.until
    OR NEW.started_by_key IS NOT OLD.started_by_key OR NEW.started_by <> OLD.started_by
    OR NEW.created_at <> OLD.created_at
    OR coalesce(NEW.after_at, 0) < coalesce(OLD.after_at, 0)
    OR (NEW.after_at IS OLD.after_at AND NEW.after_id < OLD.after_id)
    OR NEW.examined < OLD.examined OR NEW.created < OLD.created OR NEW.skipped < OLD.skipped
BEGIN SELECT RAISE(FAIL, 'a redrive goes on from where it is, and one that has ended never changes'); END;

CREATE TRIGGER guard_redrive_delete BEFORE DELETE ON redrives
WHEN NOT EXISTS (SELECT 1 FROM removals WHERE kind = 'redrive' AND subject_id = OLD.id)
BEGIN SELECT RAISE(FAIL, 'a redrive only goes when it has ended, as old history'); END;

-- A verified subscription misses no events, however it was verified: this queues the missed events in the same transaction. A
-- change of the URL begins the gap; if the new URL is the verified one, the gap ends at once.
CREATE TRIGGER note_unverified AFTER UPDATE OF callback_url ON subscriptions
WHEN NEW.callback_url <> OLD.callback_url AND NEW.unverified_since IS NULL
BEGIN UPDATE subscriptions SET unverified_since = NEW.updated_at WHERE id = NEW.id; END;

-- Clears the result of checking the former URL.
CREATE TRIGGER forget_check AFTER UPDATE OF callback_url ON subscriptions
WHEN NEW.callback_url <> OLD.callback_url AND OLD.checked_at IS NOT NULL
BEGIN UPDATE subscriptions SET check_error = NULL, checked_at = NULL WHERE id = NEW.id; END;

CREATE TRIGGER queue_catch_up AFTER UPDATE OF callback_url, verified_url ON subscriptions
WHEN NEW.unverified_since IS NOT NULL AND NEW.verified_url = NEW.callback_url
BEGIN
    INSERT INTO catch_ups (subscription_id, since) VALUES (NEW.id, NEW.unverified_since);
    UPDATE subscriptions SET unverified_since = NULL WHERE id = NEW.id;
END;

CREATE TRIGGER guard_audit_update BEFORE UPDATE ON audit_records
BEGIN SELECT RAISE(FAIL, 'audit records are only added to: none is ever changed'); END;

CREATE TRIGGER guard_audit_delete BEFORE DELETE ON audit_records
WHEN NOT EXISTS (SELECT 1 FROM removals WHERE kind = 'audit' AND subject_id = OLD.id)
BEGIN SELECT RAISE(FAIL, 'audit records are only added to: one only goes as old history'); END;
