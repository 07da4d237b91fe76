//! The store traits, a file or folder each, with all SQL of the trait. Every statement begins with a tag: the name of that
//! file or folder, and its own (`/* worker.claim */`). A statement that several stores share has the tag of the store that runs it.

pub(crate) mod admin;
pub(crate) mod caretaker;
pub(crate) mod cleaner;
pub(crate) mod correlations;
pub(crate) mod dead_letters;
pub(crate) mod endpoint;
pub(crate) mod filter;
pub(crate) mod ingest;
pub(crate) mod insert_without_conflicts;
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
pub(crate) mod scan_position;
pub(crate) mod subscription;
pub(crate) mod verifier;
pub(crate) mod waiting;
pub(crate) mod worker;

pub(crate) use admin::AdminSql;
pub(crate) use caretaker::CaretakerSql;
pub(crate) use cleaner::CleanerSql;
pub(crate) use dead_letters::DeadLettersSql;
pub(crate) use ingest::IngestSql;
pub(crate) use janitor::JanitorSql;
pub(crate) use keys::{KeyReaderSql, KeysSql};
pub(crate) use list_indexer::ListIndexerSql;
pub(crate) use orchestrator::OrchestratorSql;
pub(crate) use reader::ReaderSql;
pub(crate) use redrives::RedrivesSql;
pub(crate) use router::RouterSql;
pub(crate) use verifier::VerifierSql;
pub(crate) use worker::WorkerSql;
