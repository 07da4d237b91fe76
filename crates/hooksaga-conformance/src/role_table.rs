//! Which role may do what with which table and column: the role table of the specification as data.

use hooksaga_store::Role;

/// Which columns of a table.
#[derive(Clone, Copy, Debug)]
pub(super) enum Columns {
    All,
    Only(&'static [&'static str]),
    AllBut(&'static [&'static str]),
}

impl Columns {
    pub(super) fn include(self, column: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(columns) => columns.contains(&column),
            Self::AllBut(columns) => !columns.contains(&column),
        }
    }
}

/// One right.
#[derive(Clone, Copy, Debug)]
pub(super) enum Right {
    Select(Columns),
    Insert,
    Update(Columns),
    Delete,
}

use Columns::{All, AllBut, Only};
use Right::{Delete, Insert, Select, Update};

const NO_PAYLOAD: Columns = AllBut(&["payload"]);

/// The columns that are updated to end a run of failures.
const RUN: &[&str] = &["since", "failures", "announced", "gone_url"];

/// Everything that each role may do. Everything else is refused.
pub(super) const RIGHTS: &[(Role, &str, &[Right])] = &[
    (Role::EventIngestWriter, "events", &[Select(All), Insert]),
    (Role::EventIngestWriter, "unrouted_events", &[Insert]),
    (Role::EventIngestWriter, "subscriptions", &[Select(All)]),
    (Role::EventIngestWriter, "ingest_limits", &[Select(All), Insert, Update(Only(&["max_payload_bytes"]))]),
    (
        Role::SubscriptionAdmin,
        "subscriptions",
        &[
            Select(All),
            Insert,
            Update(Only(&[
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
            ])),
        ],
    ),
    (Role::SubscriptionAdmin, "subscription_topics", &[Select(All), Insert, Delete]),
    (
        Role::SubscriptionAdmin,
        "subscription_secrets",
        &[Select(AllBut(&["sealed"])), Insert, Update(Only(&["expires_at"])), Delete],
    ),
    (Role::SubscriptionAdmin, "subscription_headers", &[Select(AllBut(&["sealed"])), Insert, Delete]),
    (
        Role::SubscriptionVerifier,
        "subscriptions",
        &[
            Select(All),
            Update(Only(&[
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
            ])),
        ],
    ),
    (Role::SubscriptionVerifier, "subscription_secrets", &[Select(All)]),
    (Role::SubscriptionVerifier, "subscription_headers", &[Select(All)]),
    (Role::RouterWorker, "events", &[Select(NO_PAYLOAD)]),
    (Role::RouterWorker, "subscriptions", &[Select(All)]),
    (Role::RouterWorker, "subscription_topics", &[Select(All)]),
    (Role::RouterWorker, "unrouted_events", &[Select(All), Update(Only(&["after_subscription_id"])), Delete]),
    (
        Role::RouterWorker,
        "webhook_delivery_sagas",
        &[Select(Only(&["id", "event_id", "subscription_id", "generation"])), Insert],
    ),
    (
        Role::SagaOrchestrator,
        "webhook_delivery_sagas",
        &[
            Select(All),
            Update(Only(&["status", "attempt_count", "next_attempt_at", "final_error_code", "updated_at"])),
        ],
    ),
    (Role::SagaOrchestrator, "webhook_delivery_jobs", &[Select(All), Insert]),
    (Role::SagaOrchestrator, "finished_jobs", &[Select(All), Delete]),
    (Role::SagaOrchestrator, "pending_dead_letters", &[Insert]),
    (Role::SagaOrchestrator, "events", &[Select(NO_PAYLOAD)]),
    (Role::SagaOrchestrator, "subscriptions", &[Select(All)]),
    (Role::SagaOrchestrator, "workers", &[Select(All)]),
    (
        Role::SagaOrchestrator,
        "delivery_counts",
        &[Select(All), Insert, Update(AllBut(&["minute", "subscription_id", "shard"]))],
    ),
    (
        Role::JobWorker,
        "webhook_delivery_jobs",
        &[
            Select(All),
            Update(Only(&[
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
            ])),
        ],
    ),
    (Role::JobWorker, "webhook_delivery_sagas", &[Select(All)]),
    (Role::JobWorker, "events", &[Select(All)]),
    (Role::JobWorker, "subscriptions", &[Select(All)]),
    (Role::JobWorker, "subscription_secrets", &[Select(All)]),
    (Role::JobWorker, "subscription_headers", &[Select(All)]),
    (Role::JobWorker, "finished_jobs", &[Insert]),
    (Role::JobWorker, "workers", &[Select(All), Insert, Update(All), Delete]),
    (
        Role::LeaseCleaner,
        "webhook_delivery_jobs",
        &[Select(All), Update(Only(&["status", "lease_until", "lease_token", "lease_resets", "updated_at"]))],
    ),
    (Role::LeaseCleaner, "webhook_delivery_sagas", &[Select(Only(&["id", "event_id"]))]),
    (Role::LeaseCleaner, "events", &[Select(Only(&["id", "tenant", "correlation_id"]))]),
    (Role::DeadLetterOperator, "webhook_delivery_sagas", &[Select(All), Insert]),
    (Role::DeadLetterOperator, "events", &[Select(All)]),
    (Role::DeadLetterOperator, "subscriptions", &[Select(All)]),
    (Role::DeadLetterOperator, "dead_letters", &[Select(All), Insert]),
    (Role::DeadLetterOperator, "letter_heads", &[Select(Only(&["letter_id", "tenant"]))]),
    (Role::DeadLetterOperator, "pending_dead_letters", &[Select(All), Delete]),
    (
        Role::SubscriptionAdmin,
        "endpoint_failures",
        &[Select(Only(&["subscription_id"])), Update(Only(RUN)), Delete],
    ),
    (Role::SubscriptionAdmin, "rate_limits", &[Select(Only(&["subscription_id"])), Delete]),
    (
        Role::SagaOrchestrator,
        "endpoint_failures",
        &[Select(All), Insert, Update(AllBut(&["subscription_id"]))],
    ),
    (Role::SagaOrchestrator, "rate_limits", &[Select(All), Insert, Update(Only(&["full_at"]))]),
    (Role::JobWorker, "rate_limits", &[Select(All), Insert, Update(Only(&["full_at"]))]),
    (Role::EndpointCaretaker, "endpoint_failures", &[Select(All), Update(Only(RUN))]),
    (
        Role::EndpointCaretaker,
        "subscriptions",
        &[Select(All), Update(Only(&["active", "disabled_reason", "disabled_at", "announced_url"]))],
    ),
    (Role::EndpointCaretaker, "pending_announcements", &[Select(All), Insert, Delete]),
    (Role::EndpointCaretaker, "events", &[Select(Only(&["id", "tenant", "external_id"])), Insert]),
    (Role::EndpointCaretaker, "unrouted_events", &[Insert]),
    (
        Role::ListIndexer,
        "webhook_delivery_sagas",
        &[Select(Only(&["id", "event_id", "subscription_id", "created_at"]))],
    ),
    (Role::ListIndexer, "events", &[Select(Only(&["id", "tenant", "event_type", "created_at"]))]),
    (Role::ListIndexer, "list_blocks", &[Select(All), Insert, Delete]),
    (Role::ListIndexer, "list_block_times", &[Select(All), Insert, Update(All), Delete]),
    (Role::ListIndexer, "list_progress", &[Select(All), Update(Only(&["below"]))]),
    (Role::ApiReader, "list_blocks", &[Select(All)]),
    (Role::ApiReader, "list_block_times", &[Select(All)]),
    (Role::ApiReader, "list_progress", &[Select(All)]),
    (Role::ApiReader, "letter_heads", &[Select(All)]),
    (Role::HistoryJanitor, "events", &[Select(All), Delete]),
    (Role::HistoryJanitor, "webhook_delivery_sagas", &[Select(All), Delete]),
    (Role::HistoryJanitor, "webhook_delivery_jobs", &[Select(All), Delete]),
    (Role::HistoryJanitor, "dead_letters", &[Select(All), Delete]),
    (Role::HistoryJanitor, "unmatched_events", &[Select(All), Delete]),
    (Role::HistoryJanitor, "redrives", &[Select(All), Delete]),
    (Role::HistoryJanitor, "audit_records", &[Select(All), Delete]),
    (Role::HistoryJanitor, "delivery_counts", &[Select(All), Delete]),
    (Role::HistoryJanitor, "delivery_hours", &[Select(All), Insert, Delete]),
    (Role::HistoryJanitor, "minute_totals", &[Select(All), Insert, Delete]),
    (
        Role::HistoryJanitor,
        "count_progress",
        &[Select(All), Update(Only(&["below", "after_subscription_id"]))],
    ),
    (Role::HistoryJanitor, "removals", &[Select(All), Insert, Delete]),
    (Role::DeadLetterOperator, "removals", &[Select(All)]),
    (Role::HistoryJanitor, "unrouted_events", &[Select(All)]),
    (Role::HistoryJanitor, "pending_dead_letters", &[Select(All)]),
    (Role::HistoryJanitor, "subscriptions", &[Select(Only(&["id", "tenant", "callback_url"]))]),
    (Role::HistoryJanitor, "api_keys", &[Select(Only(&["id", "expires_at"])), Delete]),
    (Role::ApiReader, "delivery_hours", &[Select(All)]),
    (Role::ApiReader, "minute_totals", &[Select(All)]),
    (Role::ApiReader, "count_progress", &[Select(All)]),
    (Role::ApiReader, "endpoint_failures", &[Select(All)]),
    (Role::ApiReader, "pending_announcements", &[Select(All)]),
    (Role::ApiReader, "rate_limits", &[Select(All)]),
    (
        Role::DeadLetterOperator,
        "redrives",
        &[
            Select(All),
            Insert,
            Update(Only(&[
                "status",
                "error",
                "after_at",
                "after_id",
                "examined",
                "created",
                "skipped",
                "updated_at",
            ])),
        ],
    ),
    (
        Role::DeadLetterOperator,
        "catch_ups",
        &[Select(All), Update(Only(&["until", "after_at", "after_id", "next_at"])), Delete],
    ),
    (Role::SubscriptionAdmin, "catch_ups", &[Select(Only(&["subscription_id"])), Update(Only(&["next_at"]))]),
    (Role::SubscriptionVerifier, "catch_ups", &[Insert]),
    (Role::RouterWorker, "catch_ups", &[Insert]),
    (
        Role::RouterWorker,
        "unmatched_events",
        &[Select(All), Insert, Update(Only(&["paused", "disabled", "unverified"]))],
    ),
    (Role::ApiReader, "catch_ups", &[Select(All)]),
    (Role::ApiReader, "unmatched_events", &[Select(All)]),
    (Role::ApiReader, "redrives", &[Select(All)]),
    (Role::ApiReader, "events", &[Select(All)]),
    (Role::ApiReader, "subscriptions", &[Select(All)]),
    (Role::ApiReader, "webhook_delivery_sagas", &[Select(All)]),
    (Role::ApiReader, "webhook_delivery_jobs", &[Select(All)]),
    (Role::ApiReader, "dead_letters", &[Select(All)]),
    (Role::ApiReader, "unrouted_events", &[Select(All)]),
    (Role::ApiReader, "finished_jobs", &[Select(All)]),
    (Role::ApiReader, "pending_dead_letters", &[Select(All)]),
    (Role::ApiReader, "delivery_counts", &[Select(All)]),
    (Role::ApiReader, "subscription_topics", &[Select(All)]),
    (Role::ApiReader, "workers", &[Select(All)]),
    (Role::SubscriptionAdmin, "audit_records", &[Insert]),
    (Role::DeadLetterOperator, "audit_records", &[Insert]),
    (Role::KeyAdmin, "audit_records", &[Insert]),
    (Role::ApiReader, "audit_records", &[Select(All)]),
    (Role::KeyAdmin, "api_keys", &[Select(All), Insert, Update(Only(&["revoked_at"]))]),
    (
        Role::PortalKeyWriter,
        "api_keys",
        &[Select(AllBut(&["sha256", "by_admin"])), Insert, Update(Only(&["revoked_at"]))],
    ),
    (Role::PortalKeyWriter, "audit_records", &[Insert]),
    (Role::KeyReader, "api_keys", &[Select(All), Update(Only(&["last_used_at"]))]),
];

/// The cells that the specification leaves open: they may be allowed or refused.
pub(super) const OPEN: &[(Role, &str, &[Right])] = &[
    (Role::ApiReader, "api_keys", &[Select(AllBut(&["sha256"]))]),
    (Role::SagaOrchestrator, "delivery_counts", &[Update(Only(&["minute", "subscription_id", "shard"]))]),
    (Role::SagaOrchestrator, "endpoint_failures", &[Update(Only(&["subscription_id"]))]),
    (Role::JobWorker, "webhook_delivery_jobs", &[Update(Only(&["lease_resets"]))]),
    (Role::RouterWorker, "unmatched_events", &[Update(Only(&["event_id"]))]),
];

/// "Drain": PostgreSQL's SELECT … FOR UPDATE needs the right to UPDATE a column; elsewhere it is refused. The router may
/// update a column of its queue anyway. The roles that send again and that remove lock events against each other.
pub(super) const DRAINS: &[(Role, &str)] = &[
    (Role::SagaOrchestrator, "finished_jobs"),
    (Role::DeadLetterOperator, "pending_dead_letters"),
    (Role::DeadLetterOperator, "events"),
    (Role::HistoryJanitor, "events"),
];
