-- The guards of docs/SCHEMA.md: what nobody may do, whoever asks. Each carries its whole condition in
-- WHEN and can do nothing but refuse; the authorizer relies on that and lets them read any column.
-- One trigger per table and kind of write: each costs a call per row, however small its condition.
-- INSERT OR REPLACE deletes rows; the delete guards see it where recursive_triggers is on, as it is on
-- every connection of this program.

CREATE TRIGGER guard_event_update BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events are append-only: no event is ever changed'); END;

CREATE TRIGGER guard_event_delete BEFORE DELETE ON events
BEGIN SELECT RAISE(ABORT, 'events are append-only: no event is ever deleted'); END;

-- Rights know the columns of an UPDATE but not those of an INSERT: without this, whoever may create a
-- subscription could create a verified one.
CREATE TRIGGER guard_subscription_insert BEFORE INSERT ON subscriptions
WHEN NEW.verified_url IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a subscription is born unverified'); END;

CREATE TRIGGER guard_saga_insert BEFORE INSERT ON webhook_delivery_sagas
WHEN NEW.status <> 'Pending' OR NEW.attempt_count <> 0
BEGIN SELECT RAISE(ABORT, 'a saga is born Pending, with attempt_count 0'); END;

CREATE TRIGGER guard_saga_update BEFORE UPDATE ON webhook_delivery_sagas
WHEN
    -- What a saga is never changes.
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
        OR (OLD.status = 'InProgress' AND NEW.status IN ('Completed', 'PendingRetry', 'DeadLettered'))))
    -- Attempts are counted, and the next one is set, only on leaving InProgress.
    OR (NEW.attempt_count <> OLD.attempt_count AND NOT (
        OLD.status = 'InProgress' AND NEW.status <> 'InProgress'
        AND NEW.attempt_count = OLD.attempt_count + 1))
    OR (NEW.next_attempt_at <> OLD.next_attempt_at AND NOT (
        OLD.status = 'InProgress' AND NEW.status <> 'InProgress'
        AND NEW.next_attempt_at > OLD.next_attempt_at))
BEGIN SELECT RAISE(ABORT, 'a saga changes only by its legal transitions, a finished one never'); END;

CREATE TRIGGER guard_saga_delete BEFORE DELETE ON webhook_delivery_sagas
BEGIN SELECT RAISE(ABORT, 'no saga is ever deleted'); END;

CREATE TRIGGER guard_job_update BEFORE UPDATE ON webhook_delivery_jobs
WHEN
    -- What a job is never changes.
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
            OR NEW.response_excerpt IS NOT OLD.response_excerpt
            OR NEW.updated_at <> OLD.updated_at))
    -- The legal transitions.
    OR (NEW.status <> OLD.status AND NOT (
        (OLD.status = 'Pending' AND NEW.status = 'Leased')
        OR (OLD.status = 'Leased' AND NEW.status IN ('Pending', 'Completed', 'Failed'))))
BEGIN SELECT RAISE(ABORT, 'a job changes only by its legal transitions, a finished one never'); END;

CREATE TRIGGER guard_job_delete BEFORE DELETE ON webhook_delivery_jobs
BEGIN SELECT RAISE(ABORT, 'no job is ever deleted'); END;

CREATE TRIGGER guard_dead_letter_update BEFORE UPDATE ON dead_letters
BEGIN SELECT RAISE(ABORT, 'no dead letter is ever changed'); END;

CREATE TRIGGER guard_dead_letter_delete BEFORE DELETE ON dead_letters
BEGIN SELECT RAISE(ABORT, 'no dead letter is ever deleted'); END;
