-- The transactional outbox (docs/OUTBOX.md): appends an event inside the caller's transaction. Every `hooksaga migrate` runs
-- this, with the schema in place of @schema@, as the role that is to own the function. So the function has that role's rights
-- and no others.
--
-- The function is replaced, never dropped, so that the grants of applications stay.
--
-- The caller is not trusted. The search path is fixed, and so is the meaning of a backslash in the literals here. Even so, the
-- patterns contain no backslashes.

CREATE OR REPLACE FUNCTION @schema@.hooksaga_append(
    event_type text,
    payload text,
    external_id text DEFAULT NULL,
    tenant text DEFAULT NULL,
    correlation_id text DEFAULT NULL
) RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path = @schema@, pg_temp
    SET standard_conforming_strings = on
AS $body$
#variable_conflict use_column
<<append>>
DECLARE
    -- How deep a payload may be nested, and how many bytes it may have where no server has stored a limit.
    max_depth CONSTANT integer := 128;
    max_bytes bigint := 1048576;
    owner text := coalesce(hooksaga_append.tenant, 'default');
    correlation text := hooksaga_append.correlation_id;
    rest text;
    before integer;
    id bigint;
    same boolean;
    reason text;
BEGIN
    -- The same rules and messages as in the API (hooksaga-saga/src/names.rs, hooksaga-http/src/validate.rs).
    reason := CASE
        WHEN (hooksaga_append.event_type COLLATE "C" ~ '^[A-Za-z0-9_.:-]{1,100}$') IS NOT TRUE
            THEN 'event_type must be 1 to 100 characters of A-Z a-z 0-9 _ . : -'
        WHEN starts_with(hooksaga_append.event_type, 'hooksaga.')
            THEN 'event_type must not begin with hooksaga.: those are the server''s own'
        WHEN (owner COLLATE "C" ~ '^[A-Za-z0-9_.:-]{1,100}$') IS NOT TRUE
            THEN 'tenant must be 1 to 100 characters of A-Z a-z 0-9 _ . : -'
        WHEN owner = 'hooksaga'
            THEN 'tenant must not be hooksaga: that tenant is the server''s own'
        WHEN hooksaga_append.external_id COLLATE "C" !~ '^[!-~]{1,200}$'
            THEN 'external_id must be 1 to 200 visible ASCII characters without blanks'
        WHEN correlation COLLATE "C" !~ '^[!-~]{1,100}$'
            THEN 'correlation_id must be 1 to 100 visible ASCII characters without blanks'
        WHEN hooksaga_append.payload IS NULL
            THEN 'payload is required'
    END;
    IF reason IS NOT NULL THEN
        RAISE EXCEPTION 'hooksaga_append: %', reason USING ERRCODE = 'OX422';
    END IF;

    SELECT l.max_payload_bytes INTO max_bytes FROM ingest_limits l WHERE l.id = 1;
    max_bytes := coalesce(max_bytes, 1048576);
    IF octet_length(hooksaga_append.payload) > max_bytes THEN
        RAISE EXCEPTION 'hooksaga_append: payload has % bytes; at most % are allowed',
            octet_length(hooksaga_append.payload), max_bytes USING ERRCODE = 'OX413';
    END IF;

    -- Checks the nesting before the server's own parser recurses into it. A text with fewer brackets than the limit cannot be
    -- nested deeper. Otherwise strings are removed (a valid text has backslashes in strings only), then everything but
    -- brackets. Each pass then removes empty pairs of brackets, so it takes as many passes as there are levels.
    rest := hooksaga_append.payload;
    IF length(rest) - length(translate(rest, '[{', '')) > max_depth THEN
        rest := replace(replace(rest, repeat(chr(92), 2), ''), chr(92) || '"', '');
        rest := translate(regexp_replace(regexp_replace(rest, '"[^"]*"', '', 'g'), '[^][{}]+', '', 'g'), '{}', '[]');
        FOR pass IN 1 .. max_depth LOOP
            before := length(rest);
            rest := replace(rest, '[]', '');
            EXIT WHEN length(rest) = before;
        END LOOP;
        IF strpos(rest, '[]') > 0 THEN
            RAISE EXCEPTION 'hooksaga_append: payload must be nested at most % deep', max_depth
                USING ERRCODE = 'OX422';
        END IF;
        IF rest <> '' THEN
            RAISE EXCEPTION 'hooksaga_append: payload is not JSON: brackets do not match' USING ERRCODE = 'OX422';
        END IF;
    END IF;
    BEGIN
        PERFORM hooksaga_append.payload::json;
    EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
        GET STACKED DIAGNOSTICS reason = PG_EXCEPTION_DETAIL;
        RAISE EXCEPTION 'hooksaga_append: payload is not JSON: %', reason USING ERRCODE = 'OX422';
    END;

    -- As the API creates them: the time in milliseconds, then 20 random digits (the random ones of a UUID).
    IF correlation IS NULL THEN
        rest := replace(gen_random_uuid()::text, '-', '');
        correlation := lpad(to_hex(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
            || substr(rest, 1, 12) || substr(rest, 25, 8);
    END IF;

    -- If the external_id is taken, the insert waits for a transaction that has not ended. The SELECT after it is a separate
    -- statement, so it sees what that transaction stored. (In REPEATABLE READ it cannot; there the insert fails with 40001.)
    -- The holder may be rolled back or removed in between: then the loop tries once more.
    FOR attempt IN 1 .. 5 LOOP
        INSERT INTO events (tenant, event_type, payload, external_id, correlation_id, created_at)
        VALUES (owner, hooksaga_append.event_type, hooksaga_append.payload, hooksaga_append.external_id, correlation,
                clock_timestamp())
        ON CONFLICT DO NOTHING
        RETURNING events.id INTO append.id;
        IF append.id IS NOT NULL THEN
            INSERT INTO unrouted_events (event_id) VALUES (append.id);
            -- PostgreSQL sends it when the transaction commits, and only then. By then the router may be far past this id, so
            -- it is told where to look. In thousands: many events of one transaction are one signal.
            PERFORM pg_notify('hooksaga_wake', 'router,from:' || append.id / 1000 * 1000);
            RETURN append.id;
        END IF;
        SELECT e.id, e.event_type = hooksaga_append.event_type AND e.payload = hooksaga_append.payload
        INTO append.id, same
        FROM events e WHERE e.external_id = hooksaga_append.external_id AND e.tenant = owner;
        IF append.id IS NOT NULL THEN
            IF same THEN
                RETURN append.id;
            END IF;
            RAISE EXCEPTION 'hooksaga_append: event % has this external_id, with another event_type or payload', append.id
                USING ERRCODE = 'OX409', HINT = 'Use an external_id of its own for every event.';
        END IF;
    END LOOP;
    RAISE EXCEPTION 'hooksaga_append: other transactions keep inserting and rolling back this external_id'
        USING ERRCODE = 'serialization_failure';
END
$body$;

REVOKE ALL ON FUNCTION @schema@.hooksaga_append(text, text, text, text, text) FROM PUBLIC;
COMMENT ON FUNCTION @schema@.hooksaga_append(text, text, text, text, text) IS
    'hooksaga: appends an event in the caller''s transaction, and returns its id';
