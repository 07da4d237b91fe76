//! The store traits, a file per role. All SQL of a role stands in its own file or folder, and every
//! statement begins with the role's name and its own.

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

pub(crate) use admin::Admin;
pub(crate) use caretaker::Caretaker;
pub(crate) use cleaner::Cleaner;
pub(crate) use dead_letters::DeadLetters;
pub(crate) use ingest::Ingest;
pub(crate) use janitor::Janitor;
pub(crate) use keys::{KeyReader, Keys, PortalKeys};
pub(crate) use list_indexer::ListIndexer;
pub(crate) use orchestrator::Orchestrator;
pub(crate) use reader::Reader;
pub(crate) use redrives::Redrives;
pub(crate) use router::Router;
pub(crate) use verifier::Verifier;
pub(crate) use worker::Worker;

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
