//! The database server under a measurement, whichever it is: a look at it from outside.

use super::{
    error::{BenchError, BenchResult},
    meter::DatabaseCounters,
    report::TableState,
    scratch::{Filling, mysql, postgres},
    usage::Postmaster,
};
use std::{fs, time::Duration};

/// Which server a URL is of.
#[derive(Clone, Copy)]
pub(super) enum ServerKind {
    Postgres,
    MySql,
}

/// A database of a server.
pub(super) struct DatabaseServer {
    pub(super) url: String,
    observer: Observer,
    /// Where it runs on this machine.
    pub(super) process: Option<Postmaster>,
}

enum Observer {
    Postgres(postgres::Observer),
    MySql(mysql::Observer),
}

/// Whether a database is there and has no table.
pub(super) async fn is_empty(kind: ServerKind, url: &str) -> bool {
    let looked = async {
        Ok::<_, BenchError>(match kind {
            ServerKind::Postgres => postgres::Observer::connect(url).await?.is_empty().await?,
            ServerKind::MySql => mysql::Observer::connect(url).await?.is_empty().await?,
        })
    };
    looked.await.unwrap_or(false)
}

impl DatabaseServer {
    /// Looks at an empty database.
    pub(super) async fn open(kind: ServerKind, url: String) -> BenchResult<Self> {
        let (observer, process, is_empty) = match kind {
            ServerKind::Postgres => {
                let observer = postgres::Observer::connect(&url).await?;
                let backend = u32::try_from(observer.backend().await?).unwrap_or(0);
                let is_empty = observer.is_empty().await?;
                (Observer::Postgres(observer), Postmaster::of_backend(backend), is_empty)
            }
            ServerKind::MySql => {
                let observer = mysql::Observer::connect(&url).await?;
                let id = fs::read_to_string(observer.pid_file().await?).unwrap_or_default();
                let process = id.trim().parse().ok().and_then(Postmaster::of_server);
                let is_empty = observer.is_empty().await?;
                (Observer::MySql(observer), process, is_empty)
            }
        };
        if !is_empty {
            return Err(BenchError::new(
                "the database given with --database-url has tables already, which may be live ones: name an empty one",
            ));
        }
        Ok(Self { url, observer, process })
    }

    /// What it has counted so far.
    pub(super) async fn counts(&self) -> BenchResult<DatabaseCounters> {
        Ok(match &self.observer {
            Observer::Postgres(observer) => observer.counts().await?,
            Observer::MySql(observer) => observer.counts().await?,
        })
    }

    /// How much later than the work its counts are complete.
    pub(super) fn counts_after(&self) -> Duration {
        match self.observer {
            // A session that has nothing to do tells what it did within ten seconds.
            Observer::Postgres(_) => Duration::from_secs(11),
            Observer::MySql(_) => Duration::ZERO,
        }
    }

    /// How many transactions the server has ended.
    pub(super) async fn transactions(&self) -> BenchResult<i64> {
        Ok(match &self.observer {
            Observer::Postgres(observer) => observer.transactions().await?,
            Observer::MySql(observer) => observer.transactions().await?,
        })
    }

    /// How many bytes the database takes.
    pub(super) async fn bytes(&self) -> BenchResult<i64> {
        Ok(match &self.observer {
            Observer::Postgres(observer) => observer.bytes().await?,
            Observer::MySql(observer) => observer.bytes().await?,
        })
    }

    /// The tables that every delivery writes; none where the server counts no dead rows.
    pub(super) async fn tables(&self) -> BenchResult<Vec<TableState>> {
        Ok(match &self.observer {
            Observer::Postgres(observer) => observer.tables().await?,
            Observer::MySql(_) => Vec::new(),
        })
    }

    pub(super) async fn fill(&self, filling: Filling, count: i64, subscription: i64) -> BenchResult {
        match &self.observer {
            Observer::Postgres(observer) => observer.fill(filling, count, subscription).await?,
            Observer::MySql(observer) => observer.fill(filling, count, subscription).await?,
        }
        Ok(())
    }

    /// Waits until what was written is in its place on disk.
    pub(super) async fn settle(&self) -> BenchResult {
        match &self.observer {
            Observer::Postgres(observer) => observer.checkpoint().await,
            // It has no statement for that.
            Observer::MySql(_) => {}
        }
        Ok(())
    }
}
