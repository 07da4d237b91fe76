-- The rights of every component's role, grouped by component. Every `hooksaga migrate` runs this in one transaction. It first
-- revokes everything, so that the rights are exactly these, even after an upgrade that narrows them. Running components never
-- see the state in between.
--
-- The roles themselves are created earlier: they belong to the cluster, these rights to the database.
--
-- To drain a queue, FOR UPDATE SKIP LOCKED needs the right to UPDATE at least one column. A trigger refuses changes of a
-- queue's rows (0002_guards.sql).
--
-- Identity columns need no right on their sequence; only ingestion draws ids itself.

DO $$
DECLARE
    component text;
BEGIN
    EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema());
    FOREACH component IN ARRAY ARRAY[
        'event_ingest_writer', 'subscription_admin', 'subscription_verifier', 'router_worker',
        'saga_orchestrator', 'job_worker', 'lease_cleaner', 'dead_letter_operator', 'api_reader', 'key_admin',
        'portal_key_writer', 'key_reader', 'endpoint_caretaker', 'history_janitor', 'list_indexer']
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), component);
        EXECUTE format(
            'REVOKE ALL ON events, subscriptions, webhook_delivery_sagas, webhook_delivery_jobs, dead_letters,
                unrouted_events, finished_jobs, pending_dead_letters, subscription_secrets,
                subscription_headers, subscription_topics, api_keys, audit_records, workers, delivery_counts,
                endpoint_failures, pending_announcements, rate_limits, catch_ups, unmatched_events, redrives,
                ingest_limits, delivery_hours, minute_totals, count_progress, removals, list_blocks, list_block_times,
                list_progress, letter_heads, schema_migrations FROM %I', component);
        EXECUTE format('REVOKE ALL ON SEQUENCE events_id_seq FROM %I', component);
        EXECUTE format('GRANT SELECT ON schema_migrations TO %I', component);
    END LOOP;
END
$$;

REVOKE ALL ON events, subscriptions, webhook_delivery_sagas, webhook_delivery_jobs, dead_letters,
    unrouted_events, finished_jobs, pending_dead_letters, subscription_secrets, subscription_headers,
    subscription_topics, api_keys, audit_records, workers, delivery_counts, endpoint_failures, pending_announcements,
    rate_limits, catch_ups, unmatched_events, redrives, ingest_limits, delivery_hours, minute_totals, count_progress,
    removals, list_blocks, list_block_times, list_progress, letter_heads, schema_migrations FROM PUBLIC;

-- Ingestion: appends events, and stores the limit that a server was started with. It owns hooksaga_append (outbox.sql), which
-- has these rights.
GRANT SELECT, INSERT ON events TO event_ingest_writer;
GRANT USAGE ON SEQUENCE events_id_seq TO event_ingest_writer;
GRANT INSERT ON unrouted_events TO event_ingest_writer;
GRANT SELECT ON subscriptions TO event_ingest_writer;
GRANT SELECT, INSERT, UPDATE (max_payload_bytes) ON ingest_limits TO event_ingest_writer;

-- Subscription administration: writes configuration, never what verification writes, nor the tenant of an existing row. It
-- can write secrets but not read them.
GRANT SELECT,
      INSERT (tenant, event_type, callback_url, description, active, max_retry_limit, rate_limit,
              header_names),
      UPDATE (event_type, callback_url, description, active, max_retry_limit, rate_limit, header_names, disabled_reason,
              disabled_at, deleted_at, vouched_by, vouched_round, verification_round, updated_at)
    ON subscriptions TO subscription_admin;
GRANT SELECT, INSERT, DELETE ON subscription_topics TO subscription_admin;
GRANT SELECT (subscription_id), UPDATE (since, failures, announced, gone_url), DELETE
    ON endpoint_failures TO subscription_admin;
GRANT SELECT (subscription_id), DELETE ON rate_limits TO subscription_admin;
GRANT SELECT (subscription_id), UPDATE (next_at) ON catch_ups TO subscription_admin;
GRANT SELECT (id, subscription_id, key_id, created_at, expires_at),
      INSERT (subscription_id, key_id, sealed),
      UPDATE (expires_at),
      DELETE
    ON subscription_secrets TO subscription_admin;
GRANT SELECT (subscription_id, key_id), INSERT, DELETE ON subscription_headers TO subscription_admin;

-- Verifier: what verification writes, and nothing that is configured.
GRANT SELECT,
      UPDATE (verified_url, check_round, check_attempts, check_done, check_number, next_check_at, check_error,
              checked_at, trusted_by, trusted_at)
    ON subscriptions TO subscription_verifier;
GRANT SELECT ON subscription_secrets, subscription_headers TO subscription_verifier;
GRANT INSERT ON catch_ups TO subscription_verifier;

-- Router: creates sagas, changes none, reads no payload.
GRANT SELECT (id, tenant, event_type, created_at, external_id, correlation_id) ON events TO router_worker;
GRANT SELECT ON subscriptions, subscription_topics TO router_worker;
GRANT SELECT, DELETE, UPDATE (after_subscription_id) ON unrouted_events TO router_worker;
GRANT SELECT (id, event_id, subscription_id, generation), INSERT ON webhook_delivery_sagas TO router_worker;
GRANT SELECT, INSERT, UPDATE (paused, disabled, unverified) ON unmatched_events TO router_worker;
GRANT INSERT ON catch_ups TO router_worker;

-- Orchestrator: the only one that changes a saga or creates a job; reads no payload.
GRANT SELECT, UPDATE (status, attempt_count, next_attempt_at, final_error_code, updated_at)
    ON webhook_delivery_sagas TO saga_orchestrator;
GRANT SELECT, INSERT ON webhook_delivery_jobs TO saga_orchestrator;
GRANT SELECT, DELETE, UPDATE (job_id) ON finished_jobs TO saga_orchestrator;
GRANT INSERT ON pending_dead_letters TO saga_orchestrator;
GRANT SELECT (id, tenant, event_type, created_at, external_id, correlation_id) ON events TO saga_orchestrator;
GRANT SELECT ON subscriptions, workers TO saga_orchestrator;
GRANT SELECT, INSERT, UPDATE ON delivery_counts TO saga_orchestrator;
GRANT SELECT, INSERT,
      UPDATE (since, failures, announced, last_at, last_saga_id, last_error_code, gone_url)
    ON endpoint_failures TO saga_orchestrator;
GRANT SELECT, INSERT, UPDATE (full_at) ON rate_limits TO saga_orchestrator, job_worker;

-- Worker: leases jobs, reports their results, and writes its heartbeat.
GRANT SELECT ON webhook_delivery_sagas, events, subscriptions, subscription_secrets, subscription_headers
    TO job_worker;
GRANT SELECT,
      UPDATE (status, lease_until, lease_token, response_status, error_code, duration_ms, started_at, callback_url,
              retry_at, response_excerpt, updated_at)
    ON webhook_delivery_jobs TO job_worker;
GRANT INSERT ON finished_jobs TO job_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON workers TO job_worker;

-- Lease cleaner: frees jobs. Of sagas and events it can read only what leads to the tenant and the correlation id. (The other
-- back ends get there by the saga; the rights are the same everywhere.)
GRANT SELECT, UPDATE (status, lease_until, lease_token, lease_resets, updated_at)
    ON webhook_delivery_jobs TO lease_cleaner;
GRANT SELECT (id, event_id) ON webhook_delivery_sagas TO lease_cleaner;
GRANT SELECT (id, tenant, correlation_id) ON events TO lease_cleaner;

-- Dead letters: stores letters, and creates new sagas to send deliveries again. It changes neither sagas nor jobs.
GRANT SELECT, INSERT ON webhook_delivery_sagas, dead_letters TO dead_letter_operator;
GRANT SELECT (letter_id, tenant) ON letter_heads TO dead_letter_operator;
-- (Locking an event against the janitor needs the right to UPDATE a column; triggers keep events from changing.)
GRANT SELECT, UPDATE (id) ON events TO dead_letter_operator;
GRANT SELECT ON subscriptions, removals TO dead_letter_operator;
GRANT SELECT, DELETE, UPDATE (saga_id) ON pending_dead_letters TO dead_letter_operator;
GRANT SELECT, INSERT, UPDATE (status, error, after_at, after_id, examined, created, skipped, updated_at)
    ON redrives TO dead_letter_operator;
GRANT SELECT, DELETE, UPDATE (until, after_at, after_id, next_at) ON catch_ups TO dead_letter_operator;

-- List indexer: reads the columns that lists are filtered by, and no payload.
GRANT SELECT (id, event_id, subscription_id, created_at) ON webhook_delivery_sagas TO list_indexer;
GRANT SELECT (id, tenant, event_type, created_at) ON events TO list_indexer;
GRANT SELECT, INSERT, DELETE ON list_blocks TO list_indexer;
GRANT SELECT, INSERT, UPDATE, DELETE ON list_block_times TO list_indexer;
GRANT SELECT, UPDATE (below) ON list_progress TO list_indexer;

-- Caretaker: reads counters, disables subscriptions, and announces that as events. It reads no delivery and no payload.
GRANT SELECT, UPDATE (since, failures, announced, gone_url) ON endpoint_failures TO endpoint_caretaker;
GRANT SELECT, UPDATE (active, disabled_reason, disabled_at, announced_url) ON subscriptions TO endpoint_caretaker;
GRANT SELECT, INSERT, DELETE ON pending_announcements TO endpoint_caretaker;
GRANT SELECT (id, tenant, external_id), INSERT ON events TO endpoint_caretaker;
GRANT INSERT ON unrouted_events TO endpoint_caretaker;

-- Janitor: removes finished history, and changes none of it. (UPDATE: for its locks, as above.)
GRANT SELECT, DELETE, UPDATE (id) ON events TO history_janitor;
GRANT SELECT, DELETE ON webhook_delivery_sagas, webhook_delivery_jobs, dead_letters, unmatched_events, redrives,
    audit_records, delivery_counts TO history_janitor;
GRANT SELECT, INSERT, DELETE ON removals TO history_janitor;
GRANT SELECT, INSERT, DELETE ON delivery_hours, minute_totals TO history_janitor;
GRANT SELECT, UPDATE (below, after_subscription_id) ON count_progress TO history_janitor;
GRANT SELECT ON unrouted_events, pending_dead_letters TO history_janitor;
GRANT SELECT (id, tenant, callback_url) ON subscriptions TO history_janitor;
GRANT SELECT (id, expires_at), DELETE ON api_keys TO history_janitor;

-- API reads and metrics: everything but secrets.
GRANT SELECT ON events, subscriptions, webhook_delivery_sagas, webhook_delivery_jobs, dead_letters,
    unrouted_events, finished_jobs, pending_dead_letters, subscription_topics, workers, delivery_counts, delivery_hours,
    minute_totals, count_progress, endpoint_failures, pending_announcements, rate_limits, catch_ups, unmatched_events, redrives,
    audit_records, list_blocks, list_block_times, list_progress, letter_heads TO api_reader;
GRANT SELECT (id, name, scopes, created_at, revoked_at, tenant, expires_at, last_used_at) ON api_keys TO api_reader;

-- API keys: one role creates and revokes them, the other looks them up by their hash and writes the time of their last use.
GRANT SELECT, INSERT, UPDATE (revoked_at) ON api_keys TO key_admin;
GRANT SELECT, UPDATE (last_used_at) ON api_keys TO key_reader;
-- For the API: without by_admin a new key has a tenant and an end (0001_tables.sql).
GRANT SELECT (id, name, scopes, tenant, created_at, expires_at, revoked_at, last_used_at),
    INSERT (name, scopes, sha256, tenant, expires_at), UPDATE (revoked_at) ON api_keys TO portal_key_writer;

-- The audit log: those who act add to it, and nobody changes it.
GRANT INSERT ON audit_records TO subscription_admin, dead_letter_operator, key_admin, portal_key_writer;
