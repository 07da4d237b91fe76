//! Examines the database for `hooksaga doctor`, also beside a running server. It changes and creates nothing.

use crate::{
    blocking,
    engine::{Engine, RoleHandle},
    location::Location,
    readers::ReadLanes,
    roles, schema,
};
use hooksaga_store::{
    Examination, ReaderStore, Role, RolesFound, SchemaVersion, StoreError, StoreResult, WorkerStore,
    migration::check_usable,
};
use std::{path::Path, sync::Arc};

/// Looks at the file.
///
/// # Errors
/// If it cannot be used: it is not writable, or not a database.
pub async fn examine(path: &Path) -> StoreResult<Examination> {
    let path = path.to_owned();
    blocking(move || {
        let (mut schema, mut hazards) = (none_yet(), None);
        if is_there(&path) {
            let location = Location::check(&path)?;
            schema = schema::judge(&location);
            if schema.as_ref().is_ok_and(SchemaVersion::is_this_programs) {
                hazards = schema::missing_guards(&location)?;
            }
        }
        let server = format!("SQLite {}", rusqlite::version());
        let hazards = hazards.into_iter().collect();
        Ok(Examination { server, clock: None, schema, roles: RolesFound::Embedded, hazards })
    })
    .await
}

/// Opens what `api_reader` may see, alone.
///
/// # Errors
/// If there is no database yet, or its schema is not this version's.
pub async fn open_reader(path: &Path) -> StoreResult<Arc<dyn ReaderStore>> {
    Ok(Arc::new(roles::ReaderSql(open_as(Role::ApiReader, path).await?)))
}

/// The ids of the keys that the stored secrets are encrypted with.
///
/// # Errors
/// As [`open_reader`].
pub async fn sealing_keys(path: &Path) -> StoreResult<Vec<String>> {
    roles::WorkerSql::new(open_as(Role::JobWorker, path).await?).secret_key_ids().await
}

/// Opens what one role may see of a database that is there.
async fn open_as(role: Role, path: &Path) -> StoreResult<RoleHandle> {
    let path = path.to_owned();
    blocking(move || {
        if !is_there(&path) {
            none_yet()?;
        }
        let location = Location::check(&path)?;
        schema::judge(&location)?;
        let engine = Arc::new(Engine::start(location.path(), ReadLanes::TOOL, None)?);
        Ok(RoleHandle::new(&engine, role))
    })
    .await
}

/// Whether there is anything in the file. The check of a location would create its folder.
fn is_there(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() || metadata.len() > 0)
}

fn none_yet() -> StoreResult<SchemaVersion> {
    check_usable(&[], schema::MIGRATIONS)?;
    Err(StoreError::Schema("the database has no schema yet".to_owned()))
}
