-- The tables and indexes of docs/SCHEMA.md. Times are microseconds since the Unix epoch, UTC.
-- Large columns (payload, response_excerpt) come last in their row: SQLite reads a row from its beginning, and a column
-- behind a large value costs a scan of the overflow pages.
-- A status is checked with = and OR: SQLite turns a list of more than two values after IN into a temporary table, for every
-- row that is written.
-- Ids are AUTOINCREMENT: no id is used twice, whatever is removed, and after a restore from a backup they can be moved
-- forward (sqlite_sequence).

PRAGMA application_id = 0x686B7361;

CREATE TABLE events (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant         TEXT    NOT NULL DEFAULT 'default' CHECK (length(tenant) BETWEEN 1 AND 100),
    event_type     TEXT    NOT NULL CHECK (length(event_type) BETWEEN 1 AND 100),
    created_at     INTEGER NOT NULL,
    external_id    TEXT    CHECK (length(external_id) BETWEEN 1 AND 200),
    correlation_id TEXT    NOT NULL CHECK (length(correlation_id) BETWEEN 1 AND 100),
    payload        TEXT    NOT NULL
) STRICT;

-- Unique within the tenant. The external_id comes first: a caller who may see every tenant searches for it alone.
CREATE UNIQUE INDEX uniq_event_external_id ON events (external_id, tenant) WHERE external_id IS NOT NULL;
CREATE INDEX idx_event_tenant ON events (tenant, id);
CREATE INDEX idx_event_created ON events (created_at);
CREATE INDEX idx_event_type ON events (event_type, created_at);
CREATE INDEX idx_event_correlation ON events (correlation_id);

CREATE TABLE subscriptions (
    id                 INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant             TEXT    NOT NULL DEFAULT 'default' CHECK (length(tenant) BETWEEN 1 AND 100),
    -- Its topics, sorted and joined with commas.
    event_type         TEXT    NOT NULL CHECK (length(event_type) BETWEEN 1 AND 1000),
    callback_url       TEXT    NOT NULL CHECK (length(callback_url) BETWEEN 1 AND 500),
    description        TEXT    CHECK (length(description) <= 500),
    active             INTEGER NOT NULL CHECK (active IN (0, 1)),
    max_retry_limit    INTEGER CHECK (max_retry_limit BETWEEN 1 AND 100),
    -- Attempts started per second; null: not limited.
    rate_limit         INTEGER CHECK (rate_limit BETWEEN 1 AND 10000),
    -- The names of its static request headers, joined with commas; subscription_headers has the rest.
    header_names       TEXT    CHECK (length(header_names) BETWEEN 1 AND 1700),
    -- Why and when the caretaker disabled it, until it is activated again.
    disabled_reason    TEXT    CHECK (disabled_reason IN ('GONE', 'FAILING')),
    disabled_at        INTEGER,
    -- A deleted subscription stays for the history that names it; it is inactive, and nothing else finds it.
    deleted_at         INTEGER,
    -- Who vouches for the endpoint, so that it is trusted without a challenge, and in which round of verification.
    vouched_by         TEXT    CHECK (length(vouched_by) BETWEEN 1 AND 100),
    vouched_round      INTEGER,
    verification_round INTEGER NOT NULL DEFAULT 1,
    verified_url       TEXT    CHECK (length(verified_url) BETWEEN 1 AND 500),
    verified           INTEGER NOT NULL
                       GENERATED ALWAYS AS (verified_url IS NOT NULL AND verified_url = callback_url) VIRTUAL,
    -- Whether its open deliveries continue. Those of a deleted subscription do, until they fail.
    deliverable        INTEGER NOT NULL
                       GENERATED ALWAYS AS (deleted_at IS NOT NULL OR (active AND verified)) VIRTUAL,
    -- Who vouched for verified_url, if it returned no challenge.
    trusted_by         TEXT    CHECK (length(trusted_by) BETWEEN 1 AND 100),
    trusted_at         INTEGER,
    -- The verified_url that was announced to operators.
    announced_url      TEXT    CHECK (length(announced_url) BETWEEN 1 AND 500),
    check_round        INTEGER NOT NULL DEFAULT 0,
    check_attempts     INTEGER NOT NULL DEFAULT 0 CHECK (check_attempts >= 0),
    check_done         INTEGER NOT NULL DEFAULT 0 CHECK (check_done IN (0, 1)),
    check_number       INTEGER NOT NULL DEFAULT 0 CHECK (check_number >= 0),
    -- A default cannot refer to created_at; the time of the insert is the same.
    next_check_at      INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    check_error        TEXT    CHECK (length(check_error) BETWEEN 1 AND 100),
    checked_at         INTEGER,
    -- The time since which it has missed events because it was not verified: its creation, or the change of its URL.
    -- Null once it is queued to catch up.
    unverified_since   INTEGER DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    created_at         INTEGER NOT NULL,
    updated_at         INTEGER NOT NULL,
    CHECK ((disabled_reason IS NULL) = (disabled_at IS NULL)),
    CHECK (NOT active OR (disabled_reason IS NULL AND deleted_at IS NULL)),
    CHECK ((vouched_by IS NULL) = (vouched_round IS NULL)),
    CHECK ((trusted_by IS NULL) = (trusted_at IS NULL))
) STRICT;

-- Has idx_sub_event_type (tenant, event_type) as its prefix.
CREATE UNIQUE INDEX uniq_sub_tenant_type_url ON subscriptions (tenant, event_type, callback_url)
    WHERE deleted_at IS NULL;
CREATE INDEX idx_sub_tenant ON subscriptions (tenant, id);
CREATE INDEX idx_sub_url ON subscriptions (callback_url);
CREATE INDEX idx_sub_active ON subscriptions (active);
CREATE INDEX idx_sub_open_check ON subscriptions (next_check_at)
    WHERE (check_round <> verification_round OR NOT check_done) AND deleted_at IS NULL;
-- By tenant: when the open round of verification is due. A new round is due at once.
CREATE INDEX idx_sub_open_check_tenant ON subscriptions
    (tenant, CASE WHEN check_round <> verification_round THEN 0 ELSE next_check_at END)
    WHERE (check_round <> verification_round OR NOT check_done) AND deleted_at IS NULL;
CREATE INDEX idx_sub_unannounced ON subscriptions (id)
    WHERE verified_url IS NOT NULL AND announced_url IS NOT verified_url AND deleted_at IS NULL;

-- The router finds subscriptions here: a row per topic of a subscription, written in the same transaction as its event_type.
CREATE TABLE subscription_topics (
    tenant          TEXT    NOT NULL,
    topic           TEXT    NOT NULL CHECK (length(topic) BETWEEN 1 AND 100),
    subscription_id INTEGER NOT NULL,
    PRIMARY KEY (tenant, topic, subscription_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_topic_subscription ON subscription_topics (subscription_id);

CREATE TABLE webhook_delivery_sagas (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id         INTEGER NOT NULL,
    subscription_id  INTEGER NOT NULL,
    generation       INTEGER NOT NULL DEFAULT 0 CHECK (generation >= 0),
    status           TEXT    NOT NULL
                     CHECK (status = 'Completed' OR status = 'InProgress' OR status = 'Pending'
                            OR status = 'PendingRetry' OR status = 'DeadLettered'),
    attempt_count    INTEGER NOT NULL CHECK (attempt_count >= 0),
    max_retry_limit  INTEGER NOT NULL CHECK (max_retry_limit BETWEEN 1 AND 100),
    next_attempt_at  INTEGER NOT NULL,
    final_error_code TEXT    CHECK (length(final_error_code) BETWEEN 1 AND 100),
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL
) STRICT;

-- Has idx_saga_event (event_id, subscription_id) as its prefix.
CREATE UNIQUE INDEX uniq_saga_event_subscription
    ON webhook_delivery_sagas (event_id, subscription_id, generation);
-- Has idx_saga_status (status) as its prefix. Retries only: new sagas are found by their subscription, in the next index.
CREATE INDEX idx_saga_status_retry ON webhook_delivery_sagas (status, next_attempt_at)
    WHERE status = 'PendingRetry';
CREATE INDEX idx_saga_waiting ON webhook_delivery_sagas (subscription_id, next_attempt_at)
    WHERE status IN ('Pending', 'PendingRetry');

CREATE TABLE webhook_delivery_jobs (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    saga_id          INTEGER NOT NULL,
    subscription_id  INTEGER NOT NULL,
    attempt_at       INTEGER NOT NULL,
    status           TEXT    NOT NULL
                     CHECK (status = 'Completed' OR status = 'Leased' OR status = 'Pending' OR status = 'Failed'),
    lease_until      INTEGER NOT NULL,
    lease_token      INTEGER,
    lease_resets     INTEGER NOT NULL DEFAULT 0 CHECK (lease_resets >= 0),
    response_status  INTEGER,
    error_code       TEXT    CHECK (length(error_code) BETWEEN 1 AND 100),
    duration_ms      INTEGER CHECK (duration_ms >= 0),
    -- When it was really sent, and when the endpoint asked for the next attempt.
    started_at       INTEGER,
    retry_at         INTEGER,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    -- Where it was sent.
    callback_url     TEXT    CHECK (length(callback_url) BETWEEN 1 AND 500),
    response_excerpt TEXT    CHECK (octet_length(response_excerpt) <= 4096),
    CHECK ((error_code IS NOT NULL) = (status = 'Failed')),
    CHECK ((lease_token IS NOT NULL) = (status = 'Leased'))
) STRICT;

CREATE UNIQUE INDEX uniq_job_saga_attempt ON webhook_delivery_jobs (saga_id, attempt_at);
CREATE UNIQUE INDEX uniq_job_active ON webhook_delivery_jobs (saga_id)
    WHERE status IN ('Pending', 'Leased');
CREATE INDEX idx_job_pending ON webhook_delivery_jobs (lease_until) WHERE status = 'Pending';
CREATE INDEX idx_job_leased ON webhook_delivery_jobs (lease_until) WHERE status = 'Leased';

CREATE TABLE dead_letters (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    saga_id          INTEGER NOT NULL,
    event_id         INTEGER NOT NULL,
    subscription_id  INTEGER NOT NULL,
    final_error_code TEXT    NOT NULL CHECK (length(final_error_code) BETWEEN 1 AND 100),
    created_at       INTEGER NOT NULL,
    payload          TEXT    NOT NULL
) STRICT;

CREATE UNIQUE INDEX uniq_dead_letter_saga ON dead_letters (saga_id);
CREATE INDEX idx_dead_letter_subscription ON dead_letters (subscription_id, id);
-- For the janitor: an event stays as long as it has a dead letter.
CREATE INDEX idx_dead_letter_event ON dead_letters (event_id);

-- The columns that lists of dead letters are filtered by: a narrow row for each letter, with columns of its event, and
-- whether it was sent again. Triggers write it (0002_guards.sql), whichever role stores, sends again or removes a letter.
CREATE TABLE letter_heads (
    letter_id        INTEGER PRIMARY KEY,
    saga_id          INTEGER NOT NULL,
    subscription_id  INTEGER NOT NULL,
    tenant           TEXT    NOT NULL,
    event_type       TEXT    NOT NULL,
    final_error_code TEXT    NOT NULL,
    created_at       INTEGER NOT NULL,
    saga_created_at  INTEGER NOT NULL,
    requeued         INTEGER NOT NULL
) STRICT;

-- These indexes have all filter columns: one subscription, tenant or type may have all letters.
CREATE INDEX idx_head_subscription
    ON letter_heads (subscription_id, letter_id, requeued, event_type, final_error_code, created_at);
CREATE INDEX idx_head_tenant
    ON letter_heads (tenant, letter_id, requeued, event_type, final_error_code, created_at);
CREATE INDEX idx_head_type ON letter_heads (event_type, letter_id, requeued, final_error_code, created_at);
-- For lists of dead deliveries, in the order of deliveries: of a subscription, of a tenant, and by type or time.
CREATE INDEX idx_head_dead_subscription ON letter_heads (subscription_id, saga_id, event_type, saga_created_at);
CREATE INDEX idx_head_dead ON letter_heads (tenant, saga_id, event_type, saga_created_at);
CREATE INDEX idx_head_saga ON letter_heads (saga_id, event_type, saga_created_at);
CREATE INDEX idx_head_requeued ON letter_heads (requeued, letter_id);

-- The hand-over queues. An event is routed to its subscriptions in the order of their ids, in one step or several:
-- after_subscription_id is the last one that was routed.
CREATE TABLE unrouted_events (
    event_id              INTEGER PRIMARY KEY,
    after_subscription_id INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE finished_jobs (job_id INTEGER PRIMARY KEY) STRICT;
CREATE TABLE pending_dead_letters (saga_id INTEGER PRIMARY KEY) STRICT;

-- Subscriptions that were verified and have missed events until then. `until` is the end of the gap: the first step sets
-- it. The router adds a row with its own end for an event that is older than the gap. after_at and after_id are where the
-- scan of the events resumes.
CREATE TABLE catch_ups (
    id              INTEGER PRIMARY KEY,
    subscription_id INTEGER NOT NULL,
    since           INTEGER NOT NULL,
    until           INTEGER,
    after_at        INTEGER,
    after_id        INTEGER NOT NULL DEFAULT 0,
    next_at         INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX idx_catch_up_next ON catch_ups (next_at);
CREATE INDEX idx_catch_up_subscription ON catch_ups (subscription_id);

-- How many subscriptions with a matching topic could not get an event when it was routed. A row exists only if any could
-- not.
CREATE TABLE unmatched_events (
    event_id   INTEGER PRIMARY KEY,
    paused     INTEGER NOT NULL CHECK (paused >= 0),
    disabled   INTEGER NOT NULL CHECK (disabled >= 0),
    unverified INTEGER NOT NULL CHECK (unverified >= 0)
) STRICT;

-- Redrives: of the dead letters that match a filter, or of a subscription's events since a time. after_at and after_id are
-- where the scan resumes.
CREATE TABLE redrives (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Null: of every tenant.
    tenant           TEXT    CHECK (length(tenant) BETWEEN 1 AND 100),
    kind             TEXT    NOT NULL CHECK (kind = 'dead_letters' OR kind = 'events'),
    subscription_id  INTEGER,
    event_type       TEXT    CHECK (length(event_type) BETWEEN 1 AND 100),
    final_error_code TEXT    CHECK (length(final_error_code) BETWEEN 1 AND 100),
    since            INTEGER,
    until            INTEGER NOT NULL,
    status           TEXT    NOT NULL DEFAULT 'running'
                     CHECK (status = 'running' OR status = 'done' OR status = 'cancelled' OR status = 'failed'),
    error            TEXT    CHECK (length(error) BETWEEN 1 AND 500),
    after_at         INTEGER,
    after_id         INTEGER NOT NULL DEFAULT 0,
    examined         INTEGER NOT NULL DEFAULT 0 CHECK (examined >= 0),
    created          INTEGER NOT NULL DEFAULT 0 CHECK (created >= 0),
    skipped          INTEGER NOT NULL DEFAULT 0 CHECK (skipped >= 0),
    -- Null: the root key, which is not stored.
    started_by_key   INTEGER,
    started_by       TEXT    NOT NULL CHECK (length(started_by) BETWEEN 1 AND 100),
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL
) STRICT;

CREATE INDEX idx_redrive_status ON redrives (status, updated_at);
CREATE INDEX idx_redrive_tenant ON redrives (tenant, id);

CREATE TABLE subscription_secrets (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    subscription_id INTEGER NOT NULL,
    key_id          TEXT    NOT NULL CHECK (length(key_id) BETWEEN 1 AND 64),
    sealed          BLOB    NOT NULL,
    created_at      INTEGER NOT NULL,
    expires_at      INTEGER
) STRICT;

CREATE INDEX idx_secret_subscription ON subscription_secrets (subscription_id);

-- Static request headers, encrypted like secrets. A subscription has all of them in one row, so that they are read together
-- with its URL.
CREATE TABLE subscription_headers (
    subscription_id INTEGER PRIMARY KEY,
    key_id          TEXT    NOT NULL CHECK (length(key_id) BETWEEN 1 AND 64),
    sealed          BLOB    NOT NULL
) STRICT;

CREATE TABLE api_keys (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    name         TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    scopes       TEXT    NOT NULL CHECK (length(scopes) BETWEEN 1 AND 100),
    sha256       BLOB    NOT NULL CHECK (length(sha256) = 32),
    -- Null: every tenant.
    tenant       TEXT    CHECK (length(tenant) BETWEEN 1 AND 100),
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    last_used_at INTEGER,
    -- Created by key_admin. The keys that the API creates always have a tenant and an end.
    by_admin     INTEGER NOT NULL DEFAULT 0 CHECK (by_admin IN (0, 1)),
    CHECK (by_admin OR (tenant IS NOT NULL AND expires_at IS NOT NULL))
) STRICT;

CREATE UNIQUE INDEX uniq_api_key_sha256 ON api_keys (sha256);
-- For the janitor: every portal session creates a key, so in time most keys have expired.
CREATE INDEX idx_key_expiry ON api_keys (expires_at) WHERE expires_at IS NOT NULL;

-- Who did what. Rows are only added; the janitor removes old ones.
CREATE TABLE audit_records (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    -- Null: the root key, or the command line.
    key_id   INTEGER,
    key_name TEXT    NOT NULL CHECK (length(key_name) BETWEEN 1 AND 100),
    action   TEXT    NOT NULL CHECK (length(action) BETWEEN 1 AND 100),
    target   TEXT    NOT NULL CHECK (length(target) <= 200),
    tenant   TEXT    CHECK (length(tenant) BETWEEN 1 AND 100)
) STRICT;

CREATE INDEX idx_audit_tenant ON audit_records (tenant, id);
CREATE INDEX idx_audit_target ON audit_records (target, id);
CREATE INDEX idx_audit_action ON audit_records (action, id);
CREATE INDEX idx_audit_at ON audit_records (at, id);
CREATE INDEX idx_audit_tenant_action ON audit_records (tenant, action, id);
CREATE INDEX idx_audit_tenant_at ON audit_records (tenant, at, id);

CREATE TABLE delivery_counts (
    minute          INTEGER NOT NULL,
    subscription_id INTEGER NOT NULL,
    shard           INTEGER NOT NULL,
    delivered       INTEGER NOT NULL,
    failed          INTEGER NOT NULL,
    dead_lettered   INTEGER NOT NULL,
    -- A histogram: attempts that took at most this many milliseconds, and more than the previous column's limit. Then the
    -- slowest.
    ms_10           INTEGER NOT NULL DEFAULT 0,
    ms_20           INTEGER NOT NULL DEFAULT 0,
    ms_50           INTEGER NOT NULL DEFAULT 0,
    ms_100          INTEGER NOT NULL DEFAULT 0,
    ms_200          INTEGER NOT NULL DEFAULT 0,
    ms_500          INTEGER NOT NULL DEFAULT 0,
    ms_1000         INTEGER NOT NULL DEFAULT 0,
    ms_2000         INTEGER NOT NULL DEFAULT 0,
    ms_5000         INTEGER NOT NULL DEFAULT 0,
    ms_10000        INTEGER NOT NULL DEFAULT 0,
    ms_20000        INTEGER NOT NULL DEFAULT 0,
    ms_more         INTEGER NOT NULL DEFAULT 0,
    slowest_ms      INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (minute, subscription_id, shard)
) STRICT, WITHOUT ROWID;

-- Sums that the janitor computes from the counts of past minutes, when these no longer change: per hour and subscription,
-- and for the last hours per minute, over all subscriptions (with an empty tenant) and of each tenant.
CREATE TABLE delivery_hours (
    hour            INTEGER NOT NULL,
    subscription_id INTEGER NOT NULL,
    delivered       INTEGER NOT NULL,
    failed          INTEGER NOT NULL,
    dead_lettered   INTEGER NOT NULL,
    PRIMARY KEY (hour, subscription_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE minute_totals (
    minute        INTEGER NOT NULL,
    tenant        TEXT    NOT NULL CHECK (length(tenant) <= 100),
    delivered     INTEGER NOT NULL,
    failed        INTEGER NOT NULL,
    dead_lettered INTEGER NOT NULL,
    PRIMARY KEY (minute, tenant)
) STRICT, WITHOUT ROWID;

-- How far these sums reach. `sums`: 1 totals of minutes, 2 hours. Everything before `below` is summed; of the hour that
-- begins there, the subscriptions up to `after_subscription_id`.
CREATE TABLE count_progress (
    sums                  INTEGER PRIMARY KEY CHECK (sums IN (1, 2)),
    below                 INTEGER NOT NULL DEFAULT 0,
    after_subscription_id INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO count_progress (sums) VALUES (1), (2);

-- The rows that the janitor removes. Events, ended redrives and audit records can only be deleted while they are listed here, and
-- nothing that is open or recent can be listed (0002_guards.sql). The table is empty between transactions, with one
-- exception: an event with very many deliveries is removed in several transactions. A listed event is never sent again.
CREATE TABLE removals (
    kind       TEXT    NOT NULL CHECK (kind = 'event' OR kind = 'redrive' OR kind = 'audit'),
    subject_id INTEGER NOT NULL,
    PRIMARY KEY (kind, subject_id)
) STRICT, WITHOUT ROWID;

-- Worker processes that are alive, by the heartbeat that each writes every few seconds.
CREATE TABLE workers (
    id         INTEGER PRIMARY KEY,
    slots      INTEGER NOT NULL CHECK (slots >= 0),
    version    TEXT    NOT NULL CHECK (length(version) BETWEEN 1 AND 50),
    started_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL
) STRICT;

-- The failures of an endpoint: a row for each that has ever failed. All attempts since `since` have failed, and `failures` is
-- how many; both are reset by a success, and when the subscription is activated. `gone_url` returned 410 (Gone).
CREATE TABLE endpoint_failures (
    subscription_id INTEGER PRIMARY KEY,
    since           INTEGER,
    failures        INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
    -- This run of failures was announced to operators.
    announced       INTEGER NOT NULL DEFAULT 0 CHECK (announced IN (0, 1)),
    last_at         INTEGER NOT NULL,
    last_saga_id    INTEGER NOT NULL,
    last_error_code TEXT    NOT NULL CHECK (length(last_error_code) BETWEEN 1 AND 100),
    gone_url        TEXT    CHECK (length(gone_url) BETWEEN 1 AND 500),
    CHECK ((since IS NULL) = (failures = 0))
) STRICT;

CREATE INDEX idx_failures_since ON endpoint_failures (since, subscription_id) WHERE since IS NOT NULL;
CREATE INDEX idx_failures_gone ON endpoint_failures (subscription_id) WHERE gone_url IS NOT NULL;

-- Announcements to operators that are still to be made. A row stays until its event is stored.
CREATE TABLE pending_announcements (
    subscription_id INTEGER NOT NULL,
    kind            TEXT    NOT NULL CHECK (kind = 'verified' OR kind = 'failing' OR kind = 'disabled'),
    at              INTEGER NOT NULL,
    tenant          TEXT    NOT NULL CHECK (length(tenant) BETWEEN 1 AND 100),
    callback_url    TEXT    NOT NULL CHECK (length(callback_url) BETWEEN 1 AND 500),
    reason          TEXT    CHECK (length(reason) BETWEEN 1 AND 20),
    PRIMARY KEY (subscription_id, kind, at)
) STRICT, WITHOUT ROWID;

-- The buckets of rate limits: when the bucket of a limited subscription is full again. Each has one for the admission of jobs
-- and one for the start of attempts.
CREATE TABLE rate_limits (
    subscription_id INTEGER NOT NULL,
    gate            TEXT    NOT NULL CHECK (gate IN ('admission', 'start')),
    full_at         INTEGER NOT NULL,
    PRIMARY KEY (subscription_id, gate)
) STRICT, WITHOUT ROWID;

-- The limit that the server was last started with. One row at most.
CREATE TABLE ingest_limits (
    id                INTEGER PRIMARY KEY CHECK (id = 1),
    max_payload_bytes INTEGER NOT NULL CHECK (max_payload_bytes >= 1)
) STRICT;

-- The coarse index of lists: which blocks of 256 ids contain a row with a value, and the times of the rows in a block.
-- `facet`: of deliveries 1 the subscription, 2 the tenant, 3 the event type, 5 tenant/type; of events 4 the event type, 6
-- tenant/type. `list`: 1 deliveries, 2 events. It is written asynchronously, and no delivery waits for it. Ids before `below`
-- are indexed.
CREATE TABLE list_blocks (
    facet INTEGER NOT NULL CHECK (facet BETWEEN 1 AND 6),
    value TEXT    NOT NULL CHECK (length(value) BETWEEN 1 AND 201),
    block INTEGER NOT NULL CHECK (block >= 0),
    PRIMARY KEY (facet, value, block)
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_list_block ON list_blocks (facet, block);

CREATE TABLE list_block_times (
    list     INTEGER NOT NULL CHECK (list IN (1, 2)),
    block    INTEGER NOT NULL CHECK (block >= 0),
    first_at INTEGER NOT NULL,
    last_at  INTEGER NOT NULL,
    PRIMARY KEY (list, block)
) STRICT, WITHOUT ROWID;

CREATE TABLE list_progress (
    list  INTEGER PRIMARY KEY CHECK (list IN (1, 2)),
    below INTEGER NOT NULL DEFAULT 0 CHECK (below >= 0)
) STRICT;

INSERT INTO list_progress (list) VALUES (1), (2);
