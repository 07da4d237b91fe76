//! The rights of every role, grouped by component. Everything else is refused.
//!
//! The same table as the other back ends' GRANTs. It is enforced by the [authorizer](crate::authorizer).

use hooksaga_store::Role;

/// What one role may do with one table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Right {
    table: &'static str,
    select: Columns,
    insert: bool,
    update: &'static [&'static str],
    delete: bool,
}

#[derive(Clone, Copy, Debug)]
enum Columns {
    None,
    All,
    Only(&'static [&'static str]),
    AllBut(&'static [&'static str]),
}

const EVENTS: Right = on("events");
const SUBSCRIPTIONS: Right = on("subscriptions");
const TOPICS: Right = on("subscription_topics");
const SECRETS: Right = on("subscription_secrets");
const HEADERS: Right = on("subscription_headers");
const SAGAS: Right = on("webhook_delivery_sagas");
const JOBS: Right = on("webhook_delivery_jobs");
const DEAD_LETTERS: Right = on("dead_letters");
const UNROUTED_EVENTS: Right = on("unrouted_events");
const FINISHED_JOBS: Right = on("finished_jobs");
const PENDING_DEAD_LETTERS: Right = on("pending_dead_letters");
const CATCH_UPS: Right = on("catch_ups");
const UNMATCHED_EVENTS: Right = on("unmatched_events");
const REDRIVES: Right = on("redrives");
const DELIVERY_COUNTS: Right = on("delivery_counts");
const DELIVERY_HOURS: Right = on("delivery_hours");
const MINUTE_TOTALS: Right = on("minute_totals");
const COUNT_PROGRESS: Right = on("count_progress");
const REMOVALS: Right = on("removals");
const WORKERS: Right = on("workers");
const ENDPOINT_FAILURES: Right = on("endpoint_failures");
const PENDING_ANNOUNCEMENTS: Right = on("pending_announcements");
const RATE_LIMITS: Right = on("rate_limits");
const API_KEYS: Right = on("api_keys");
const AUDIT: Right = on("audit_records");
const INGEST_LIMITS: Right = on("ingest_limits");
const LIST_BLOCKS: Right = on("list_blocks");
const LIST_BLOCK_TIMES: Right = on("list_block_times");
const LIST_PROGRESS: Right = on("list_progress");
const LETTER_HEADS: Right = on("letter_heads");
const SCHEMA_MIGRATIONS: Right = on("schema_migrations");

/// Every component may see which schema it works on.
const EVERYONE: &[Right] = &[SCHEMA_MIGRATIONS.select()];

// ingestion

const EVENT_INGEST_WRITER: &[Right] = &[
    EVENTS.select().insert(),
    UNROUTED_EVENTS.insert(),
    SUBSCRIPTIONS.select(),
    INGEST_LIMITS.select().insert().update(&["max_payload_bytes"]),
];

// the API's subscription routes

const SUBSCRIPTION_ADMIN: &[Right] = &[
    SUBSCRIPTIONS.select().insert().update(&[
        "event_type",
        "callback_url",
        "description",
        "active",
        "max_retry_limit",
        "rate_limit",
        "header_names",
        "disabled_reason",
        "disabled_at",
        "deleted_at",
        "vouched_by",
        "vouched_round",
        "verification_round",
        "updated_at",
    ]),
    TOPICS.select().insert().delete(),
    ENDPOINT_FAILURES
        .select_only(&["subscription_id"])
        .update(&["since", "failures", "announced", "gone_url"])
        .delete(),
    RATE_LIMITS.select_only(&["subscription_id"]).delete(),
    CATCH_UPS.select_only(&["subscription_id"]).update(&["next_at"]),
    SECRETS
        .select_only(&["id", "subscription_id", "key_id", "created_at", "expires_at"])
        .insert()
        .update(&["expires_at"])
        .delete(),
    HEADERS.select_only(&["subscription_id", "key_id"]).insert().delete(),
    AUDIT.insert(),
];

// the verifier

const SUBSCRIPTION_VERIFIER: &[Right] = &[
    SUBSCRIPTIONS.select().update(&[
        "verified_url",
        "check_round",
        "check_attempts",
        "check_done",
        "check_number",
        "next_check_at",
        "check_error",
        "checked_at",
        "trusted_by",
        "trusted_at",
    ]),
    SECRETS.select(),
    HEADERS.select(),
    CATCH_UPS.insert(),
];

// the router

const ROUTER_WORKER: &[Right] = &[
    UNROUTED_EVENTS.drain().update(&["after_subscription_id"]),
    EVENTS.select_without(&["payload"]),
    SUBSCRIPTIONS.select(),
    TOPICS.select(),
    SAGAS.select_only(&["id", "event_id", "subscription_id", "generation"]).insert(),
    UNMATCHED_EVENTS.select().insert().update(&["paused", "disabled", "unverified"]),
    CATCH_UPS.insert(),
];

// the orchestrator

const SAGA_ORCHESTRATOR: &[Right] = &[
    SAGAS.select().update(&["status", "attempt_count", "next_attempt_at", "final_error_code", "updated_at"]),
    JOBS.select().insert(),
    FINISHED_JOBS.drain(),
    PENDING_DEAD_LETTERS.insert(),
    DELIVERY_COUNTS.select().insert().update(&[
        "delivered",
        "failed",
        "dead_lettered",
        "ms_10",
        "ms_20",
        "ms_50",
        "ms_100",
        "ms_200",
        "ms_500",
        "ms_1000",
        "ms_2000",
        "ms_5000",
        "ms_10000",
        "ms_20000",
        "ms_more",
        "slowest_ms",
    ]),
    EVENTS.select_without(&["payload"]),
    SUBSCRIPTIONS.select(),
    WORKERS.select(),
    ENDPOINT_FAILURES.select().insert().update(&[
        "since",
        "failures",
        "announced",
        "last_at",
        "last_saga_id",
        "last_error_code",
        "gone_url",
    ]),
    RATE_LIMITS.select().insert().update(&["full_at"]),
];

// the workers

const JOB_WORKER: &[Right] = &[
    JOBS.select().update(&[
        "status",
        "lease_until",
        "lease_token",
        "response_status",
        "error_code",
        "duration_ms",
        "started_at",
        "callback_url",
        "retry_at",
        "response_excerpt",
        "updated_at",
    ]),
    FINISHED_JOBS.insert(),
    SAGAS.select(),
    EVENTS.select(),
    SUBSCRIPTIONS.select(),
    SECRETS.select(),
    HEADERS.select(),
    WORKERS.select().insert().update(&["id", "slots", "version", "started_at", "seen_at"]).delete(),
    RATE_LIMITS.select().insert().update(&["full_at"]),
];

// the lease reset cleaner

const LEASE_CLEANER: &[Right] = &[
    JOBS.select().update(&["status", "lease_until", "lease_token", "lease_resets", "updated_at"]),
    SAGAS.select_only(&["id", "event_id"]),
    EVENTS.select_only(&["id", "tenant", "correlation_id"]),
];

// the dead letter component, redrives, and the API's routes to send again

const DEAD_LETTER_OPERATOR: &[Right] = &[
    PENDING_DEAD_LETTERS.drain(),
    DEAD_LETTERS.select().insert(),
    LETTER_HEADS.select_only(&["letter_id", "tenant"]),
    SAGAS.select().insert(),
    EVENTS.select(),
    SUBSCRIPTIONS.select(),
    REDRIVES.select().insert().update(&[
        "status",
        "error",
        "after_at",
        "after_id",
        "examined",
        "created",
        "skipped",
        "updated_at",
    ]),
    CATCH_UPS.drain().update(&["until", "after_at", "after_id", "next_at"]),
    REMOVALS.select(),
    AUDIT.insert(),
];

// the caretaker

const ENDPOINT_CARETAKER: &[Right] = &[
    ENDPOINT_FAILURES.select().update(&["since", "failures", "announced", "gone_url"]),
    SUBSCRIPTIONS.select().update(&["active", "disabled_reason", "disabled_at", "announced_url"]),
    PENDING_ANNOUNCEMENTS.select().insert().delete(),
    EVENTS.select_only(&["id", "tenant", "external_id"]).insert(),
    UNROUTED_EVENTS.insert(),
];

// the index of lists

const LIST_INDEXER: &[Right] = &[
    SAGAS.select_only(&["id", "event_id", "subscription_id", "created_at"]),
    EVENTS.select_only(&["id", "tenant", "event_type", "created_at"]),
    LIST_BLOCKS.select().insert().delete(),
    LIST_BLOCK_TIMES.select().insert().update(&["list", "block", "first_at", "last_at"]).delete(),
    LIST_PROGRESS.select().update(&["below"]),
];

// the janitor

const HISTORY_JANITOR: &[Right] = &[
    EVENTS.select().delete(),
    SAGAS.select().delete(),
    JOBS.select().delete(),
    DEAD_LETTERS.select().delete(),
    UNMATCHED_EVENTS.select().delete(),
    REDRIVES.select().delete(),
    AUDIT.select().delete(),
    DELIVERY_COUNTS.select().delete(),
    DELIVERY_HOURS.select().insert().delete(),
    MINUTE_TOTALS.select().insert().delete(),
    COUNT_PROGRESS.select().update(&["below", "after_subscription_id"]),
    REMOVALS.select().insert().delete(),
    UNROUTED_EVENTS.select(),
    PENDING_DEAD_LETTERS.select(),
    SUBSCRIPTIONS.select_only(&["id", "tenant", "callback_url"]),
    API_KEYS.select_only(&["id", "expires_at"]).delete(),
];

// the API's read routes, metrics

const API_READER: &[Right] = &[
    EVENTS.select(),
    SUBSCRIPTIONS.select(),
    TOPICS.select(),
    SAGAS.select(),
    JOBS.select(),
    DEAD_LETTERS.select(),
    UNROUTED_EVENTS.select(),
    FINISHED_JOBS.select(),
    PENDING_DEAD_LETTERS.select(),
    DELIVERY_COUNTS.select(),
    DELIVERY_HOURS.select(),
    MINUTE_TOTALS.select(),
    COUNT_PROGRESS.select(),
    UNMATCHED_EVENTS.select(),
    REDRIVES.select(),
    CATCH_UPS.select(),
    WORKERS.select(),
    ENDPOINT_FAILURES.select(),
    PENDING_ANNOUNCEMENTS.select(),
    RATE_LIMITS.select(),
    API_KEYS.select_without(&["sha256"]),
    AUDIT.select(),
    LIST_BLOCKS.select(),
    LIST_BLOCK_TIMES.select(),
    LIST_PROGRESS.select(),
    LETTER_HEADS.select(),
];

// API keys: who creates and revokes them, and who looks them up

const KEY_READER: &[Right] = &[API_KEYS.select().update(&["last_used_at"])];

const KEY_ADMIN: &[Right] = &[API_KEYS.select().insert().update(&["revoked_at"]), AUDIT.insert()];

// the API's portal sessions, and its list of keys. A key of theirs has a tenant and an end: see `guard_key_insert`

const PORTAL_KEY_WRITER: &[Right] =
    &[API_KEYS.select_without(&["sha256", "by_admin"]).insert().update(&["revoked_at"]), AUDIT.insert()];

/// What a role may do with a table, if anything.
pub(crate) fn of(role: Role, table: &str) -> Option<&'static Right> {
    let own = match role {
        Role::EventIngestWriter => EVENT_INGEST_WRITER,
        Role::SubscriptionAdmin => SUBSCRIPTION_ADMIN,
        Role::SubscriptionVerifier => SUBSCRIPTION_VERIFIER,
        Role::RouterWorker => ROUTER_WORKER,
        Role::SagaOrchestrator => SAGA_ORCHESTRATOR,
        Role::JobWorker => JOB_WORKER,
        Role::LeaseCleaner => LEASE_CLEANER,
        Role::DeadLetterOperator => DEAD_LETTER_OPERATOR,
        Role::EndpointCaretaker => ENDPOINT_CARETAKER,
        Role::ListIndexer => LIST_INDEXER,
        Role::HistoryJanitor => HISTORY_JANITOR,
        Role::ApiReader => API_READER,
        Role::KeyAdmin => KEY_ADMIN,
        Role::PortalKeyWriter => PORTAL_KEY_WRITER,
        Role::KeyReader => KEY_READER,
    };
    own.iter().chain(EVERYONE).find(|right| right.table == table)
}

const fn on(table: &'static str) -> Right {
    Right { table, select: Columns::None, insert: false, update: &[], delete: false }
}

impl Right {
    const fn select(mut self) -> Self {
        self.select = Columns::All;
        self
    }

    const fn select_only(mut self, columns: &'static [&'static str]) -> Self {
        self.select = Columns::Only(columns);
        self
    }

    const fn select_without(mut self, columns: &'static [&'static str]) -> Self {
        self.select = Columns::AllBut(columns);
        self
    }

    const fn insert(mut self) -> Self {
        self.insert = true;
        self
    }

    const fn update(mut self, columns: &'static [&'static str]) -> Self {
        self.update = columns;
        self
    }

    const fn delete(mut self) -> Self {
        self.delete = true;
        self
    }

    /// Of a hand-over queue: take rows off it.
    const fn drain(self) -> Self {
        self.select().delete()
    }

    /// Whether this column may be read. SQLite names the empty column for a query that reads none
    /// (`count(*)`): whoever may read any may do that.
    pub(crate) fn may_read(&self, column: &str) -> bool {
        match self.select {
            Columns::None => false,
            Columns::All => true,
            Columns::Only(columns) => column.is_empty() || columns.contains(&column),
            Columns::AllBut(columns) => !columns.contains(&column),
        }
    }

    pub(crate) fn may_insert(&self) -> bool {
        self.insert
    }

    pub(crate) fn may_update(&self, column: &str) -> bool {
        self.update.contains(&column)
    }

    pub(crate) fn may_delete(&self) -> bool {
        self.delete
    }
}
