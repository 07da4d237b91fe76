-- Version 2: triggers that refuse what no component may do, by whatever role.
--
-- They compare OLD and NEW (<=> also compares NULL), so a statement that changes nothing is not refused. They raise SQLSTATE
-- 45000, which the program reports as a refused write. TRUNCATE fires no trigger; it needs the right to DROP, which no
-- component has.
--
-- A trigger is dropped before it is created, so that this step can be run again. `hooksaga migrate` also runs it when the
-- login that created the triggers is not the one that migrates now (docs/ROLES.md: DEFINER).

-- History is deleted in one way only: the janitor lists in `removals` what it removes, whole events at a time. Rows that are
-- open, wait in a queue, or have been final for less than a minute cannot be listed; rows not listed cannot be deleted.

DROP TRIGGER IF EXISTS removals_refuse_birth;
CREATE TRIGGER removals_refuse_birth BEFORE INSERT ON removals FOR EACH ROW
BEGIN
    DECLARE settled DATETIME(6) DEFAULT UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE;
    IF NEW.kind = 'event' AND (
           NOT EXISTS (SELECT 1 FROM events WHERE id = NEW.subject_id AND created_at <= settled)
           OR EXISTS (SELECT 1 FROM unrouted_events WHERE event_id = NEW.subject_id)
           OR EXISTS (SELECT 1 FROM webhook_delivery_sagas FORCE INDEX (uniq_saga_event_subscription)
                      WHERE event_id = NEW.subject_id
                      AND NOT (status IN ('Completed', 'DeadLettered') AND updated_at <= settled))
           OR EXISTS (SELECT 1 FROM webhook_delivery_sagas s FORCE INDEX (uniq_saga_event_subscription)
                      STRAIGHT_JOIN pending_dead_letters p FORCE INDEX (PRIMARY) ON p.saga_id = s.id
                      WHERE s.event_id = NEW.subject_id)
           OR EXISTS (SELECT 1 FROM dead_letters FORCE INDEX (idx_dead_letter_event)
                      WHERE event_id = NEW.subject_id AND created_at > settled))
       OR NEW.kind = 'redrive' AND NOT EXISTS (
           SELECT 1 FROM redrives WHERE id = NEW.subject_id AND status <> 'running' AND updated_at <= settled)
       OR NEW.kind = 'audit' AND NOT EXISTS (
           SELECT 1 FROM audit_records WHERE id = NEW.subject_id AND at <= settled) THEN
        SIGNAL SQLSTATE '45000'
            SET MESSAGE_TEXT = 'removals: only what has been final for a minute can be removed';
    END IF;
END;

DROP TRIGGER IF EXISTS removals_refuse_update;
CREATE TRIGGER removals_refuse_update BEFORE UPDATE ON removals FOR EACH ROW
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'removals: what is to be removed never becomes something else';

-- events -------------------------------------------------------------------------------------------------

DROP TRIGGER IF EXISTS events_refuse_update;
CREATE TRIGGER events_refuse_update BEFORE UPDATE ON events FOR EACH ROW
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'events: an event never changes';

DROP TRIGGER IF EXISTS events_refuse_delete;
CREATE TRIGGER events_refuse_delete BEFORE DELETE ON events FOR EACH ROW
BEGIN
    IF OLD.created_at > UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE
       OR NOT EXISTS (SELECT 1 FROM removals WHERE kind = 'event' AND subject_id = OLD.id)
       OR EXISTS (SELECT 1 FROM webhook_delivery_sagas FORCE INDEX (uniq_saga_event_subscription)
                  WHERE event_id = OLD.id)
       OR EXISTS (SELECT 1 FROM dead_letters FORCE INDEX (idx_dead_letter_event) WHERE event_id = OLD.id) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
            'events: an event only goes as finished history, after all that belongs to it';
    END IF;
END;

-- subscriptions ------------------------------------------------------------------------------------------

DROP TRIGGER IF EXISTS subscriptions_refuse_update;
CREATE TRIGGER subscriptions_refuse_update BEFORE UPDATE ON subscriptions FOR EACH ROW
BEGIN
    IF OLD.deleted_at IS NOT NULL THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'subscriptions: a deleted subscription never changes';
    END IF;
END;

-- webhook_delivery_sagas -----------------------------------------------------------------------------------

DROP TRIGGER IF EXISTS sagas_refuse_birth;
CREATE TRIGGER sagas_refuse_birth BEFORE INSERT ON webhook_delivery_sagas FOR EACH ROW
BEGIN
    IF NEW.status <> 'Pending' OR NEW.attempt_count <> 0 THEN
        SIGNAL SQLSTATE '45000'
            SET MESSAGE_TEXT = 'webhook_delivery_sagas: a saga begins Pending and without attempts';
    END IF;
    -- A letter that is sent again is marked for lists (letter_heads). A saga from routing has generation 0, and pays for no
    -- more than this condition: a trigger of its own would be called for each row.
    IF NEW.generation > 0 THEN
        BEGIN
            DECLARE sent_again, waits BIGINT;
            SELECT MAX(id) INTO sent_again FROM webhook_delivery_sagas FORCE INDEX (uniq_saga_event_subscription)
            WHERE event_id = NEW.event_id AND subscription_id = NEW.subscription_id AND generation = NEW.generation - 1;
            -- A transaction that is storing this saga's letter has this row locked, so this waits for it and then finds
            -- the head. One that begins later skips the row until this one has committed, and then finds the new saga.
            SELECT COUNT(*) INTO waits FROM pending_dead_letters WHERE saga_id = sent_again LOCK IN SHARE MODE;
            UPDATE letter_heads FORCE INDEX (idx_head_saga) SET requeued = TRUE WHERE saga_id = sent_again;
        END;
    END IF;
END;

DROP TRIGGER IF EXISTS sagas_refuse_update;
CREATE TRIGGER sagas_refuse_update BEFORE UPDATE ON webhook_delivery_sagas FOR EACH ROW
BEGIN
    IF NOT (OLD.id <=> NEW.id AND OLD.event_id <=> NEW.event_id AND OLD.subscription_id <=> NEW.subscription_id
            AND OLD.generation <=> NEW.generation AND OLD.max_retry_limit <=> NEW.max_retry_limit
            AND OLD.created_at <=> NEW.created_at) THEN
        SIGNAL SQLSTATE '45000'
            SET MESSAGE_TEXT = 'webhook_delivery_sagas: what a saga was created with never changes';
    END IF;
    IF OLD.status = NEW.status THEN
        IF NOT (OLD.attempt_count <=> NEW.attempt_count AND OLD.next_attempt_at <=> NEW.next_attempt_at) THEN
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
                'webhook_delivery_sagas: attempt_count and next_attempt_at only change with the result of an attempt';
        END IF;
        IF OLD.status IN ('Completed', 'DeadLettered')
           AND NOT (OLD.final_error_code <=> NEW.final_error_code AND OLD.updated_at <=> NEW.updated_at) THEN
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'webhook_delivery_sagas: a finished saga never changes';
        END IF;
    ELSEIF OLD.status IN ('Pending', 'PendingRetry') AND NEW.status = 'InProgress' THEN
        IF NOT (OLD.attempt_count <=> NEW.attempt_count AND OLD.next_attempt_at <=> NEW.next_attempt_at) THEN
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
                'webhook_delivery_sagas: attempt_count and next_attempt_at only change with the result of an attempt';
        END IF;
    ELSEIF OLD.status = 'InProgress' AND NEW.status IN ('Completed', 'PendingRetry', 'DeadLettered') THEN
        IF NOT NEW.attempt_count <=> OLD.attempt_count + 1 THEN
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
                'webhook_delivery_sagas: attempt_count grows by one with the result of an attempt, and only then';
        END IF;
        -- A retry must be later than the previous attempt: otherwise the key of its job would be taken, and the saga stuck.
        IF NEW.next_attempt_at < OLD.next_attempt_at
           OR NEW.status = 'PendingRetry' AND NEW.next_attempt_at = OLD.next_attempt_at THEN
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
                'webhook_delivery_sagas: next_attempt_at only moves on, with the result of an attempt';
        END IF;
    ELSE
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'webhook_delivery_sagas: illegal status transition';
    END IF;
END;

DROP TRIGGER IF EXISTS sagas_refuse_delete;
CREATE TRIGGER sagas_refuse_delete BEFORE DELETE ON webhook_delivery_sagas FOR EACH ROW
BEGIN
    IF OLD.status NOT IN ('Completed', 'DeadLettered')
       OR OLD.updated_at > UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE
       OR NOT EXISTS (SELECT 1 FROM removals WHERE kind = 'event' AND subject_id = OLD.event_id)
       OR EXISTS (SELECT 1 FROM webhook_delivery_jobs FORCE INDEX (uniq_job_saga_attempt) WHERE saga_id = OLD.id)
       OR EXISTS (SELECT 1 FROM dead_letters FORCE INDEX (uniq_dead_letter_saga) WHERE saga_id = OLD.id) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
            'webhook_delivery_sagas: a saga can be deleted only together with its event, after its jobs and its dead letter';
    END IF;
END;

-- webhook_delivery_jobs ------------------------------------------------------------------------------------

DROP TRIGGER IF EXISTS jobs_refuse_birth;
CREATE TRIGGER jobs_refuse_birth BEFORE INSERT ON webhook_delivery_jobs FOR EACH ROW
BEGIN
    IF NEW.status <> 'Pending' THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'webhook_delivery_jobs: a job is born Pending';
    END IF;
END;

DROP TRIGGER IF EXISTS jobs_refuse_update;
CREATE TRIGGER jobs_refuse_update BEFORE UPDATE ON webhook_delivery_jobs FOR EACH ROW
BEGIN
    IF NOT (OLD.id <=> NEW.id AND OLD.saga_id <=> NEW.saga_id AND OLD.subscription_id <=> NEW.subscription_id
            AND OLD.attempt_at <=> NEW.attempt_at AND OLD.created_at <=> NEW.created_at) THEN
        SIGNAL SQLSTATE '45000'
            SET MESSAGE_TEXT = 'webhook_delivery_jobs: what a job was created with never changes';
    END IF;
    IF OLD.status = NEW.status THEN
        IF OLD.status IN ('Completed', 'Failed')
           AND NOT (OLD.lease_until <=> NEW.lease_until AND OLD.lease_token <=> NEW.lease_token
                    AND OLD.lease_resets <=> NEW.lease_resets AND OLD.response_status <=> NEW.response_status
                    AND OLD.error_code <=> NEW.error_code AND OLD.duration_ms <=> NEW.duration_ms
                    AND OLD.started_at <=> NEW.started_at AND OLD.retry_at <=> NEW.retry_at
                    AND CAST(OLD.callback_url AS BINARY) <=> CAST(NEW.callback_url AS BINARY)
                    AND CAST(OLD.response_excerpt AS BINARY) <=> CAST(NEW.response_excerpt AS BINARY)
                    AND OLD.updated_at <=> NEW.updated_at) THEN
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'webhook_delivery_jobs: a finished job never changes';
        END IF;
    ELSEIF NOT (OLD.status = 'Pending' AND NEW.status = 'Leased'
                OR OLD.status = 'Leased' AND NEW.status IN ('Pending', 'Completed', 'Failed')) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'webhook_delivery_jobs: illegal status transition';
    END IF;
END;

DROP TRIGGER IF EXISTS jobs_refuse_delete;
CREATE TRIGGER jobs_refuse_delete BEFORE DELETE ON webhook_delivery_jobs FOR EACH ROW
BEGIN
    IF OLD.status NOT IN ('Completed', 'Failed')
       OR NOT EXISTS (SELECT 1 FROM webhook_delivery_sagas s FORCE INDEX (PRIMARY)
                      STRAIGHT_JOIN removals r FORCE INDEX (PRIMARY) ON r.kind = 'event' AND r.subject_id = s.event_id
                      WHERE s.id = OLD.saga_id)
       OR EXISTS (SELECT 1 FROM dead_letters FORCE INDEX (uniq_dead_letter_saga) WHERE saga_id = OLD.saga_id) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
            'webhook_delivery_jobs: a job can be deleted only together with its event, after the dead letter';
    END IF;
END;

-- dead_letters ---------------------------------------------------------------------------------------------

DROP TRIGGER IF EXISTS letters_refuse_update;
CREATE TRIGGER letters_refuse_update BEFORE UPDATE ON dead_letters FOR EACH ROW
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'dead_letters: a dead letter never changes';

DROP TRIGGER IF EXISTS letters_refuse_delete;
CREATE TRIGGER letters_refuse_delete BEFORE DELETE ON dead_letters FOR EACH ROW
BEGIN
    IF OLD.created_at > UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE
       OR NOT EXISTS (SELECT 1 FROM removals WHERE kind = 'event' AND subject_id = OLD.event_id) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
            'dead_letters: a dead letter can be deleted only together with its event';
    END IF;
END;

-- letter_heads: the columns that lists of letters are filtered by.

DROP TRIGGER IF EXISTS letters_keep_head;
CREATE TRIGGER letters_keep_head AFTER INSERT ON dead_letters FOR EACH ROW
    INSERT INTO letter_heads
        (letter_id, saga_id, subscription_id, tenant, event_type, final_error_code, created_at, saga_created_at, requeued)
    SELECT NEW.id, NEW.saga_id, NEW.subscription_id, e.tenant, e.event_type, NEW.final_error_code, NEW.created_at, s.created_at,
           EXISTS (SELECT 1 FROM webhook_delivery_sagas n FORCE INDEX (uniq_saga_event_subscription)
                   WHERE n.event_id = s.event_id AND n.subscription_id = s.subscription_id
                     AND n.generation = s.generation + 1)
    FROM webhook_delivery_sagas s STRAIGHT_JOIN events e ON e.id = NEW.event_id
    WHERE s.id = NEW.saga_id;

DROP TRIGGER IF EXISTS letters_forget_head;
CREATE TRIGGER letters_forget_head AFTER DELETE ON dead_letters FOR EACH ROW
    DELETE FROM letter_heads WHERE letter_id = OLD.id;

-- unrouted_events: after_subscription_id only grows ----------------------------------------------------------

DROP TRIGGER IF EXISTS unrouted_refuse_update;
CREATE TRIGGER unrouted_refuse_update BEFORE UPDATE ON unrouted_events FOR EACH ROW
BEGIN
    IF NOT (OLD.event_id <=> NEW.event_id AND NEW.after_subscription_id >= OLD.after_subscription_id) THEN
        SIGNAL SQLSTATE '45000'
            SET MESSAGE_TEXT = 'unrouted_events: a queued event never changes, but for how far routing came';
    END IF;
END;

-- redrives: an ended redrive never changes. What a redrive was started with never changes, and its progress only grows.

DROP TRIGGER IF EXISTS redrives_refuse_birth;
CREATE TRIGGER redrives_refuse_birth BEFORE INSERT ON redrives FOR EACH ROW
BEGIN
    IF NEW.status <> 'running' OR NEW.after_id <> 0 OR NEW.examined + NEW.created + NEW.skipped <> 0 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'redrives: a redrive begins running, at its beginning';
    END IF;
END;

DROP TRIGGER IF EXISTS redrives_refuse_update;
CREATE TRIGGER redrives_refuse_update BEFORE UPDATE ON redrives FOR EACH ROW
BEGIN
    IF OLD.status <> 'running' THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'redrives: a redrive that has ended never changes';
    END IF;
    IF NOT (OLD.id <=> NEW.id AND OLD.tenant <=> NEW.tenant AND OLD.kind <=> NEW.kind
            AND OLD.subscription_id <=> NEW.subscription_id AND OLD.event_type <=> NEW.event_type
            AND OLD.final_error_code <=> NEW.final_error_code AND OLD.since <=> NEW.since AND OLD.until <=> NEW.until
            AND OLD.started_by_key <=> NEW.started_by_key AND OLD.started_by <=> NEW.started_by
            AND OLD.created_at <=> NEW.created_at) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'redrives: what a redrive was started with never changes';
    END IF;
    IF (OLD.after_at IS NOT NULL AND (NEW.after_at IS NULL OR NEW.after_at < OLD.after_at))
       OR (NEW.after_at <=> OLD.after_at AND NEW.after_id < OLD.after_id)
       OR NEW.examined < OLD.examined OR NEW.created < OLD.created OR NEW.skipped < OLD.skipped THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'redrives: the progress of a redrive never goes back';
    END IF;
END;

DROP TRIGGER IF EXISTS redrives_refuse_delete;
CREATE TRIGGER redrives_refuse_delete BEFORE DELETE ON redrives FOR EACH ROW
BEGIN
    IF NOT EXISTS (SELECT 1 FROM removals WHERE kind = 'redrive' AND subject_id = OLD.id) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
            'redrives: a redrive only goes when it has ended, as old history';
    END IF;
END;

-- A verified subscription misses no events, however it was verified: this queues the missed events in the same transaction. A
-- change of the URL begins the gap; if the new URL is the verified one, the gap ends at once.

DROP TRIGGER IF EXISTS subscriptions_keep_gap;
CREATE TRIGGER subscriptions_keep_gap BEFORE UPDATE ON subscriptions FOR EACH ROW
BEGIN
    IF NOT (NEW.callback_url <=> OLD.callback_url) THEN
        SET NEW.unverified_since = COALESCE(OLD.unverified_since, NEW.updated_at);
        -- The result of checking the former URL.
        SET NEW.check_error = NULL, NEW.checked_at = NULL;
    END IF;
    IF NEW.unverified_since IS NOT NULL AND NEW.verified_url = NEW.callback_url THEN
        INSERT INTO catch_ups (subscription_id, since) VALUES (NEW.id, NEW.unverified_since);
        SET NEW.unverified_since = NULL;
    END IF;
END;

-- api_keys -------------------------------------------------------------------------------------------------

DROP TRIGGER IF EXISTS keys_refuse_delete;
CREATE TRIGGER keys_refuse_delete BEFORE DELETE ON api_keys FOR EACH ROW
BEGIN
    IF OLD.expires_at IS NULL OR OLD.expires_at > UTC_TIMESTAMP(6) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'api_keys: only a key that has expired is deleted';
    END IF;
END;

DROP TRIGGER IF EXISTS keys_refuse_revival;
CREATE TRIGGER keys_refuse_revival BEFORE UPDATE ON api_keys FOR EACH ROW
BEGIN
    IF OLD.revoked_at IS NOT NULL AND NOT (NEW.revoked_at <=> OLD.revoked_at) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'api_keys: a key that was revoked stays revoked';
    END IF;
END;

-- audit_records --------------------------------------------------------------------------------------------

DROP TRIGGER IF EXISTS audit_refuse_update;
CREATE TRIGGER audit_refuse_update BEFORE UPDATE ON audit_records FOR EACH ROW
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'audit_records: an audit record never changes';

DROP TRIGGER IF EXISTS audit_refuse_delete;
CREATE TRIGGER audit_refuse_delete BEFORE DELETE ON audit_records FOR EACH ROW
BEGIN
    IF NOT EXISTS (SELECT 1 FROM removals WHERE kind = 'audit' AND subject_id = OLD.id) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
            'audit_records: an audit record only goes as old history';
    END IF;
END;
