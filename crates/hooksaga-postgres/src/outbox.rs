//! The transactional outbox: `hooksaga_append`, which an application calls inside its own transaction (docs/OUTBOX.md).
//!
//! It runs with the rights of its owner, `event_ingest_writer`, and so it is made by that role, which may create
//! something in the schema for that one transaction only. Without roles it belongs to the login, as the tables do.

use crate::{
    error::{checked, store_error},
    rights,
};
use hooksaga_store::{Role, RoleMode, ServerOptions, StoreError, StoreResult};
use tokio_postgres::Client;

const FUNCTION: &str = include_str!("../migrations/outbox.sql");
const SIGNATURE: &str = "hooksaga_append(text, text, text, text, text)";

/// The schema, who runs this, and who owns the function if it is there.
const LOOK: &str = "/* outbox.look */
SELECT quote_ident(current_schema()), quote_ident(current_user),
       (SELECT quote_ident(pg_get_userbyid(p.proowner)) FROM pg_proc p
        WHERE p.oid = to_regprocedure(format('%I.%s', current_schema(), $1::text)))";

/// Creates the function, or replaces it: the rights that were granted on it stay.
pub(crate) async fn install(client: &Client, options: &ServerOptions) -> StoreResult<()> {
    let row = checked(client.query_one(LOOK, &[&SIGNATURE]).await)?;
    let (schema, login): (String, String) = (checked(row.try_get(0))?, checked(row.try_get(1))?);
    let owner: Option<String> = checked(row.try_get(2))?;
    let wanted = match options.roles {
        RoleMode::Switch => Role::EventIngestWriter.as_str().to_owned(),
        // What roles have made stays theirs: only its owner can replace it.
        RoleMode::Off => owner.clone().unwrap_or_else(|| login.clone()),
    };
    let function = FUNCTION.replace("@schema@", &schema);
    let script = if wanted == login {
        format!("BEGIN; {function} COMMIT")
    } else {
        let adopt = match owner {
            Some(owner) if owner != wanted => {
                format!("ALTER FUNCTION {schema}.{SIGNATURE} OWNER TO {wanted};")
            }
            _ => String::new(),
        };
        format!(
            "BEGIN; GRANT CREATE ON SCHEMA {schema} TO {wanted}; {adopt} SET LOCAL ROLE {wanted}; {function} \
             SET LOCAL ROLE NONE; REVOKE CREATE ON SCHEMA {schema} FROM {wanted}; COMMIT"
        )
    };
    rights::run(client, &script).await.map_err(|error| match store_error(&error) {
        StoreError::Denied(text) => StoreError::Setup(format!(
            "the database login may not set up hooksaga_append as {wanted} ({text}): run `hooksaga migrate` with the login \
             that created the tables, after the output of `hooksaga migrate --print-roles`"
        )),
        other => other,
    })
}
