//! How much waits: open deliveries by status, of the server or of one tenant, and what waits between the stages.

use crate::{
    cached::ByKey,
    probes::Probes,
    refreshed::{Known, Patience, Refreshed},
};
use hooksaga_saga::Tenant;
use hooksaga_store::{QueueGauges, ReaderStore, TenantGauges, TenantScope};
use std::sync::Arc;

/// The number of tenants whose figures are kept at a time.
const TENANTS_KEPT: usize = 256;

/// How much waits, for one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenWork {
    Server(QueueGauges),
    Tenant(TenantGauges),
}

/// Open deliveries by status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenDeliveries {
    pub(crate) pending: u64,
    pub(crate) in_progress: u64,
    pub(crate) pending_retry: u64,
    /// Of those, the ones of subscriptions that are not active and verified.
    pub(crate) held: u64,
}

impl OpenWork {
    pub(crate) fn deliveries(&self) -> OpenDeliveries {
        match self {
            Self::Server(gauges) => OpenDeliveries {
                pending: gauges.pending_sagas,
                in_progress: gauges.in_progress_sagas(),
                pending_retry: gauges.pending_retry_sagas,
                held: gauges.held_sagas,
            },
            Self::Tenant(gauges) => OpenDeliveries {
                pending: gauges.pending_sagas,
                in_progress: gauges.in_progress_sagas,
                pending_retry: gauges.pending_retry_sagas,
                held: gauges.held_sagas,
            },
        }
    }

    /// Where each of its counts ends.
    pub(crate) fn most(&self) -> u64 {
        match self {
            Self::Server(_) => u64::MAX,
            Self::Tenant(_) => TenantGauges::MOST.into(),
        }
    }
}

/// Who counts it.
pub(crate) struct OpenWorkCounts {
    /// The server's are what `/metrics` shows, too: one count in a process.
    probes: Probes,
    reader: Arc<dyn ReaderStore>,
    tenants: ByKey<Tenant, Refreshed<TenantGauges>>,
}

impl OpenWorkCounts {
    pub(crate) fn new(probes: Probes, reader: Arc<dyn ReaderStore>) -> Self {
        Self { probes, reader, tenants: ByKey::new(TENANTS_KEPT, Refreshed::new) }
    }

    pub(crate) async fn of(&self, scope: &TenantScope, patience: Patience) -> Known<OpenWork> {
        match scope {
            TenantScope::All => self.probes.queue_gauges(patience).await.map(OpenWork::Server),
            TenantScope::One(tenant) => {
                let (reader, name) = (Arc::clone(&self.reader), tenant.clone());
                let count = async move { reader.tenant_gauges(name.as_str()).await };
                self.tenants.of(tenant).get(patience, count).await.map(OpenWork::Tenant)
            }
        }
    }
}
