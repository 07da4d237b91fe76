//! What the roles protect against. This is logged once at the start, because on these servers a switch of role adds rights and
//! removes none.

use crate::{error::checked, options::SessionKind, pool::connect_once};
use hooksaga_store::{Role, RoleMode, ServerOptions, StoreResult};
use mysql_async::prelude::Queryable as _;
use std::fmt;

/// What the database's rights protect against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Every role has a login of its own.
    LoginPerRole,
    /// One login, which has no rights but those of the role that it switches to.
    Switch,
    /// One login with rights of its own, which it keeps in every role.
    OwnRights,
    /// No roles.
    Off,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LoginPerRole => {
                "database rights: a login per role; they hold against mistakes and against intruders"
            }
            Self::Switch => {
                "database rights: one login without rights of its own switches to each component's role; they hold \
                 against mistakes"
            }
            Self::OwnRights => {
                "database rights: the login has rights of its own, which a switch of role does not take away, so the \
                 database does not keep components apart; use a login without rights of its own, or a login per role \
                 (database.role_urls)"
            }
            Self::Off => "database rights: roles are off; the database does not keep components apart",
        })
    }
}

impl Fence {
    /// Finds out which one it is.
    pub(crate) async fn read(options: &ServerOptions) -> StoreResult<Self> {
        if options.roles == RoleMode::Off {
            return Ok(Self::Off);
        }
        if !Role::ALL.iter().any(|role| options.shares_login(*role)) {
            return Ok(Self::LoginPerRole);
        }
        let mut connection = connect_once(SessionKind::Server.configuration(options)?).await?;
        let grants: Vec<String> = checked(connection.query("SHOW GRANTS FOR CURRENT_USER()").await)?;
        checked(connection.disconnect().await)?;
        Ok(match grants.iter().any(|grant| is_right(grant)) {
            true => Self::OwnRights,
            false => Self::Switch,
        })
    }

    /// Logs it.
    pub(crate) fn announce(self) {
        match self {
            Self::LoginPerRole | Self::Switch => tracing::info!("{self}"),
            Self::OwnRights | Self::Off => tracing::warn!("{self}"),
        }
    }
}

/// Whether a line of SHOW GRANTS gives rights: more than a role or the right to connect.
fn is_right(grant: &str) -> bool {
    grant.contains(" ON ") && !grant.starts_with("GRANT USAGE ON ") && !grant.starts_with("GRANT PROXY ON ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_told_from_roles() {
        for right in ["GRANT ALL PRIVILEGES ON `db`.* TO `u`@`%`", "GRANT SELECT ON `db`.`t` TO `u`@`%`"] {
            assert!(is_right(right), "{right}");
        }
        for none in ["GRANT USAGE ON *.* TO `u`@`%`", "GRANT `db_router_worker`@`%` TO `u`@`%`"] {
            assert!(!is_right(none), "{none}");
        }
    }
}
