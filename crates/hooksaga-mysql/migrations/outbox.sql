-- The transactional outbox (docs/OUTBOX.md): appends an event inside the caller's transaction, and returns one row with its
-- `id`. `hooksaga migrate` creates it (src/outbox.rs) and fills in the names between two @. Its definer is ingestion's role,
-- so it has that role's rights and no others.
--
-- The caller is not trusted, and its isolation level is not known. Session variables that change what a pattern means are
-- turned off inside the patterns. Values go into variables without a limit, so that nothing is truncated before it is checked.
--
-- No gap of an index may stay locked while the caller's transaction is open: every post whose external_id falls into the gap
-- would wait. So:
--   the search for a duplicate is a read that locks nothing, except in SERIALIZABLE, where every read locks: there it is
--   left out. (A session does not show SERIALIZABLE that was set for one transaction only. In such a transaction the search
--   locks the gap of a new external_id; this procedure cannot prevent that.)
--   an INSERT whose key is free locks its own row and nothing else, at every isolation level;
--   an INSERT whose key is taken, or being taken, locks the gap before it. The first happens only if the holder came after
--   the caller's snapshot (or in SERIALIZABLE); the second waits for a second at most.
--
-- A procedure does not open a transaction by itself. If the caller has none open, this one begins its own; a SAVEPOINT that
-- disappears at once shows that there is none. In an open transaction, a failure undoes only what was written here.

CREATE @or_replace@ DEFINER = @definer@ PROCEDURE hooksaga_append(
    IN event_type LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN external_id LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN tenant LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    IN correlation_id LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
)
    MODIFIES SQL DATA
    SQL SECURITY DEFINER
    COMMENT '@comment@'
append: BEGIN
    DECLARE max_depth INT DEFAULT 128;
    DECLARE max_bytes BIGINT DEFAULT 1048576;
    DECLARE p_type LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT event_type;
    DECLARE p_payload LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT payload;
    DECLARE p_external LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT external_id;
    DECLARE p_tenant LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT COALESCE(tenant, 'default');
    DECLARE p_correlation LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT correlation_id;
    DECLARE reason TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT NULL;
    DECLARE pattern, rule LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    DECLARE depth INT DEFAULT 0;
    -- The key in the columns' own character set. Otherwise the comparison would convert the columns and not use their index.
    DECLARE key_external VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin;
    DECLARE key_tenant VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin;
    DECLARE found BIGINT DEFAULT NULL;
    DECLARE same BOOLEAN DEFAULT NULL;
    DECLARE taken, held, alone BOOLEAN DEFAULT FALSE;
    DECLARE last_id BIGINT UNSIGNED DEFAULT LAST_INSERT_ID();
    DECLARE patience BIGINT DEFAULT @@session.innodb_lock_wait_timeout;

    -- The same rules and messages as in the API (hooksaga-saga/src/names.rs, hooksaga-http/src/validate.rs).
    SET reason = CASE
        WHEN COALESCE(p_type REGEXP '(?-imsx)\\A[A-Za-z0-9_.:-]{1,100}\\z', 0) = 0
            THEN 'event_type must be 1 to 100 characters of A-Z a-z 0-9 _ . : -'
        WHEN LEFT(p_type, 9) = 'hooksaga.'
            THEN 'event_type must not begin with hooksaga.: those are the server''s own'
        WHEN COALESCE(p_tenant REGEXP '(?-imsx)\\A[A-Za-z0-9_.:-]{1,100}\\z', 0) = 0
            THEN 'tenant must be 1 to 100 characters of A-Z a-z 0-9 _ . : -'
        WHEN p_tenant = 'hooksaga'
            THEN 'tenant must not be hooksaga: that tenant is the server''s own'
        WHEN p_external IS NOT NULL AND COALESCE(p_external REGEXP '(?-imsx)\\A[!-~]{1,200}\\z', 0) = 0
            THEN 'external_id must be 1 to 200 visible ASCII characters without blanks'
        WHEN p_correlation IS NOT NULL AND COALESCE(p_correlation REGEXP '(?-imsx)\\A[!-~]{1,100}\\z', 0) = 0
            THEN 'correlation_id must be 1 to 100 visible ASCII characters without blanks'
        WHEN p_payload IS NULL
            THEN 'payload is required'
        -- insert_id would become the event's id: perhaps one that was used before, or the largest possible one, after
        -- which nothing could be inserted.
        WHEN @@session.insert_id <> 0
            THEN 'insert_id must not be set: the server gives an event its id'
        -- Without the checks an external_id could be stored twice, and the first event of a table would lock all of it.
        WHEN NOT @@session.unique_checks
            THEN 'unique_checks must not be off: it finds an external_id that is stored already'
    END;
    IF reason IS NOT NULL THEN
        SET reason = CONCAT('hooksaga_append: ', reason);
        SIGNAL SQLSTATE 'OX422' SET MESSAGE_TEXT = reason;
    END IF;

    SET key_external = p_external, key_tenant = p_tenant;

    -- An aggregate returns a row even if no server has stored a limit.
    SELECT COALESCE(MAX(l.max_payload_bytes), max_bytes) INTO max_bytes FROM ingest_limits l WHERE l.id = 1;
    IF OCTET_LENGTH(p_payload) > max_bytes THEN
        SET reason = CONCAT('hooksaga_append: payload has ', OCTET_LENGTH(p_payload), ' bytes; at most ', max_bytes,
                            ' are allowed');
        SIGNAL SQLSTATE 'OX413' SET MESSAGE_TEXT = reason;
    END IF;

@valid@

    -- As the API creates them: the time in milliseconds, then 20 random digits.
    IF p_correlation IS NULL THEN
        SET p_correlation = LOWER(CONCAT(
            LPAD(HEX(FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)), 12, '0'), LEFT(SHA2(CONCAT(UUID(), RAND()), 256), 20)));
    END IF;

    BEGIN
        DECLARE CONTINUE HANDLER FOR 1305 SET alone = @@session.autocommit;
        SAVEPOINT hooksaga_append;
        RELEASE SAVEPOINT hooksaga_append;
    END;
    BEGIN
        DECLARE EXIT HANDLER FOR SQLEXCEPTION
        BEGIN
            SET SESSION innodb_lock_wait_timeout = patience;
            DO LAST_INSERT_ID(last_id);
            IF alone THEN
                ROLLBACK;
            ELSE
                BEGIN
                    -- After a deadlock the whole transaction is gone, and with it the savepoint.
                    DECLARE CONTINUE HANDLER FOR 1305 BEGIN END;
                    ROLLBACK TO SAVEPOINT hooksaga_append;
                    RELEASE SAVEPOINT hooksaga_append;
                END;
            END IF;
            RESIGNAL;
        END;
        IF alone THEN
            START TRANSACTION;
        END IF;
        SAVEPOINT hooksaga_append;
        IF p_external IS NOT NULL AND @isolation@ <> 'SERIALIZABLE' THEN
            SELECT MAX(e.id), MAX(e.event_type = p_type AND CAST(e.payload AS BINARY) = CAST(p_payload AS BINARY))
            INTO found, same
            FROM events e WHERE e.external_id = key_external AND e.tenant = key_tenant;
        END IF;
        IF found IS NULL THEN
            BEGIN
                DECLARE CONTINUE HANDLER FOR 1062 SET taken = TRUE;
                DECLARE CONTINUE HANDLER FOR 1205 SET held = TRUE;
                IF p_external IS NOT NULL THEN
                    SET SESSION innodb_lock_wait_timeout = 1;
                END IF;
                -- Reset it, so that its value after the INSERT is known to come from the INSERT.
                DO LAST_INSERT_ID(0);
                INSERT INTO events (tenant, event_type, payload, external_id, correlation_id, created_at)
                VALUES (p_tenant, p_type, p_payload, p_external, p_correlation, UTC_TIMESTAMP(6));
                SET SESSION innodb_lock_wait_timeout = patience;
            END;
            IF held THEN
                SIGNAL SQLSTATE 'OX423' SET MESSAGE_TEXT =
                    'hooksaga_append: this external_id is being stored by a transaction that has not ended; try again later';
            ELSEIF taken THEN
                -- A locking read sees what the caller's snapshot does not.
                SELECT e.id, e.event_type = p_type AND CAST(e.payload AS BINARY) = CAST(p_payload AS BINARY)
                INTO found, same
                FROM events e WHERE e.external_id = key_external AND e.tenant = key_tenant
                /*!80000 FOR SHARE */ /*M!100300 LOCK IN SHARE MODE */;
            ELSEIF LAST_INSERT_ID() = 0 THEN
                -- insert_id was set to 0, which reads like not being set.
                SIGNAL SQLSTATE 'OX422' SET MESSAGE_TEXT =
                    'hooksaga_append: insert_id must not be set: the server gives an event its id';
            ELSE
                SET found = LAST_INSERT_ID(), same = TRUE;
                INSERT INTO unrouted_events (event_id) VALUES (found);
            END IF;
        END IF;
        IF found IS NULL OR NOT same THEN
            SET reason = CONCAT('hooksaga_append: event ', COALESCE(found, '?'),
                                ' has this external_id, with another event_type or payload');
            SIGNAL SQLSTATE 'OX409' SET MESSAGE_TEXT = reason;
        END IF;
        RELEASE SAVEPOINT hooksaga_append;
        IF alone THEN
            COMMIT;
        END IF;
    END;
    -- Restores the caller's LAST_INSERT_ID().
    DO LAST_INSERT_ID(last_id);
    SELECT found AS id;
END
