-- The tables and indexes of docs/SCHEMA.md. Times are microseconds since the Unix epoch, UTC.
-- Large columns (payload, response_excerpt) stand last in their row: SQLite reads a row from its
-- beginning, and what lies behind a large value costs a walk over the overflow pages.
-- A status is checked with = and OR: a list of more than two after IN becomes a temporary table, made anew
-- for every row that is written.
-- Ids need no AUTOINCREMENT: a row that has one is never deleted, so none is given out twice.

PRAGMA application_id = 0x686B7361;

CREATE TABLE events (
    id             INTEGER PRIMARY KEY,
    tenant         TEXT    NOT NULL DEFAULT 'default' CHECK (length(tenant) BETWEEN 1 AND 100),
    event_type     TEXT    NOT NULL CHECK (length(event_type) BETWEEN 1 AND 100),
    created_at     INTEGER NOT NULL,
    external_id    TEXT    CHECK (length(external_id) BETWEEN 1 AND 200),
    correlation_id TEXT    NOT NULL CHECK (length(correlation_id) BETWEEN 1 AND 100),
    payload        TEXT    NOT NULL
) STRICT;

-- Unique within the tenant. The external_id comes first: who may see every tenant looks for it alone.
CREATE UNIQUE INDEX uniq_event_external_id ON events (external_id, tenant) WHERE external_id IS NOT NULL;
CREATE INDEX idx_event_tenant ON events (tenant, id);
CREATE INDEX idx_event_created ON events (created_at);
CREATE INDEX idx_event_type ON events (event_type, created_at);
CREATE INDEX idx_event_correlation ON events (correlation_id);

CREATE TABLE subscriptions (
    id                 INTEGER PRIMARY KEY,
    tenant             TEXT    NOT NULL DEFAULT 'default' CHECK (length(tenant) BETWEEN 1 AND 100),
    -- Its topics, sorted and joined with commas.
    event_type         TEXT    NOT NULL CHECK (length(event_type) BETWEEN 1 AND 1000),
    callback_url       TEXT    NOT NULL CHECK (length(callback_url) BETWEEN 1 AND 500),
    description        TEXT    CHECK (length(description) <= 500),
    active             INTEGER NOT NULL CHECK (active IN (0, 1)),
    max_retry_limit    INTEGER CHECK (max_retry_limit BETWEEN 1 AND 100),
    verification_round INTEGER NOT NULL DEFAULT 1,
    verified_url       TEXT    CHECK (length(verified_url) BETWEEN 1 AND 500),
    verified           INTEGER NOT NULL
                       GENERATED ALWAYS AS (verified_url IS NOT NULL AND verified_url = callback_url) VIRTUAL,
    check_round        INTEGER NOT NULL DEFAULT 0,
    check_attempts     INTEGER NOT NULL DEFAULT 0 CHECK (check_attempts >= 0),
    check_done         INTEGER NOT NULL DEFAULT 0 CHECK (check_done IN (0, 1)),
    check_number       INTEGER NOT NULL DEFAULT 0 CHECK (check_number >= 0),
    -- A default cannot name created_at; the moment of the insert is the same time.
    next_check_at      INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    check_error        TEXT    CHECK (length(check_error) BETWEEN 1 AND 100),
    checked_at         INTEGER,
    created_at         INTEGER NOT NULL,
    updated_at         INTEGER NOT NULL
) STRICT;

-- Has idx_sub_event_type (tenant, event_type) as its prefix.
CREATE UNIQUE INDEX uniq_sub_tenant_type_url ON subscriptions (tenant, event_type, callback_url);
CREATE INDEX idx_sub_tenant ON subscriptions (tenant, id);
CREATE INDEX idx_sub_url ON subscriptions (callback_url);
CREATE INDEX idx_sub_active ON subscriptions (active);
CREATE INDEX idx_sub_open_check ON subscriptions (next_check_at)
    WHERE check_round <> verification_round OR NOT check_done;

-- The routing index: a row per topic of a subscription, in step with subscriptions.event_type.
CREATE TABLE subscription_topics (
    tenant          TEXT    NOT NULL,
    topic           TEXT    NOT NULL CHECK (length(topic) BETWEEN 1 AND 100),
    subscription_id INTEGER NOT NULL,
    PRIMARY KEY (tenant, topic, subscription_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX idx_topic_subscription ON subscription_topics (subscription_id);

CREATE TABLE webhook_delivery_sagas (
    id               INTEGER PRIMARY KEY,
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
-- Has idx_saga_status (status) as its prefix. Over the retries only: what is new is found by its subscription, in the
-- next one.
CREATE INDEX idx_saga_status_retry ON webhook_delivery_sagas (status, next_attempt_at)
    WHERE status = 'PendingRetry';
CREATE INDEX idx_saga_waiting ON webhook_delivery_sagas (subscription_id, next_attempt_at)
    WHERE status IN ('Pending', 'PendingRetry');

CREATE TABLE webhook_delivery_jobs (
    id               INTEGER PRIMARY KEY,
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
    -- When it was really sent, and when the endpoint wants to be asked again.
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
    id               INTEGER PRIMARY KEY,
    saga_id          INTEGER NOT NULL,
    event_id         INTEGER NOT NULL,
    subscription_id  INTEGER NOT NULL,
    final_error_code TEXT    NOT NULL CHECK (length(final_error_code) BETWEEN 1 AND 100),
    created_at       INTEGER NOT NULL,
    payload          TEXT    NOT NULL
) STRICT;

CREATE UNIQUE INDEX uniq_dead_letter_saga ON dead_letters (saga_id);
CREATE INDEX idx_dead_letter_subscription ON dead_letters (subscription_id, id);

-- The hand-over queues. An event is routed to its subscriptions in the order of their ids, in as many steps as it
-- takes: after_subscription_id is how far it came.
CREATE TABLE unrouted_events (
    event_id              INTEGER PRIMARY KEY,
    after_subscription_id INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE finished_jobs (job_id INTEGER PRIMARY KEY) STRICT;
CREATE TABLE pending_dead_letters (saga_id INTEGER PRIMARY KEY) STRICT;

CREATE TABLE subscription_secrets (
    id              INTEGER PRIMARY KEY,
    subscription_id INTEGER NOT NULL,
    key_id          TEXT    NOT NULL CHECK (length(key_id) BETWEEN 1 AND 64),
    sealed          BLOB    NOT NULL,
    created_at      INTEGER NOT NULL,
    expires_at      INTEGER
) STRICT;

CREATE INDEX idx_secret_subscription ON subscription_secrets (subscription_id);

CREATE TABLE api_keys (
    id           INTEGER PRIMARY KEY,
    name         TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    scopes       TEXT    NOT NULL CHECK (length(scopes) BETWEEN 1 AND 100),
    sha256       BLOB    NOT NULL CHECK (length(sha256) = 32),
    -- Null: every tenant.
    tenant       TEXT    CHECK (length(tenant) BETWEEN 1 AND 100),
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    last_used_at INTEGER
) STRICT;

CREATE UNIQUE INDEX uniq_api_key_sha256 ON api_keys (sha256);

CREATE TABLE delivery_counts (
    minute          INTEGER NOT NULL,
    subscription_id INTEGER NOT NULL,
    shard           INTEGER NOT NULL,
    delivered       INTEGER NOT NULL,
    failed          INTEGER NOT NULL,
    dead_lettered   INTEGER NOT NULL,
    PRIMARY KEY (minute, subscription_id, shard)
) STRICT, WITHOUT ROWID;

-- Worker processes, by their heartbeats.
CREATE TABLE workers (
    id         INTEGER PRIMARY KEY,
    slots      INTEGER NOT NULL CHECK (slots >= 0),
    version    TEXT    NOT NULL CHECK (length(version) BETWEEN 1 AND 50),
    started_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL
) STRICT;
