    -- MySQL's JSON_VALID is exact, and ends at 100 levels.
    IF COALESCE(JSON_VALID(p_payload), 0) = 0 THEN
        SIGNAL SQLSTATE 'OX422' SET MESSAGE_TEXT = 'hooksaga_append: payload is not JSON, or nested too deep';
    END IF;
