//! The store traits, a file or folder each, with all SQL of the trait. Every statement begins with a tag: the name of that
//! file or folder, and its own (`/* worker.claim */`). A statement that several stores share has the tag of the store that runs it.

mod admin;
mod caretaker;
mod cleaner;
mod dead_letters;
mod endpoint;
mod filter;
mod ingest;
mod janitor;
mod keys;
mod list_indexer;
mod multi_row;
mod orchestrator;
mod rate_limits;
mod reader;
mod redrive;
mod redrives;
mod router;
mod rows;
mod subscription;
mod verifier;
mod worker;

pub(crate) use admin::AdminSql;
pub(crate) use caretaker::CaretakerSql;
pub(crate) use cleaner::CleanerSql;
pub(crate) use dead_letters::DeadLettersSql;
pub(crate) use ingest::IngestSql;
pub(crate) use janitor::JanitorSql;
pub(crate) use keys::{KeyReaderSql, KeysSql, PortalKeysSql};
pub(crate) use list_indexer::ListIndexerSql;
pub(crate) use orchestrator::OrchestratorSql;
pub(crate) use reader::ReaderSql;
pub(crate) use redrives::RedrivesSql;
pub(crate) use router::RouterSql;
pub(crate) use verifier::VerifierSql;
pub(crate) use worker::WorkerSql;

/// The statements that run all the time, by step, for the tests of their plans.
#[cfg(feature = "test-support")]
pub(crate) mod hot {
    pub(crate) use super::{
        caretaker::HOT as CARE,
        cleaner::HOT as RESET_EXPIRED,
        dead_letters::HOT as BURY,
        ingest::HOT as APPEND,
        janitor::HOT as REMOVE,
        list_indexer::HOT as INDEX_LISTS,
        orchestrator::{
            HOT_APPLY as APPLY, HOT_CREATE_JOBS as CREATE_JOBS, HOT_LOAD as LOAD,
            HOT_MARK as MARK_IN_PROGRESS, HOT_WAITING as WAITING,
        },
        reader::HOT as GAUGES,
        redrives::HOT as REDRIVE,
        router::HOT as ROUTE,
        verifier::HOT as TAKE_CHECKS,
        worker::{
            claim::HOT as CLAIM,
            parking::{HOT_HAND_BACK as HAND_BACK, HOT_PARK as PARK},
            report::HOT as REPORT,
        },
    };
}
