//! The conformance suite's view of an embedded database: a file in a folder of its own per test.

use crate::folder::Folder;
use async_trait::async_trait;
use hooksaga_conformance::{Dialect, HotStatement, TestDatabase};
use hooksaga_sqlite::{
    SqliteDatabase, SqliteOptions,
    test_support::{RawConnection, hot},
};
use hooksaga_store::{Rewrap, Role, StoreResult, Stores};

pub(crate) struct Embedded {
    // Closed before its folder goes.
    database: SqliteDatabase,
    folder: Folder,
}

pub(crate) async fn fresh() -> Embedded {
    let folder = Folder::new();
    let database = hooksaga_sqlite::open(SqliteOptions { path: folder.database() }).await.unwrap();
    Embedded { database, folder }
}

impl Embedded {
    /// A fresh connection for every statement: nothing prepared for one role is there for another.
    pub(crate) fn connect(&self, role: Option<Role>) -> StoreResult<RawConnection> {
        RawConnection::open(&self.folder.database(), role)
    }
}

#[async_trait]
impl TestDatabase for Embedded {
    fn stores(&self) -> Stores {
        self.database.stores()
    }

    async fn execute_in(&self, role: Option<Role>, sql: &str) -> StoreResult<u64> {
        self.connect(role)?.execute(sql)
    }

    async fn query_text(&self, sql: &str) -> StoreResult<Vec<Vec<Option<String>>>> {
        self.connect(None)?.query(sql)
    }

    async fn explain(&self, statement: HotStatement) -> StoreResult<String> {
        let (role, statements) = hot(statement);
        self.connect(Some(role))?.explain(statements)
    }

    async fn rewrap(&self, rewrap: Rewrap<'_>) -> StoreResult<u64> {
        hooksaga_sqlite::rewrap(&self.folder.database(), rewrap)
    }

    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    /// An embedded database has one process: the same handles again.
    async fn second_instance(&self) -> Stores {
        self.database.stores()
    }
}
