//! Scratch databases for measurements: made, filled, watched and dropped. Never the live tables.
//!
//! What drops databases or disables triggers is here and not in the back ends, which the server is made of.

pub(crate) mod mysql;
pub(crate) mod postgres;
pub(crate) mod sqlite;

use hooksaga_store::{StoreError, StoreResult};

/// Deliveries that plain SQL adds, with an event each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Filling {
    /// Completed, with the job of the only attempt.
    Finished,
    /// To be tried again tomorrow.
    Waiting,
    /// Given up, with their dead letters.
    Letters,
}

/// A database that was made for a measurement, whichever server it is on.
pub(crate) enum Scratch {
    Postgres(postgres::Scratch),
    MySql(mysql::Scratch),
}

impl Scratch {
    pub(crate) async fn postgres(url: &str, name: &str) -> StoreResult<Self> {
        Ok(Self::Postgres(postgres::Scratch::create(url, name).await?))
    }

    pub(crate) async fn mysql(url: &str, name: &str) -> StoreResult<Self> {
        Ok(Self::MySql(mysql::Scratch::create(url, name).await?))
    }

    pub(crate) fn url(&self) -> &str {
        match self {
            Self::Postgres(scratch) => &scratch.url,
            Self::MySql(scratch) => &scratch.url,
        }
    }

    /// Drops it, whoever is still connected.
    pub(crate) async fn drop(self) -> StoreResult<()> {
        match self {
            Self::Postgres(scratch) => scratch.drop().await,
            Self::MySql(scratch) => scratch.drop().await,
        }
    }
}

/// The same URL with another database.
fn beside(url: &str, name: &str) -> StoreResult<String> {
    let unusable =
        || StoreError::Setup("database.url names no database to make a scratch one beside".to_owned());
    let (address, query) = url.split_once('?').map_or((url, None), |(address, query)| (address, Some(query)));
    let (scheme, rest) = address.split_once("://").ok_or_else(unusable)?;
    let (host, _) = rest.rsplit_once('/').ok_or_else(unusable)?;
    Ok(format!("{scheme}://{host}/{name}{}", query.map(|query| format!("?{query}")).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_database_is_beside_the_configured_one() {
        let beside = |url| beside(url, "s").ok();
        assert_eq!(beside("postgres://u@h:1/db").as_deref(), Some("postgres://u@h:1/s"));
        assert_eq!(beside("postgres://h1,h2/db?a=b").as_deref(), Some("postgres://h1,h2/s?a=b"));
        assert_eq!(beside("mariadb://h/db?a=b").as_deref(), Some("mariadb://h/s?a=b"));
        assert_eq!(beside("mysql://h"), None);
    }
}
