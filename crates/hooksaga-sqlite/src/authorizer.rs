//! Least privilege inside one process: every statement is checked against the rights of the role that
//! prepares it, down to columns.
//!
//! SQLite asks the authorizer while it prepares a statement, never while it runs one. So a statement that
//! was prepared for one role must not be run for another: see [`crate::session::Tx::prepare`].

use crate::rights;
use hooksaga_store::Role;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use std::sync::{Arc, Mutex, PoisonError};

/// The role that a connection works for just now; nobody, at first.
#[derive(Clone, Default)]
pub(crate) struct CurrentRole(Arc<Mutex<Option<Role>>>);

impl CurrentRole {
    pub(crate) fn set(&self, role: Role) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(role);
    }

    fn get(&self) -> Option<Role> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// SQLite's question, answered for the current role.
    pub(crate) fn authorize(&self, context: AuthContext<'_>) -> Authorization {
        match self.get() {
            Some(Role::PortalKeyWriter) if is_claim(context) => Authorization::Ignore,
            Some(role) if allowed(role, context) => Authorization::Allow,
            _ => Authorization::Deny,
        }
    }
}

fn allowed(role: Role, context: AuthContext<'_>) -> bool {
    // A read of no column (`count(*)`) comes without a database's name unless the query writes one. There
    // is no other database: roles may neither attach files nor create temporary tables.
    let ours = matches!(context.database_name, Some("main") | None);
    let right = |table: &str| rights::of(role, table).filter(|_| ours);
    match context.action {
        AuthAction::Read { table_name, column_name } => {
            right(table_name).is_some_and(|right| {
                right.may_read(column_name)
                    || (right.may_insert()
                        && context.accessor.is_some_and(|trigger| is_guard(trigger, table_name, column_name)))
            }) || (ours && finds_a_head(context.accessor, table_name, column_name))
        }
        AuthAction::Insert { table_name } => {
            right(table_name).is_some_and(rights::Right::may_insert)
                || (ours && table_name == "catch_ups" && keeps_the_gap(context.accessor))
                || (ours && table_name == "letter_heads" && context.accessor == Some("keep_head"))
        }
        AuthAction::Update { table_name, column_name } => {
            right(table_name).is_some_and(|right| right.may_update(column_name))
                || (ours
                    && table_name == "subscriptions"
                    && is_kept_by_trigger(column_name, context.accessor))
                || (ours && table_name == "letter_heads" && context.accessor == Some("mark_requeued"))
        }
        AuthAction::Delete { table_name } => {
            right(table_name).is_some_and(rights::Right::may_delete)
                || (ours && table_name == "letter_heads" && context.accessor == Some("forget_head"))
        }
        AuthAction::Select
        | AuthAction::Recursive
        | AuthAction::Transaction { .. }
        | AuthAction::Savepoint { .. } => true,
        AuthAction::Function { function_name } => function_name != "load_extension",
        // Everything else: the schema, settings, other files.
        _ => false,
    }
}

/// Whether the guard of new keys asks for the column that says that `key_admin` created one. SQLite names no columns when it
/// asks whether a role may insert; but what is ignored reads as NULL, so that whatever the API's role writes there is not
/// believed.
fn is_claim(context: AuthContext<'_>) -> bool {
    context.accessor == Some("guard_key_insert")
        && matches!(context.action, AuthAction::Read { table_name: "api_keys", column_name: "by_admin" })
}

/// The guard of an insert looks at columns of the new row that its writer may not read. It can do nothing
/// with them but refuse the row. (Guards of updates and deletes are met only by roles that may read all of
/// those tables.) A subquery can bear a guard's name: no more is let through than the guard itself reads.
fn is_guard(trigger: &str, table: &str, column: &str) -> bool {
    trigger == "guard_saga_insert"
        && table == "webhook_delivery_sagas"
        && ["status", "attempt_count"].contains(&column)
}

/// How the triggers of letter_heads find a row of it. A subquery can bear their names too: it sees ids, and nothing else.
fn finds_a_head(accessor: Option<&str>, table: &str, column: &str) -> bool {
    table == "letter_heads"
        && matches!(
            (accessor, column),
            (Some("mark_requeued"), "saga_id") | (Some("forget_head"), "letter_id")
        )
}

/// A column of subscriptions that a trigger of the schema keeps, whoever changes the URL.
fn is_kept_by_trigger(column: &str, accessor: Option<&str>) -> bool {
    match column {
        "unverified_since" => keeps_the_gap(accessor),
        "check_error" | "checked_at" => accessor == Some("forget_check"),
        _ => false,
    }
}

/// The triggers that keep the gap of a subscription that is not verified, for whoever changes its URL or verifies it. Only
/// a trigger of the schema can write by this name: a subquery writes nothing, and roles make no triggers.
fn keeps_the_gap(accessor: Option<&str>) -> bool {
    matches!(accessor, Some("note_unverified" | "queue_catch_up"))
}
