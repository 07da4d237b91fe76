    -- MariaDB's JSON_VALID accepts texts that no JSON parser does (1., [-], "\x"), and ends at 31 levels. Replacing by pattern
    -- takes time that grows with the square of what is replaced. So the text is matched once, against the whole grammar, in
    -- which `v` is a value. The pattern never backtracks. If the text has enough brackets to be nested too deep, every level
    -- gets its own rule, which refers only to the one below it.
    SET pattern = CONCAT('(?-imsx)(?(DEFINE)(?<w>[ \\t\\n\\r]*+)',
        '(?<s>"(?:[^"\\\\\\x00-\\x1f]++|\\\\(?:["\\\\/bfnrt]|u[0-9A-Fa-f]{4}))*+")',
        '(?<c>(?&s)|true|false|null|-?+(?:0|[1-9][0-9]*+)(?:\\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+)');
    SET rule = '(?<v>(?&w)(?>(?&c)|\\[(?>(?&w)\\]|(?&v)(?:,(?&v))*+\\])|\\{(?>(?&w)\\}|(?&w)(?&s)(?&w):(?&v)(?:,(?&w)(?&s)(?&w):(?&v))*+\\}))(?&w))';
    IF COALESCE(p_payload REGEXP CONCAT('(?-imsx)\\A(?:[^[{]*+[[{]){', max_depth + 1, '}'), 1) = 0 THEN
        SET pattern = CONCAT(pattern, rule);
    ELSE
        SET pattern = CONCAT(pattern, '(?<v0>(?&w)(?&c)(?&w))');
        WHILE depth < max_depth DO
            SET depth = depth + 1;
            SET pattern = CONCAT(pattern, REPLACE(REPLACE(rule, '<v>', CONCAT('<v', depth, '>')), '(?&v)',
                                                  CONCAT('(?&v', depth - 1, ')')));
        END WHILE;
    END IF;
    SET pattern = CONCAT(pattern, ')\\A(?&v', IF(depth = 0, '', depth), ')\\z');
    IF COALESCE(p_payload REGEXP pattern, 0) = 0 THEN
        SIGNAL SQLSTATE 'OX422' SET MESSAGE_TEXT = 'hooksaga_append: payload is not JSON, or nested more than 128 deep';
    END IF;
