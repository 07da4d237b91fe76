//! Creates workspaces, and removes them however a run ends.

use super::{
    MeasuredBackend,
    error::{BenchError, BenchResult},
    machine::Watch,
    scratch::Scratch,
    workspace::Workspace,
};
use hooksaga_pipeline::random_hex;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::sync::{Mutex, OnceCell};

/// Creates workspaces beside the configured database, and removes them.
pub(super) struct Workspaces {
    backend: MeasuredBackend,
    /// The user named an empty database for this: every workspace uses it, and nothing is dropped.
    pub(super) given: bool,
    given_workspace: OnceCell<Arc<Workspace>>,
    /// Watches the machine, with the database server once there is a workspace.
    pub(super) watch: Arc<Watch>,
    made: Arc<Mutex<Vec<Made>>>,
}

/// What was created for one workspace.
struct Made {
    folder: PathBuf,
    scratch: Option<Scratch>,
}

impl Workspaces {
    pub(super) fn new(backend: &MeasuredBackend, given: bool) -> Self {
        let watch = Arc::new(Watch::start());
        Self {
            backend: backend.clone(),
            given,
            given_workspace: OnceCell::new(),
            watch,
            made: Arc::default(),
        }
    }

    /// What the database is called.
    pub(super) fn database(&self) -> &'static str {
        self.backend.name()
    }

    /// Creates a workspace for servers of this program. A given database is the only one.
    pub(super) async fn workspace(&self) -> BenchResult<Arc<Workspace>> {
        let program = std::env::current_exe().unwrap_or_else(|_| "hooksaga".into());
        if !self.given {
            return self.workspace_for(&program).await;
        }
        self.given_workspace.get_or_try_init(|| self.workspace_for(&program)).await.cloned()
    }

    /// Creates a workspace for servers of another program, whose schema may differ.
    pub(super) async fn workspace_for(&self, program: &Path) -> BenchResult<Arc<Workspace>> {
        let (made, backend, given) = (Arc::clone(&self.made), self.backend.clone(), self.given);
        // In a task of its own: an interrupted run waits for it, and knows what to remove.
        let making = tokio::spawn(async move { make(&mut *made.lock().await, &backend, given).await });
        let failed = |error| BenchError::new(format!("cannot create a workspace: {error}"));
        let (folder, url) = making.await.map_err(failed)??;
        let workspace = Workspace::open(&self.backend, folder, url, program.to_owned()).await?;
        if let Some(database) = workspace.database_process() {
            self.watch.include(database);
        }
        Ok(Arc::new(workspace))
    }

    /// Removes one workspace before the end; its server must have ended. A given database stays.
    pub(super) async fn remove(&self, workspace: Arc<Workspace>) -> BenchResult {
        let folder = workspace.folder().to_owned();
        drop(workspace);
        if self.given {
            return Ok(());
        }
        let mut made = self.made.lock().await;
        let Some(index) = made.iter().position(|made| made.folder == folder) else { return Ok(()) };
        made.swap_remove(index).remove().await
    }

    /// Removes whatever is left; the first failure is reported once all was tried.
    pub(super) async fn remove_all(&self) -> BenchResult {
        let mut removed = Ok(());
        for made in self.made.lock().await.drain(..) {
            removed = removed.and(made.remove().await);
        }
        removed
    }
}

/// A new scratch folder and, on a database server, a new scratch database; the folder and the database's URL.
async fn make(
    made: &mut Vec<Made>,
    backend: &MeasuredBackend,
    given: bool,
) -> BenchResult<(PathBuf, String)> {
    let name = format!("hooksaga_bench_{}", random_hex(6));
    let folder = std::env::temp_dir().join(&name);
    fs::create_dir(&folder)
        .map_err(|error| BenchError::new(format!("cannot create {}: {error}", folder.display())))?;
    made.push(Made { folder: folder.clone(), scratch: None });
    let scratch = match backend {
        MeasuredBackend::Sqlite => {
            let url = format!("sqlite://{}", folder.join("hooksaga.db").display());
            return Ok((folder, url));
        }
        MeasuredBackend::Postgres(url) | MeasuredBackend::MySql(url) if given => {
            return Ok((folder, url.clone()));
        }
        MeasuredBackend::Postgres(url) => Scratch::postgres(url, &name).await?,
        MeasuredBackend::MySql(url) => Scratch::mysql(url, &name).await?,
    };
    let url = scratch.url().to_owned();
    if let Some(last) = made.last_mut() {
        last.scratch = Some(scratch);
    }
    Ok((folder, url))
}

impl Made {
    async fn remove(self) -> BenchResult {
        // A server that was killed a moment ago may still write. What is left in the temporary folder harms nobody.
        for _ in 0..20 {
            let _ = fs::remove_dir_all(&self.folder);
            if !self.folder.exists() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        match self.scratch {
            None => Ok(()),
            Some(scratch) => Ok(scratch.drop().await?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_made_is_removed_however_the_run_ends() {
        let workspaces = Workspaces::new(&MeasuredBackend::Sqlite, false);
        let folders = || async {
            let made = workspaces.made.lock().await;
            made.iter().map(|made| made.folder.clone()).collect::<Vec<_>>()
        };
        let kept = workspaces.workspace().await.expect("a scratch folder");
        let removed = workspaces.workspace().await.expect("another one");
        let both = folders().await;
        assert!(both.len() == 2 && both.iter().all(|folder| folder.is_dir()), "{both:?}");
        workspaces.remove(removed).await.expect("it is removed");
        assert_eq!(folders().await, both[..1]);
        // Interrupted: nobody removes the other one by itself.
        drop(kept);
        workspaces.remove_all().await.expect("all are removed");
        assert!(folders().await.is_empty() && both.iter().all(|folder| !folder.exists()), "{both:?}");
    }
}
