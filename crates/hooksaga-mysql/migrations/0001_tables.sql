-- Version 1: tables, keys and indexes, as docs/SCHEMA.md describes them.
--
-- DDL is not transactional here. So every statement can be run again after a migration was interrupted anywhere.
--
-- Identifiers are VARCHAR in ascii_bin: readable, compared byte for byte, and one byte per character, so that three of them
-- fit into one key. MySQL has no such collation without padding: there 'a' = 'a '. So a CHECK refuses values that end with
-- a blank. Free text (payloads, excerpts, names, descriptions) is utf8mb4, stored as it is and never compared.
--
-- Times are DATETIME(6) in UTC, written by the program or from UTC_TIMESTAMP(6): the server's time zone does not matter. A
-- CHECK that evaluates to NULL passes: `<> ''` demands nothing of a column that is NULL.
--
-- There are no partial indexes. Indexes on generated columns that are NULL for finished rows take their place: a query scans
-- the range after the NULLs. These columns are STORED, so that an index entry never depends on a later evaluation. There are
-- no foreign keys: see docs/SCHEMA.md.

-- events: append-only -------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS events (
    id             BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant         VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'default',
    event_type     VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    created_at     DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    payload        LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    -- A claim learns a payload's size from it without reading the payload.
    payload_bytes  BIGINT GENERATED ALWAYS AS (OCTET_LENGTH(payload)) STORED,
    external_id    VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin NULL,
    correlation_id VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- In this order it also serves a search without a tenant.
    UNIQUE KEY uniq_event_external_id (external_id, tenant),
    KEY idx_event_tenant (tenant, id),
    KEY idx_event_created (created_at),
    KEY idx_event_type (event_type, created_at),
    KEY idx_event_correlation (correlation_id),
    CONSTRAINT event_not_empty CHECK (tenant <> '' AND event_type <> '' AND external_id <> ''
                                      AND correlation_id <> ''),
    CONSTRAINT event_no_blank_end CHECK (tenant NOT LIKE '% ' AND event_type NOT LIKE '% '
                                         AND external_id NOT LIKE '% ' AND correlation_id NOT LIKE '% ')
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- subscriptions ---------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS subscriptions (
    id                 BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant             VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'default',
    -- The canonical text of its topics; subscription_topics has them one by one.
    event_type         VARCHAR(1000) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    callback_url       VARCHAR(500) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    description        VARCHAR(500) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    active             BOOLEAN NOT NULL DEFAULT TRUE,
    max_retry_limit    INT NULL,
    -- Attempts started per second; NULL: not limited.
    rate_limit         INT NULL,
    -- The names of its static request headers, joined with commas; subscription_headers has the rest.
    header_names       VARCHAR(1700) CHARACTER SET ascii COLLATE ascii_bin NULL,
    -- Why and when the caretaker disabled it, until it is activated again.
    disabled_reason    VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NULL,
    disabled_at        DATETIME(6) NULL,
    -- A deleted subscription stays for the history that names it; it is inactive, and nothing else finds it.
    deleted_at         DATETIME(6) NULL,
    -- Who vouches for the endpoint, so that it is trusted without a challenge, and in which round of verification.
    vouched_by         VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    vouched_round      BIGINT NULL,
    verification_round BIGINT NOT NULL DEFAULT 1,
    verified_url       VARCHAR(500) CHARACTER SET ascii COLLATE ascii_bin NULL,
    -- Generated: nobody can set it by hand, a new URL resets it, and a late verifier cannot verify the wrong URL.
    verified           BOOLEAN GENERATED ALWAYS AS (verified_url IS NOT NULL AND verified_url = callback_url) STORED,
    -- Whether its open deliveries continue. Those of a deleted subscription do, until they fail.
    deliverable        BOOLEAN GENERATED ALWAYS AS (
                           deleted_at IS NOT NULL
                           OR (active AND verified_url IS NOT NULL AND verified_url = callback_url)) STORED,
    -- Who vouched for verified_url, if it returned no challenge.
    trusted_by         VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    trusted_at         DATETIME(6) NULL,
    -- The verified_url that was announced to operators; then whether one is still to be announced, NULL if not.
    announced_url      VARCHAR(500) CHARACTER SET ascii COLLATE ascii_bin NULL,
    to_announce        BOOLEAN GENERATED ALWAYS AS (
                           CASE WHEN deleted_at IS NULL AND verified_url IS NOT NULL
                                     AND (announced_url IS NULL OR announced_url <> verified_url) THEN TRUE END) STORED,
    check_round        BIGINT NOT NULL DEFAULT 0,
    check_attempts     INT NOT NULL DEFAULT 0,
    check_done         BOOLEAN NOT NULL DEFAULT FALSE,
    check_number       BIGINT NOT NULL DEFAULT 0,
    next_check_at      DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    check_error        VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NULL,
    checked_at         DATETIME(6) NULL,
    -- The time since which it has missed events because it was not verified: its creation, or the change of its URL.
    -- NULL once it is queued to catch up (0002_guards.sql).
    unverified_since   DATETIME(6) NULL DEFAULT (UTC_TIMESTAMP(6)),
    created_at         DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_at         DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- When the open round of verification is due. A new round is due at once; NULL while none is open.
    open_check_at      DATETIME(6) GENERATED ALWAYS AS (
                           CASE WHEN deleted_at IS NOT NULL THEN NULL
                                WHEN check_round <> verification_round THEN TIMESTAMP'1970-01-01 00:00:00.000000'
                                WHEN NOT check_done THEN next_check_at END) STORED,
    -- The tenant while a round is open, else NULL.
    open_check_tenant  VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin GENERATED ALWAYS AS (
                           CASE WHEN deleted_at IS NULL AND (check_round <> verification_round OR NOT check_done)
                                THEN tenant END) STORED,
    -- NULL once it is deleted: a unique key allows any number of NULLs.
    kept               BOOLEAN GENERATED ALWAYS AS (CASE WHEN deleted_at IS NULL THEN TRUE END) STORED,
    UNIQUE KEY uniq_sub_tenant_type_url (tenant, event_type, callback_url, kept),
    KEY idx_sub_tenant (tenant, id),
    KEY idx_sub_callback_url (callback_url),
    KEY idx_sub_active (active),
    KEY idx_sub_open_check (open_check_at),
    KEY idx_sub_open_check_tenant (open_check_tenant, open_check_at),
    KEY idx_sub_unannounced (to_announce),
    CONSTRAINT sub_not_empty CHECK (tenant <> '' AND event_type <> '' AND callback_url <> '' AND verified_url <> ''
                                    AND check_error <> ''),
    CONSTRAINT sub_no_blank_end CHECK (tenant NOT LIKE '% ' AND event_type NOT LIKE '% '
                                       AND callback_url NOT LIKE '% ' AND verified_url NOT LIKE '% '),
    CONSTRAINT sub_header_names CHECK (header_names <> ''),
    CONSTRAINT sub_retry_limit CHECK (max_retry_limit BETWEEN 1 AND 100),
    CONSTRAINT sub_rate_limit CHECK (rate_limit BETWEEN 1 AND 10000),
    CONSTRAINT sub_disabled CHECK (disabled_reason IN ('GONE', 'FAILING')),
    CONSTRAINT sub_disabled_at CHECK ((disabled_reason IS NULL) = (disabled_at IS NULL)),
    CONSTRAINT sub_off CHECK (NOT active OR (disabled_reason IS NULL AND deleted_at IS NULL)),
    CONSTRAINT sub_vouched CHECK ((vouched_by IS NULL) = (vouched_round IS NULL)),
    CONSTRAINT sub_trusted CHECK ((trusted_by IS NULL) = (trusted_at IS NULL)),
    CONSTRAINT sub_check_attempts CHECK (check_attempts >= 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The router finds subscriptions here: a row per topic of a subscription, written in the same transaction as its event_type.

CREATE TABLE IF NOT EXISTS subscription_topics (
    tenant          VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    topic           VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    subscription_id BIGINT NOT NULL,
    PRIMARY KEY (tenant, topic, subscription_id),
    KEY idx_topic_subscription (subscription_id),
    CONSTRAINT topic_not_empty CHECK (tenant <> '' AND topic <> ''),
    -- Not for `topic`: there the router itself distinguishes 'a' from 'a '.
    CONSTRAINT topic_no_blank_end CHECK (tenant NOT LIKE '% ')
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- webhook_delivery_sagas ------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS webhook_delivery_sagas (
    id               BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    event_id         BIGINT NOT NULL,
    subscription_id  BIGINT NOT NULL,
    generation       INT NOT NULL DEFAULT 0,
    status           ENUM ('Pending', 'InProgress', 'PendingRetry', 'Completed', 'DeadLettered')
                     CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'Pending',
    attempt_count    INT NOT NULL DEFAULT 0,
    max_retry_limit  INT NOT NULL,
    next_attempt_at  DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    final_error_code VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NULL,
    created_at       DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_at       DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- The subscription, while the saga waits for its next job.
    waiting_subscription_id BIGINT GENERATED ALWAYS AS (
                                CASE WHEN status IN ('Pending', 'PendingRetry') THEN subscription_id END) STORED,
    UNIQUE KEY uniq_saga_event_subscription (event_id, subscription_id, generation),
    KEY idx_saga_status_retry (status, next_attempt_at),
    KEY idx_saga_waiting (waiting_subscription_id, next_attempt_at),
    CONSTRAINT saga_not_empty CHECK (final_error_code <> ''),
    CONSTRAINT saga_generation CHECK (generation >= 0),
    CONSTRAINT saga_attempt_count CHECK (attempt_count >= 0),
    CONSTRAINT saga_retry_limit CHECK (max_retry_limit BETWEEN 1 AND 100)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- webhook_delivery_jobs -------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS webhook_delivery_jobs (
    id               BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    saga_id          BIGINT NOT NULL,
    subscription_id  BIGINT NOT NULL,
    attempt_at       DATETIME(6) NOT NULL,
    status           ENUM ('Pending', 'Leased', 'Completed', 'Failed')
                     CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'Pending',
    lease_until      DATETIME(6) NOT NULL,
    lease_token      BIGINT NULL,
    lease_resets     INT NOT NULL DEFAULT 0,
    response_status  INT NULL,
    error_code       VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NULL,
    duration_ms      INT NULL,
    -- When and where it was really sent; when the endpoint asked for the next attempt.
    started_at       DATETIME(6) NULL,
    callback_url     VARCHAR(500) CHARACTER SET ascii COLLATE ascii_bin NULL,
    retry_at         DATETIME(6) NULL,
    response_excerpt TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    created_at       DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_at       DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    -- Set while the job is active: a saga has at most one such job.
    active_saga_id   BIGINT GENERATED ALWAYS AS (
                         CASE WHEN status IN ('Pending', 'Leased') THEN saga_id END) STORED,
    -- While Pending: the earliest claim, which never comes for a parked job. While Leased: the end of the lease.
    pending_until    DATETIME(6) GENERATED ALWAYS AS (CASE WHEN status = 'Pending' THEN lease_until END) STORED,
    leased_until     DATETIME(6) GENERATED ALWAYS AS (CASE WHEN status = 'Leased' THEN lease_until END) STORED,
    UNIQUE KEY uniq_job_saga_attempt (saga_id, attempt_at),
    UNIQUE KEY uniq_job_active (active_saga_id),
    KEY idx_job_pending (pending_until),
    KEY idx_job_leased (leased_until),
    CONSTRAINT job_not_empty CHECK (error_code <> '' AND callback_url <> ''),
    CONSTRAINT job_lease_resets CHECK (lease_resets >= 0),
    CONSTRAINT job_duration CHECK (duration_ms >= 0),
    CONSTRAINT job_excerpt CHECK (OCTET_LENGTH(response_excerpt) <= 4096),
    CONSTRAINT job_error_when_failed CHECK ((status = 'Failed') = (error_code IS NOT NULL)),
    CONSTRAINT job_token_when_leased CHECK ((status = 'Leased') = (lease_token IS NOT NULL))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- dead_letters ----------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS dead_letters (
    id               BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    saga_id          BIGINT NOT NULL,
    event_id         BIGINT NOT NULL,
    subscription_id  BIGINT NOT NULL,
    final_error_code VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    payload          LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    created_at       DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    UNIQUE KEY uniq_dead_letter_saga (saga_id),
    KEY idx_dead_letter_subscription (subscription_id, id),
    -- For the janitor: an event stays as long as it has a dead letter.
    KEY idx_dead_letter_event (event_id),
    CONSTRAINT letter_not_empty CHECK (final_error_code <> '')
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The columns that lists of dead letters are filtered by: a narrow row for each letter, with columns of its event, and
-- whether it was sent again. Triggers write it (0002_guards.sql), whichever role stores, sends again or removes a letter.
CREATE TABLE IF NOT EXISTS letter_heads (
    letter_id        BIGINT NOT NULL PRIMARY KEY,
    saga_id          BIGINT NOT NULL,
    subscription_id  BIGINT NOT NULL,
    tenant           VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    event_type       VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    final_error_code VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    created_at       DATETIME(6) NOT NULL,
    saga_created_at  DATETIME(6) NOT NULL,
    requeued         BOOLEAN NOT NULL,
    -- These indexes have all filter columns: one subscription, tenant or type may have all letters.
    KEY idx_head_subscription (subscription_id, letter_id, requeued, event_type, final_error_code, created_at),
    KEY idx_head_tenant (tenant, letter_id, requeued, event_type, final_error_code, created_at),
    KEY idx_head_type (event_type, letter_id, requeued, final_error_code, created_at),
    -- For lists of dead deliveries, in the order of deliveries: of a subscription, of a tenant, and by type or time.
    KEY idx_head_dead_subscription (subscription_id, saga_id, event_type, saga_created_at),
    KEY idx_head_dead (tenant, saga_id, event_type, saga_created_at),
    KEY idx_head_saga (saga_id, event_type, saga_created_at),
    KEY idx_head_requeued (requeued, letter_id)
) ENGINE = InnoDB;

-- The hand-over queues: small, and every row lives for moments only ------------------------------------

CREATE TABLE IF NOT EXISTS unrouted_events (
    event_id              BIGINT NOT NULL PRIMARY KEY,
    -- The last subscription that routing has considered for the event.
    after_subscription_id BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS finished_jobs (job_id BIGINT NOT NULL PRIMARY KEY) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS pending_dead_letters (saga_id BIGINT NOT NULL PRIMARY KEY) ENGINE = InnoDB;

-- Subscriptions that were verified and have missed events until then. `until` is the end of the gap: the first step sets
-- it. The router adds a row with its own end for an event that is older than the gap. `after_at` and `after_id` are where
-- the scan of the events resumes.
CREATE TABLE IF NOT EXISTS catch_ups (
    id              BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription_id BIGINT NOT NULL,
    since           DATETIME(6) NOT NULL,
    until           DATETIME(6) NULL,
    after_at        DATETIME(6) NULL,
    after_id        BIGINT NOT NULL DEFAULT 0,
    next_at         DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    KEY idx_catch_up_next (next_at),
    KEY idx_catch_up_subscription (subscription_id)
) ENGINE = InnoDB;

-- Helper tables -----------------------------------------------------------------------------------------

-- How many subscriptions with a matching topic could not get an event when it was routed. A row exists only if any could
-- not.
CREATE TABLE IF NOT EXISTS unmatched_events (
    event_id   BIGINT NOT NULL PRIMARY KEY,
    paused     BIGINT NOT NULL,
    disabled   BIGINT NOT NULL,
    unverified BIGINT NOT NULL,
    CONSTRAINT unmatched_counts CHECK (paused >= 0 AND disabled >= 0 AND unverified >= 0)
) ENGINE = InnoDB;

-- Redrives: of the dead letters that match a filter, or of a subscription's events since a time. `after_at` and `after_id`
-- are where the scan resumes.
CREATE TABLE IF NOT EXISTS redrives (
    id               BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    -- NULL: of every tenant.
    tenant           VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NULL,
    kind             VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    subscription_id  BIGINT NULL,
    event_type       VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NULL,
    final_error_code VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NULL,
    since            DATETIME(6) NULL,
    until            DATETIME(6) NOT NULL,
    status           VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'running',
    error            VARCHAR(500) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    after_at         DATETIME(6) NULL,
    after_id         BIGINT NOT NULL DEFAULT 0,
    examined         BIGINT NOT NULL DEFAULT 0,
    created          BIGINT NOT NULL DEFAULT 0,
    skipped          BIGINT NOT NULL DEFAULT 0,
    -- NULL: the root key, which is not stored.
    started_by_key   BIGINT NULL,
    started_by       VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    created_at       DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_at       DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    KEY idx_redrive_status (status, updated_at),
    KEY idx_redrive_tenant (tenant, id),
    CONSTRAINT redrive_kind CHECK (kind IN ('dead_letters', 'events')),
    CONSTRAINT redrive_status CHECK (status IN ('running', 'done', 'cancelled', 'failed')),
    CONSTRAINT redrive_not_empty CHECK (tenant <> '' AND event_type <> '' AND final_error_code <> '' AND error <> ''
                                        AND started_by <> ''),
    CONSTRAINT redrive_counts CHECK (examined >= 0 AND created >= 0 AND skipped >= 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS subscription_secrets (
    id              BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription_id BIGINT NOT NULL,
    key_id          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    sealed          VARBINARY(2000) NOT NULL,
    created_at      DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    expires_at      DATETIME(6) NULL,
    -- Every claim and every check reads the valid secrets of its subscriptions.
    KEY idx_secret_subscription (subscription_id, id),
    CONSTRAINT secret_not_empty CHECK (key_id <> '')
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Static request headers, encrypted like secrets. A subscription has all of them in one row, so that they are read together
-- with its URL.

CREATE TABLE IF NOT EXISTS subscription_headers (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    key_id          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    sealed          BLOB NOT NULL,
    CONSTRAINT header_not_empty CHECK (key_id <> '')
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS api_keys (
    id         BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name       VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    scopes     VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    sha256     BINARY(32) NOT NULL,
    tenant     VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NULL,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    expires_at DATETIME(6) NULL,
    revoked_at DATETIME(6) NULL,
    last_used_at DATETIME(6) NULL,
    -- Created by key_admin. The API's role may not write this column, so its keys always have a tenant and an end.
    by_admin   BOOLEAN NOT NULL DEFAULT FALSE,
    UNIQUE KEY uniq_key_sha256 (sha256),
    -- For the janitor: every portal session creates a key, so in time most keys have expired.
    KEY idx_key_expiry (expires_at),
    CONSTRAINT key_not_empty CHECK (name <> '' AND scopes <> '' AND tenant <> ''),
    CONSTRAINT key_no_blank_end CHECK (tenant NOT LIKE '% '),
    CONSTRAINT key_bound CHECK (by_admin OR (tenant IS NOT NULL AND expires_at IS NOT NULL))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Worker processes that are alive, by the heartbeat that each writes every few seconds.

CREATE TABLE IF NOT EXISTS workers (
    id         BIGINT NOT NULL PRIMARY KEY,
    slots      INT NOT NULL,
    version    VARCHAR(50) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    started_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    seen_at    DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    CONSTRAINT worker_slots CHECK (slots >= 0)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS delivery_counts (
    minute          DATETIME(6) NOT NULL,
    subscription_id BIGINT NOT NULL,
    shard           INT NOT NULL,
    delivered       BIGINT NOT NULL DEFAULT 0,
    failed          BIGINT NOT NULL DEFAULT 0,
    dead_lettered   BIGINT NOT NULL DEFAULT 0,
    -- A histogram: attempts that took at most this many milliseconds, and more than the previous column's limit. Then the
    -- slowest.
    ms_10           INT NOT NULL DEFAULT 0,
    ms_20           INT NOT NULL DEFAULT 0,
    ms_50           INT NOT NULL DEFAULT 0,
    ms_100          INT NOT NULL DEFAULT 0,
    ms_200          INT NOT NULL DEFAULT 0,
    ms_500          INT NOT NULL DEFAULT 0,
    ms_1000         INT NOT NULL DEFAULT 0,
    ms_2000         INT NOT NULL DEFAULT 0,
    ms_5000         INT NOT NULL DEFAULT 0,
    ms_10000        INT NOT NULL DEFAULT 0,
    ms_20000        INT NOT NULL DEFAULT 0,
    ms_more         INT NOT NULL DEFAULT 0,
    slowest_ms      INT NOT NULL DEFAULT 0,
    PRIMARY KEY (minute, subscription_id, shard)
) ENGINE = InnoDB;

-- Sums that the janitor computes from the counts of past minutes, when these no longer change: per hour and subscription,
-- and for the last hours per minute, over all subscriptions (with an empty tenant) and of each tenant.

CREATE TABLE IF NOT EXISTS delivery_hours (
    hour            DATETIME(6) NOT NULL,
    subscription_id BIGINT NOT NULL,
    delivered       BIGINT NOT NULL,
    failed          BIGINT NOT NULL,
    dead_lettered   BIGINT NOT NULL,
    PRIMARY KEY (hour, subscription_id)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS minute_totals (
    minute        DATETIME(6) NOT NULL,
    tenant        VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    delivered     BIGINT NOT NULL,
    failed        BIGINT NOT NULL,
    dead_lettered BIGINT NOT NULL,
    PRIMARY KEY (minute, tenant)
) ENGINE = InnoDB;

-- How far these sums reach. `sums`: 1 totals of minutes, 2 hours. Everything before `below` is summed; of the hour that
-- begins there, the subscriptions up to `after_subscription_id`.

CREATE TABLE IF NOT EXISTS count_progress (
    sums                  SMALLINT NOT NULL PRIMARY KEY,
    below                 DATETIME(6) NOT NULL DEFAULT '1970-01-01 00:00:00.000000',
    after_subscription_id BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT count_sums CHECK (sums IN (1, 2))
) ENGINE = InnoDB;

INSERT INTO count_progress (sums) VALUES (1), (2) ON DUPLICATE KEY UPDATE sums = VALUES(sums);

-- The rows that the janitor removes. Events, ended redrives and audit records can only be deleted while they are listed here, and
-- nothing that is open or recent can be listed (0002_guards.sql). The table is empty between transactions, with one
-- exception: an event with very many deliveries is removed in several transactions. A listed event is never sent again.

CREATE TABLE IF NOT EXISTS removals (
    kind       VARCHAR(10) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    subject_id BIGINT NOT NULL,
    PRIMARY KEY (kind, subject_id),
    CONSTRAINT removal_kind CHECK (kind IN ('event', 'redrive', 'audit'))
) ENGINE = InnoDB;

-- A lock that reaches every node of a Galera Cluster; row locks do not. A transaction that sends an old event again, or
-- removes it, inserts the event's row here and deletes it. All of them write the same key, so only one of two concurrent
-- transactions can commit. The start of a redrive does the same with 0. The table is empty between transactions.

CREATE TABLE IF NOT EXISTS event_locks (
    event_id BIGINT NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

-- The failures of an endpoint: a row for each that has ever failed. All attempts since `since` have failed, and `failures` is
-- how many; both are reset by a success, and when the subscription is activated. `gone_url` returned 410 (Gone).

CREATE TABLE IF NOT EXISTS endpoint_failures (
    subscription_id BIGINT NOT NULL PRIMARY KEY,
    since           DATETIME(6) NULL,
    failures        INT NOT NULL DEFAULT 0,
    -- This run of failures was announced to operators.
    announced       BOOLEAN NOT NULL DEFAULT FALSE,
    last_at         DATETIME(6) NOT NULL,
    last_saga_id    BIGINT NOT NULL,
    last_error_code VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    gone_url        VARCHAR(500) CHARACTER SET ascii COLLATE ascii_bin NULL,
    is_gone         BOOLEAN GENERATED ALWAYS AS (CASE WHEN gone_url IS NOT NULL THEN TRUE END) STORED,
    KEY idx_failures_since (since, subscription_id),
    KEY idx_failures_gone (is_gone, subscription_id),
    CONSTRAINT failures_not_empty CHECK (last_error_code <> '' AND gone_url <> ''),
    CONSTRAINT failures_of_a_run CHECK (failures >= 0 AND (since IS NULL) = (failures = 0))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Announcements to operators that are still to be made. A row stays until its event is stored.

CREATE TABLE IF NOT EXISTS pending_announcements (
    subscription_id BIGINT NOT NULL,
    kind            VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    at              DATETIME(6) NOT NULL,
    tenant          VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    callback_url    VARCHAR(500) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    reason          VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NULL,
    PRIMARY KEY (subscription_id, kind, at),
    CONSTRAINT announcement_kind CHECK (kind IN ('verified', 'failing', 'disabled')),
    CONSTRAINT announcement_not_empty CHECK (tenant <> '' AND callback_url <> '' AND reason <> '')
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The buckets of rate limits: when the bucket of a limited subscription is full again. Each has one for the admission of jobs
-- and one for the start of attempts.

CREATE TABLE IF NOT EXISTS rate_limits (
    subscription_id BIGINT NOT NULL,
    gate            VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    full_at         DATETIME(6) NOT NULL,
    PRIMARY KEY (subscription_id, gate),
    CONSTRAINT rate_limit_gate CHECK (gate IN ('admission', 'start'))
) ENGINE = InnoDB;

-- Who did what. Rows are only added; the janitor removes old ones.

CREATE TABLE IF NOT EXISTS audit_records (
    id       BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at       DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    key_id   BIGINT NULL,
    key_name VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    action   VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    target   VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    tenant   VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NULL,
    KEY idx_audit_tenant (tenant, id),
    KEY idx_audit_target (target, id),
    KEY idx_audit_action (action, id),
    KEY idx_audit_at (at, id),
    KEY idx_audit_tenant_action (tenant, action, id),
    KEY idx_audit_tenant_at (tenant, at, id),
    CONSTRAINT audit_not_empty CHECK (key_name <> '' AND action <> '' AND tenant <> '')
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Signals between processes, since there is no LISTEN and NOTIFY. One row per stage: a process that leaves work for a stage
-- adds one to its counter, and every process reads all rows at short intervals.

CREATE TABLE IF NOT EXISTS wake_signals (
    stage VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    sent  BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

INSERT INTO wake_signals (stage)
VALUES ('verifier'), ('router'), ('schedule'), ('apply'), ('worker'), ('resume'), ('dead_letters'), ('caretaker'),
    ('redrives')
ON DUPLICATE KEY UPDATE stage = VALUES(stage);

-- The limit that a server was last started with. The outbox (outbox.sql) enforces it, too. One row at most.

CREATE TABLE IF NOT EXISTS ingest_limits (
    id                INT NOT NULL PRIMARY KEY,
    max_payload_bytes BIGINT NOT NULL,
    CONSTRAINT limits_one_row CHECK (id = 1),
    CONSTRAINT limits_payload CHECK (max_payload_bytes >= 1)
) ENGINE = InnoDB;

-- The coarse index of lists: which blocks of 256 ids contain a row with a value, and the times of the rows in a block.
-- `facet`: of deliveries 1 the subscription, 2 the tenant, 3 the event type, 5 tenant/type; of events 4 the event type, 6
-- tenant/type. `list`: 1 deliveries, 2 events. It is written asynchronously, and no delivery waits for it. Ids before `below`
-- are indexed.

CREATE TABLE IF NOT EXISTS list_blocks (
    facet SMALLINT NOT NULL,
    value VARCHAR(201) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    block BIGINT NOT NULL,
    PRIMARY KEY (facet, value, block),
    KEY idx_list_block (facet, block),
    CONSTRAINT block_facet CHECK (facet BETWEEN 1 AND 6 AND value <> '' AND block >= 0)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS list_block_times (
    list     SMALLINT NOT NULL,
    block    BIGINT NOT NULL,
    first_at DATETIME(6) NOT NULL,
    last_at  DATETIME(6) NOT NULL,
    PRIMARY KEY (list, block),
    CONSTRAINT times_list CHECK (list IN (1, 2) AND block >= 0)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS list_progress (
    list  SMALLINT NOT NULL PRIMARY KEY,
    below BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT progress_list CHECK (list IN (1, 2) AND below >= 0)
) ENGINE = InnoDB;

INSERT INTO list_progress (list) VALUES (1), (2) ON DUPLICATE KEY UPDATE list = VALUES(list);
