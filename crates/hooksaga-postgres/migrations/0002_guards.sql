-- Version 2: triggers that refuse what no component may do, by whatever role.
--
-- Every row trigger has its condition in WHEN, so that a legal write never calls a function. They are AFTER triggers: a
-- BEFORE trigger locks each row a second time before PostgreSQL evaluates its WHEN, and every legal write would pay for that.
-- An AFTER trigger whose WHEN is false costs one comparison. It may raise after the row has changed: the whole statement is
-- undone.
--
-- Every statement parses and plans the WHEN of each trigger that applies to it. So the hot tables have few triggers. Those on
-- columns that no component writes (UPDATE OF) apply to no component's statement; no other trigger changes such a column.
--
-- They raise restrict_violation (23001), which the program reports as a refused write.

-- The functions below take this search path (FROM CURRENT). Without pg_temp at its end PostgreSQL looks there first, and a role could
-- put a temporary table in the place of one of ours.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

CREATE FUNCTION hooksaga_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%: %', TG_TABLE_NAME, TG_ARGV[0] USING ERRCODE = 'restrict_violation';
END
$$;

REVOKE ALL ON FUNCTION hooksaga_refuse() FROM PUBLIC;

-- History is deleted in one way only: the janitor lists in `removals` what it removes, whole events at a time. Rows that are
-- open, wait in a queue, or have been final for less than a minute cannot be listed; rows not listed cannot be deleted. These
-- are statement triggers: checking a whole batch costs little more than checking a single row. OFFSET 0 makes the planner
-- look up each row of another table by its key; without it, it would hash whole tables.

CREATE FUNCTION hooksaga_refuse_removal(what text, reason text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%: %', what, reason USING ERRCODE = 'restrict_violation';
END
$$;

CREATE FUNCTION hooksaga_guard_removals() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    settled CONSTANT timestamptz := now() - interval '1 minute';
BEGIN
    PERFORM hooksaga_refuse_removal('removals', 'only what has been final for a minute can be removed')
    FROM added a
    WHERE CASE a.kind
        WHEN 'event' THEN
            NOT EXISTS (SELECT FROM events e WHERE e.id = a.subject_id AND e.created_at <= settled OFFSET 0)
            OR EXISTS (SELECT FROM unrouted_events q WHERE q.event_id = a.subject_id OFFSET 0)
            OR EXISTS (SELECT FROM webhook_delivery_sagas s WHERE s.event_id = a.subject_id
                       AND NOT (s.status IN ('Completed', 'DeadLettered') AND s.updated_at <= settled) OFFSET 0)
            OR EXISTS (SELECT FROM webhook_delivery_sagas s JOIN pending_dead_letters p ON p.saga_id = s.id
                       WHERE s.event_id = a.subject_id OFFSET 0)
            OR EXISTS (SELECT FROM dead_letters d WHERE d.event_id = a.subject_id AND d.created_at > settled OFFSET 0)
        WHEN 'redrive' THEN
            NOT EXISTS (SELECT FROM redrives r
                        WHERE r.id = a.subject_id AND r.status <> 'running' AND r.updated_at <= settled OFFSET 0)
        ELSE NOT EXISTS (SELECT FROM audit_records r WHERE r.id = a.subject_id AND r.at <= settled OFFSET 0)
    END;
    RETURN NULL;
END
$$;

CREATE TRIGGER refuse_birth AFTER INSERT ON removals
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION hooksaga_guard_removals();
CREATE TRIGGER refuse_update AFTER UPDATE ON removals
    FOR EACH ROW EXECUTE FUNCTION hooksaga_refuse('what is to be removed never becomes something else');

CREATE FUNCTION hooksaga_guard_events() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM hooksaga_refuse_removal('events', 'an event only goes as finished history, after all that belongs to it')
    FROM gone g
    WHERE g.created_at > now() - interval '1 minute'
       OR NOT EXISTS (SELECT FROM removals r WHERE r.kind = 'event' AND r.subject_id = g.id OFFSET 0)
       OR EXISTS (SELECT FROM webhook_delivery_sagas s WHERE s.event_id = g.id OFFSET 0)
       OR EXISTS (SELECT FROM dead_letters d WHERE d.event_id = g.id OFFSET 0);
    RETURN NULL;
END
$$;

CREATE FUNCTION hooksaga_guard_sagas() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM hooksaga_refuse_removal('webhook_delivery_sagas',
                                    'a saga can be deleted only together with its event, after its jobs and its dead letter')
    FROM gone g
    WHERE g.status NOT IN ('Completed', 'DeadLettered') OR g.updated_at > now() - interval '1 minute'
       OR NOT EXISTS (SELECT FROM removals r WHERE r.kind = 'event' AND r.subject_id = g.event_id OFFSET 0)
       OR EXISTS (SELECT FROM webhook_delivery_jobs j WHERE j.saga_id = g.id OFFSET 0)
       OR EXISTS (SELECT FROM dead_letters d WHERE d.saga_id = g.id OFFSET 0);
    RETURN NULL;
END
$$;

CREATE FUNCTION hooksaga_guard_jobs() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM hooksaga_refuse_removal('webhook_delivery_jobs',
                                    'a job can be deleted only together with its event, after the dead letter')
    FROM gone g
    WHERE g.status NOT IN ('Completed', 'Failed')
       OR NOT EXISTS (SELECT FROM removals r WHERE r.kind = 'event' AND r.subject_id = g.event_id OFFSET 0)
       OR EXISTS (SELECT FROM dead_letters d WHERE d.saga_id = g.saga_id OFFSET 0);
    RETURN NULL;
END
$$;

CREATE FUNCTION hooksaga_guard_letters() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM hooksaga_refuse_removal('dead_letters', 'a dead letter can be deleted only together with its event')
    FROM gone g
    WHERE g.created_at > now() - interval '1 minute'
       OR NOT EXISTS (SELECT FROM removals r WHERE r.kind = 'event' AND r.subject_id = g.event_id OFFSET 0);
    RETURN NULL;
END
$$;

CREATE FUNCTION hooksaga_guard_listed() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM hooksaga_refuse_removal(TG_TABLE_NAME, TG_ARGV[1])
    FROM gone g
    WHERE NOT EXISTS (SELECT FROM removals r WHERE r.kind = TG_ARGV[0] AND r.subject_id = g.id OFFSET 0);
    RETURN NULL;
END
$$;

REVOKE ALL ON FUNCTION hooksaga_guard_removals(), hooksaga_guard_events(), hooksaga_guard_sagas(), hooksaga_guard_jobs(),
    hooksaga_guard_letters(), hooksaga_guard_listed() FROM PUBLIC;

-- events -------------------------------------------------------------------------------------------------

CREATE TRIGGER refuse_update AFTER UPDATE ON events
    FOR EACH ROW EXECUTE FUNCTION hooksaga_refuse('an event never changes');
CREATE TRIGGER refuse_delete AFTER DELETE ON events
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION hooksaga_guard_events();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION hooksaga_refuse('events are never deleted');

-- subscriptions ------------------------------------------------------------------------------------------

CREATE TRIGGER refuse_deleted AFTER UPDATE ON subscriptions
    FOR EACH ROW WHEN (OLD.deleted_at IS NOT NULL AND OLD.* IS DISTINCT FROM NEW.*)
    EXECUTE FUNCTION hooksaga_refuse('a deleted subscription never changes');

-- webhook_delivery_sagas -----------------------------------------------------------------------------------

CREATE TRIGGER refuse_birth AFTER INSERT ON webhook_delivery_sagas
    FOR EACH ROW WHEN (
        NEW.status <> 'Pending' OR NEW.attempt_count <> 0 OR NEW.generation < 0
        OR NEW.max_retry_limit NOT BETWEEN 1 AND 100)
    EXECUTE FUNCTION hooksaga_refuse(
        'a saga begins Pending and without attempts, with a generation of at least 0 and a limit of 1 to 100');

CREATE TRIGGER refuse_identity
    AFTER UPDATE OF id, event_id, subscription_id, generation, max_retry_limit, created_at ON webhook_delivery_sagas
    FOR EACH ROW WHEN (
        OLD.id <> NEW.id OR OLD.event_id <> NEW.event_id OR OLD.subscription_id <> NEW.subscription_id
        OR OLD.generation <> NEW.generation OR OLD.max_retry_limit <> NEW.max_retry_limit
        OR OLD.created_at <> NEW.created_at)
    EXECUTE FUNCTION hooksaga_refuse('what a saga was created with never changes');

-- Three cases: the result of an attempt is written, an attempt begins, or neither. A retry must be later than the previous
-- attempt: otherwise the key of its job would be taken, and the saga stuck.
CREATE TRIGGER refuse_change AFTER UPDATE ON webhook_delivery_sagas
    FOR EACH ROW WHEN (NOT CASE
        WHEN OLD.status = 'InProgress' AND NEW.status IN ('Completed', 'PendingRetry', 'DeadLettered') THEN
            NEW.attempt_count = OLD.attempt_count + 1
            AND (NEW.next_attempt_at > OLD.next_attempt_at
                 OR (NEW.next_attempt_at = OLD.next_attempt_at AND NEW.status <> 'PendingRetry'))
        WHEN OLD.status IN ('Completed', 'DeadLettered') THEN OLD.* IS NOT DISTINCT FROM NEW.*
        ELSE NEW.status IN (OLD.status, 'InProgress')
            AND NEW.attempt_count = OLD.attempt_count AND NEW.next_attempt_at = OLD.next_attempt_at
        END)
    EXECUTE FUNCTION hooksaga_refuse(
        'a finished saga never changes; others go from Pending or PendingRetry to InProgress, and from there on with '
        'attempt_count + 1 and, for a retry, a later next_attempt_at');

CREATE TRIGGER refuse_delete AFTER DELETE ON webhook_delivery_sagas
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION hooksaga_guard_sagas();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON webhook_delivery_sagas
    FOR EACH STATEMENT EXECUTE FUNCTION hooksaga_refuse('sagas are never deleted');

-- webhook_delivery_jobs ------------------------------------------------------------------------------------

CREATE TRIGGER refuse_birth AFTER INSERT ON webhook_delivery_jobs
    FOR EACH ROW WHEN (NEW.status <> 'Pending' OR NEW.attempt < 1)
    EXECUTE FUNCTION hooksaga_refuse('a job is born Pending, and attempts count from 1');

CREATE TRIGGER refuse_identity
    AFTER UPDATE OF id, saga_id, subscription_id, event_id, attempt, attempt_at, created_at ON webhook_delivery_jobs
    FOR EACH ROW WHEN (
        OLD.id <> NEW.id OR OLD.saga_id <> NEW.saga_id OR OLD.subscription_id <> NEW.subscription_id
        OR OLD.event_id <> NEW.event_id OR OLD.attempt <> NEW.attempt
        OR OLD.attempt_at <> NEW.attempt_at OR OLD.created_at <> NEW.created_at)
    EXECUTE FUNCTION hooksaga_refuse('what a job was created with never changes');

CREATE TRIGGER refuse_change AFTER UPDATE ON webhook_delivery_jobs
    FOR EACH ROW WHEN (
        (OLD.status = 'Pending' AND NEW.status IN ('Completed', 'Failed'))
        OR (OLD.status IN ('Completed', 'Failed') AND OLD.* IS DISTINCT FROM NEW.*))
    EXECUTE FUNCTION hooksaga_refuse('a job is leased before it finishes, and then never changes');

CREATE TRIGGER refuse_delete AFTER DELETE ON webhook_delivery_jobs
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION hooksaga_guard_jobs();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON webhook_delivery_jobs
    FOR EACH STATEMENT EXECUTE FUNCTION hooksaga_refuse('jobs are never deleted');

-- dead_letters ---------------------------------------------------------------------------------------------

CREATE TRIGGER refuse_update AFTER UPDATE ON dead_letters
    FOR EACH ROW EXECUTE FUNCTION hooksaga_refuse('a dead letter never changes');
CREATE TRIGGER refuse_delete AFTER DELETE ON dead_letters
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION hooksaga_guard_letters();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON dead_letters
    FOR EACH STATEMENT EXECUTE FUNCTION hooksaga_refuse('dead letters are never deleted');

-- letter_heads: the columns that lists of letters are filtered by, written with the rights of the schema's owner.

CREATE FUNCTION hooksaga_keep_heads() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO letter_heads
        (letter_id, saga_id, subscription_id, tenant, event_type, final_error_code, created_at, saga_created_at, requeued)
    SELECT d.id, d.saga_id, d.subscription_id, e.tenant, e.event_type, d.final_error_code, d.created_at, s.created_at,
           EXISTS (SELECT FROM webhook_delivery_sagas n
                   WHERE n.event_id = s.event_id AND n.subscription_id = s.subscription_id
                     AND n.generation = s.generation + 1 OFFSET 0)
    FROM added d
    CROSS JOIN LATERAL (
        SELECT event_id, subscription_id, generation, created_at FROM webhook_delivery_sagas WHERE id = d.saga_id OFFSET 0
    ) s
    CROSS JOIN LATERAL (SELECT tenant, event_type FROM events WHERE id = d.event_id OFFSET 0) e;
    RETURN NULL;
END
$$;

CREATE FUNCTION hooksaga_forget_heads() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM letter_heads WHERE letter_id = ANY (ARRAY(SELECT id FROM gone));
    RETURN NULL;
END
$$;

CREATE FUNCTION hooksaga_mark_requeued() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    sent_again bigint;
BEGIN
    SELECT id INTO sent_again FROM webhook_delivery_sagas
    WHERE event_id = NEW.event_id AND subscription_id = NEW.subscription_id AND generation = NEW.generation - 1;
    -- A transaction that is storing this saga's letter has this row locked, so this waits for it and then finds the
    -- head. One that begins later skips the row until this one has committed, and then finds the new saga.
    PERFORM FROM pending_dead_letters WHERE saga_id = sent_again FOR SHARE;
    UPDATE letter_heads SET requeued = true WHERE saga_id = sent_again;
    RETURN NULL;
END
$$;

REVOKE ALL ON FUNCTION hooksaga_keep_heads(), hooksaga_forget_heads(), hooksaga_mark_requeued() FROM PUBLIC;

-- All letters of a statement at once.
CREATE TRIGGER keep_heads AFTER INSERT ON dead_letters
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION hooksaga_keep_heads();
CREATE TRIGGER forget_heads AFTER DELETE ON dead_letters
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION hooksaga_forget_heads();
-- A saga from routing has generation 0, and pays for no more than this condition.
CREATE TRIGGER mark_requeued AFTER INSERT ON webhook_delivery_sagas
    FOR EACH ROW WHEN (NEW.generation > 0) EXECUTE FUNCTION hooksaga_mark_requeued();

-- The queues: rows are inserted and deleted, never changed. A role that drains a queue needs UPDATE on a column to lock rows
-- (see roles.sql); this trigger makes that right useless for anything else. Only after_subscription_id may grow.

CREATE TRIGGER refuse_update AFTER UPDATE ON unrouted_events
    FOR EACH ROW WHEN (OLD.event_id <> NEW.event_id OR NEW.after_subscription_id < OLD.after_subscription_id)
    EXECUTE FUNCTION hooksaga_refuse('of a queued event only after_subscription_id changes, and it only grows');
CREATE TRIGGER refuse_update AFTER UPDATE ON finished_jobs
    FOR EACH ROW EXECUTE FUNCTION hooksaga_refuse('a queued row never changes');
CREATE TRIGGER refuse_update AFTER UPDATE ON pending_dead_letters
    FOR EACH ROW EXECUTE FUNCTION hooksaga_refuse('a queued row never changes');

-- redrives: an ended redrive never changes. What a redrive was started with never changes, and its progress only grows.

CREATE TRIGGER refuse_birth AFTER INSERT ON redrives
    FOR EACH ROW WHEN (NEW.status <> 'running' OR NEW.after_id <> 0 OR NEW.examined + NEW.created + NEW.skipped <> 0)
    EXECUTE FUNCTION hooksaga_refuse('a redrive begins running, at its beginning');
CREATE TRIGGER refuse_final AFTER UPDATE ON redrives
    FOR EACH ROW WHEN (OLD.status <> 'running')
    EXECUTE FUNCTION hooksaga_refuse('a redrive that has ended never changes');
CREATE TRIGGER refuse_identity AFTER UPDATE ON redrives
    FOR EACH ROW WHEN (
        (OLD.id, OLD.tenant, OLD.kind, OLD.subscription_id, OLD.event_type, OLD.final_error_code, OLD.since, OLD.until,
         OLD.started_by_key, OLD.started_by, OLD.created_at) IS DISTINCT FROM
        (NEW.id, NEW.tenant, NEW.kind, NEW.subscription_id, NEW.event_type, NEW.final_error_code, NEW.since, NEW.until,
         NEW.started_by_key, NEW.started_by, NEW.created_at))
    EXECUTE FUNCTION hooksaga_refuse('what a redrive was started with never changes');
CREATE TRIGGER refuse_going_back AFTER UPDATE ON redrives
    FOR EACH ROW WHEN (
        coalesce(NEW.after_at, '-infinity') < coalesce(OLD.after_at, '-infinity')
        OR (NEW.after_at IS NOT DISTINCT FROM OLD.after_at AND NEW.after_id < OLD.after_id)
        OR NEW.examined < OLD.examined OR NEW.created < OLD.created OR NEW.skipped < OLD.skipped)
    EXECUTE FUNCTION hooksaga_refuse('the progress of a redrive never goes back');
CREATE TRIGGER refuse_delete AFTER DELETE ON redrives
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
    EXECUTE FUNCTION hooksaga_guard_listed('redrive', 'a redrive only goes when it has ended, as old history');

-- A verified subscription misses no events, however it was verified: this queues the missed events in the same transaction. A
-- change of the URL begins the gap; if the new URL is the verified one, the gap ends at once. The result of checking the
-- former URL is cleared. The function has the rights of the schema's owner, so that a role that changes a URL needs no right
-- to write catch_ups.

CREATE FUNCTION hooksaga_keep_gap() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    NEW.unverified_since := coalesce(OLD.unverified_since, NEW.updated_at);
    IF NEW.callback_url <> OLD.callback_url THEN
        NEW.check_error := NULL;
        NEW.checked_at := NULL;
    END IF;
    IF NEW.verified_url = NEW.callback_url THEN
        INSERT INTO catch_ups (subscription_id, since) VALUES (NEW.id, NEW.unverified_since);
        NEW.unverified_since := NULL;
    END IF;
    RETURN NEW;
END
$$;

REVOKE ALL ON FUNCTION hooksaga_keep_gap() FROM PUBLIC;

CREATE TRIGGER keep_gap BEFORE UPDATE ON subscriptions
    FOR EACH ROW WHEN (
        NEW.callback_url <> OLD.callback_url
        OR (OLD.unverified_since IS NOT NULL AND NEW.verified_url = NEW.callback_url))
    EXECUTE FUNCTION hooksaga_keep_gap();

-- api_keys -------------------------------------------------------------------------------------------------

CREATE TRIGGER refuse_delete AFTER DELETE ON api_keys
    FOR EACH ROW WHEN (OLD.expires_at IS NULL OR OLD.expires_at > now())
    EXECUTE FUNCTION hooksaga_refuse('only a key that has expired is deleted');
CREATE TRIGGER refuse_revival AFTER UPDATE OF revoked_at ON api_keys
    FOR EACH ROW WHEN (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS DISTINCT FROM OLD.revoked_at)
    EXECUTE FUNCTION hooksaga_refuse('a key that was revoked stays revoked');

-- audit_records --------------------------------------------------------------------------------------------

CREATE TRIGGER refuse_update AFTER UPDATE ON audit_records
    FOR EACH ROW EXECUTE FUNCTION hooksaga_refuse('an audit record never changes');
CREATE TRIGGER refuse_delete AFTER DELETE ON audit_records
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
    EXECUTE FUNCTION hooksaga_guard_listed('audit', 'an audit record only goes as old history');
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON audit_records
    FOR EACH STATEMENT EXECUTE FUNCTION hooksaga_refuse('audit records are never deleted');
