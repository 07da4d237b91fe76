//! The store traits, a file per role. All SQL of a role stands in its own file or folder, and every
//! statement begins with the role's name and its own.

pub(crate) mod admin;
pub(crate) mod batch;
pub(crate) mod caretaker;
pub(crate) mod cleaner;
pub(crate) mod dead_letters;
pub(crate) mod endpoint;
pub(crate) mod event_locks;
pub(crate) mod filter;
pub(crate) mod ingest;
pub(crate) mod janitor;
pub(crate) mod keys;
pub(crate) mod list_indexer;
pub(crate) mod orchestrator;
pub(crate) mod rate_limits;
pub(crate) mod reader;
pub(crate) mod redrive;
pub(crate) mod redrives;
pub(crate) mod router;
pub(crate) mod rows;
pub(crate) mod subscription;
pub(crate) mod tenant_size;
pub(crate) mod topics;
pub(crate) mod verifier;
pub(crate) mod worker;

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
