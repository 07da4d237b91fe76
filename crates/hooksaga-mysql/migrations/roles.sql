-- The rights of every component's role, grouped by component. `hooksaga migrate` reads this file, replaces the plain role
-- names with those of the database, grants what is missing and revokes what is not listed (src/rights). Every role may also
-- read schema_migrations.
--
-- To drain a queue, SELECT … FOR UPDATE SKIP LOCKED needs SELECT and either DELETE or UPDATE; these roles have DELETE. No
-- role needs UPDATE in order to skip rows that exist: they are looked up before the insert. Roles that use ON DUPLICATE KEY
-- UPDATE (counters, heartbeats) have UPDATE on the whole table: MariaDB requires it on every column that the INSERT names.

-- Ingestion: appends events, and stores the limit that a server was started with. hooksaga_append (outbox.sql) runs with
-- these rights; MariaDB requires EXECUTE of the definer, too.
GRANT SELECT, INSERT ON events TO event_ingest_writer;
GRANT INSERT ON unrouted_events TO event_ingest_writer;
GRANT SELECT ON subscriptions TO event_ingest_writer;
GRANT SELECT, INSERT, UPDATE (max_payload_bytes) ON ingest_limits TO event_ingest_writer;
GRANT EXECUTE ON PROCEDURE hooksaga_append TO event_ingest_writer;

-- Subscription administration: writes configuration, never what verification writes. It can write secrets but not read them.
GRANT SELECT, INSERT (tenant, event_type, callback_url, description, active, max_retry_limit, rate_limit, header_names), UPDATE (event_type, callback_url, description, active, max_retry_limit, rate_limit, header_names, disabled_reason, disabled_at, deleted_at, vouched_by, vouched_round, verification_round, updated_at) ON subscriptions TO subscription_admin;
GRANT SELECT, INSERT, DELETE ON subscription_topics TO subscription_admin;
GRANT SELECT (subscription_id), UPDATE (since, failures, announced, gone_url), DELETE ON endpoint_failures TO subscription_admin;
GRANT SELECT (subscription_id), DELETE ON rate_limits TO subscription_admin;
GRANT SELECT (subscription_id), UPDATE (next_at) ON catch_ups TO subscription_admin;
GRANT SELECT (id, subscription_id, key_id, created_at, expires_at), INSERT (subscription_id, key_id, sealed), UPDATE (expires_at), DELETE ON subscription_secrets TO subscription_admin;
GRANT SELECT (subscription_id, key_id), INSERT, DELETE ON subscription_headers TO subscription_admin;

-- Verifier: what verification writes, and nothing that is configured.
GRANT SELECT, UPDATE (verified_url, check_round, check_attempts, check_done, check_number, next_check_at, check_error, checked_at, trusted_by, trusted_at) ON subscriptions TO subscription_verifier;
GRANT SELECT ON subscription_secrets TO subscription_verifier;
GRANT SELECT ON subscription_headers TO subscription_verifier;
GRANT INSERT ON catch_ups TO subscription_verifier;

-- Router: creates sagas, changes none, reads no payload.
GRANT SELECT (id, tenant, event_type, created_at, external_id, correlation_id) ON events TO router_worker;
GRANT SELECT ON subscriptions TO router_worker;
GRANT SELECT ON subscription_topics TO router_worker;
GRANT SELECT, UPDATE (after_subscription_id), DELETE ON unrouted_events TO router_worker;
GRANT SELECT (id, event_id, subscription_id, generation), INSERT ON webhook_delivery_sagas TO router_worker;
GRANT SELECT, INSERT, UPDATE ON unmatched_events TO router_worker;
GRANT INSERT ON catch_ups TO router_worker;

-- Orchestrator: the only one that changes a saga or creates a job; reads no payload.
GRANT SELECT, UPDATE (status, attempt_count, next_attempt_at, final_error_code, updated_at) ON webhook_delivery_sagas TO saga_orchestrator;
GRANT SELECT, INSERT ON webhook_delivery_jobs TO saga_orchestrator;
GRANT SELECT, DELETE ON finished_jobs TO saga_orchestrator;
GRANT INSERT ON pending_dead_letters TO saga_orchestrator;
GRANT SELECT (id, tenant, event_type, created_at, external_id, correlation_id) ON events TO saga_orchestrator;
GRANT SELECT ON subscriptions TO saga_orchestrator;
GRANT SELECT, INSERT, UPDATE ON delivery_counts TO saga_orchestrator;
GRANT SELECT ON workers TO saga_orchestrator;
GRANT SELECT, INSERT, UPDATE ON endpoint_failures TO saga_orchestrator;
GRANT SELECT, INSERT, UPDATE (full_at) ON rate_limits TO saga_orchestrator;

-- Worker: leases jobs, reports their results, and writes its heartbeat.
GRANT SELECT ON webhook_delivery_sagas TO job_worker;
GRANT SELECT ON events TO job_worker;
GRANT SELECT ON subscriptions TO job_worker;
GRANT SELECT ON subscription_secrets TO job_worker;
GRANT SELECT ON subscription_headers TO job_worker;
GRANT SELECT, UPDATE (status, lease_until, lease_token, response_status, error_code, duration_ms, started_at, callback_url, retry_at, response_excerpt, updated_at) ON webhook_delivery_jobs TO job_worker;
GRANT INSERT ON finished_jobs TO job_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON workers TO job_worker;
GRANT SELECT, INSERT, UPDATE (full_at) ON rate_limits TO job_worker;

-- Lease cleaner: frees jobs. Of sagas and events it can read only what leads to the tenant and the correlation id.
GRANT SELECT, UPDATE (status, lease_until, lease_token, lease_resets, updated_at) ON webhook_delivery_jobs TO lease_cleaner;
GRANT SELECT (id, event_id) ON webhook_delivery_sagas TO lease_cleaner;
GRANT SELECT (id, tenant, correlation_id) ON events TO lease_cleaner;

-- Dead letters: stores letters, and creates new sagas to send deliveries again. It changes neither sagas nor jobs.
GRANT SELECT, INSERT ON webhook_delivery_sagas TO dead_letter_operator;
GRANT SELECT, INSERT ON dead_letters TO dead_letter_operator;
GRANT SELECT (letter_id, tenant) ON letter_heads TO dead_letter_operator;
GRANT SELECT ON events TO dead_letter_operator;
GRANT SELECT ON subscriptions TO dead_letter_operator;
GRANT SELECT ON removals TO dead_letter_operator;
GRANT SELECT, INSERT, UPDATE, DELETE ON event_locks TO dead_letter_operator;
GRANT SELECT, DELETE ON pending_dead_letters TO dead_letter_operator;
GRANT SELECT, INSERT, UPDATE (status, error, after_at, after_id, examined, created, skipped, updated_at) ON redrives TO dead_letter_operator;
GRANT SELECT, UPDATE (until, after_at, after_id, next_at), DELETE ON catch_ups TO dead_letter_operator;

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

-- Janitor: removes finished history, and changes none of it.
GRANT SELECT, DELETE ON events TO history_janitor;
GRANT SELECT, DELETE ON webhook_delivery_sagas TO history_janitor;
GRANT SELECT, DELETE ON webhook_delivery_jobs TO history_janitor;
GRANT SELECT, DELETE ON dead_letters TO history_janitor;
GRANT SELECT, DELETE ON unmatched_events TO history_janitor;
GRANT SELECT, DELETE ON redrives TO history_janitor;
GRANT SELECT, DELETE ON audit_records TO history_janitor;
GRANT SELECT, DELETE ON delivery_counts TO history_janitor;
GRANT SELECT, INSERT, DELETE ON delivery_hours TO history_janitor;
GRANT SELECT, INSERT, DELETE ON minute_totals TO history_janitor;
GRANT SELECT, UPDATE (below, after_subscription_id) ON count_progress TO history_janitor;
GRANT SELECT, INSERT, DELETE ON removals TO history_janitor;
GRANT SELECT, INSERT, UPDATE, DELETE ON event_locks TO history_janitor;
GRANT SELECT ON unrouted_events TO history_janitor;
GRANT SELECT ON pending_dead_letters TO history_janitor;
GRANT SELECT (id, tenant, callback_url) ON subscriptions TO history_janitor;
GRANT SELECT (id, expires_at), DELETE ON api_keys TO history_janitor;

-- API reads and metrics: reads everything but secrets. It also sends and receives the signals between processes.
GRANT SELECT ON events TO api_reader;
GRANT SELECT ON subscriptions TO api_reader;
GRANT SELECT ON webhook_delivery_sagas TO api_reader;
GRANT SELECT ON webhook_delivery_jobs TO api_reader;
GRANT SELECT ON dead_letters TO api_reader;
GRANT SELECT ON unrouted_events TO api_reader;
GRANT SELECT ON finished_jobs TO api_reader;
GRANT SELECT ON pending_dead_letters TO api_reader;
GRANT SELECT ON delivery_counts TO api_reader;
GRANT SELECT ON delivery_hours TO api_reader;
GRANT SELECT ON minute_totals TO api_reader;
GRANT SELECT ON count_progress TO api_reader;
GRANT SELECT ON subscription_topics TO api_reader;
GRANT SELECT ON workers TO api_reader;
GRANT SELECT ON endpoint_failures TO api_reader;
GRANT SELECT ON pending_announcements TO api_reader;
GRANT SELECT ON rate_limits TO api_reader;
GRANT SELECT ON catch_ups TO api_reader;
GRANT SELECT ON unmatched_events TO api_reader;
GRANT SELECT ON redrives TO api_reader;
GRANT SELECT (id, name, scopes, tenant, created_at, expires_at, revoked_at, last_used_at) ON api_keys TO api_reader;
GRANT SELECT ON audit_records TO api_reader;
GRANT SELECT ON list_blocks TO api_reader;
GRANT SELECT ON list_block_times TO api_reader;
GRANT SELECT ON list_progress TO api_reader;
GRANT SELECT ON letter_heads TO api_reader;
GRANT SELECT, UPDATE (sent) ON wake_signals TO api_reader;

-- API keys: one role creates and revokes them, the other looks them up.
GRANT SELECT, INSERT, UPDATE (revoked_at) ON api_keys TO key_admin;
GRANT SELECT, UPDATE (last_used_at) ON api_keys TO key_reader;
-- For the API: without by_admin a new key has a tenant and an end (0001_tables.sql).
GRANT SELECT (id, name, scopes, tenant, created_at, expires_at, revoked_at, last_used_at), INSERT (name, scopes, sha256, tenant, expires_at), UPDATE (revoked_at) ON api_keys TO portal_key_writer;

-- The audit log: those who act add to it, and nobody changes it.
GRANT INSERT ON audit_records TO subscription_admin;
GRANT INSERT ON audit_records TO dead_letter_operator;
GRANT INSERT ON audit_records TO key_admin;
GRANT INSERT ON audit_records TO portal_key_writer;
