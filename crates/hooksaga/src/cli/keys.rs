//! `hooksaga keys`: API keys, directly on the configured database, also beside a running embedded server.

use super::{
    options::ConfigOptions,
    remote::{id, tenant},
};
use crate::{
    config::parse_duration,
    error::{CliError, CliResult},
    output::{self, Cell, ProgressBar, Table},
    wiring,
};
use clap::{Args, Subcommand};
use hooksaga_saga::{KeyId, SubscriptionId, Tenant, Timestamp};
use hooksaga_store::{ApiKey, KeyStore, NewApiKey, NewAuditRecord, Rewrap, Scopes, SealedSecret, StoreError};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

const EXAMPLES: &str = "\
Examples:
  hooksaga keys create --name shop --scopes ingest
  hooksaga keys create --name console --scopes ingest,admin,operator,read
  hooksaga keys create --name acme --scopes ingest,read --tenant acme --expires 24h
  hooksaga keys list
  hooksaga keys revoke 3
  hooksaga keys rewrap

A key is shown once, when it is created; only its SHA-256 is stored.";

/// Create, list and revoke API keys
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct KeysCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a key and print it once
    #[command(after_help = "Example:\n  hooksaga keys create --name shop --scopes ingest,read")]
    Create {
        /// What it is for, 1 to 100 characters
        #[arg(long, value_name = "NAME", value_parser = key_name)]
        name: String,
        /// Comma-separated: ingest, admin, operator, read; none implies another
        #[arg(long, value_name = "SCOPES", value_parser = scopes)]
        scopes: Scopes,
        /// Bind it to one tenant: it cannot see or change any other
        #[arg(long, value_name = "TENANT", value_parser = bindable_tenant)]
        tenant: Option<Tenant>,
        /// How long it is valid, such as 24h, at least 1s [default: forever]
        #[arg(long, value_name = "DURATION", value_parser = validity)]
        expires: Option<Duration>,
        /// Print only the key, as JSON with its id, for scripts
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: ConfigOptions,
    },
    /// List every key, revoked ones too
    #[command(after_help = "Example:\n  hooksaga keys list")]
    List {
        /// Print JSON, for scripts
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: ConfigOptions,
    },
    /// Revoke a key: it stops working within 5 seconds
    #[command(after_help = "Example:\n  hooksaga keys revoke 3")]
    Revoke {
        /// The id that `keys list` shows
        #[arg(value_parser = id)]
        id: i64,
        /// Print the key's record as JSON, for scripts
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: ConfigOptions,
    },
    /// Re-encrypt everything from secrets.old_key to secrets.key; servers may keep running
    #[command(after_help = REWRAP_HELP)]
    Rewrap {
        /// Print how many were moved as JSON, for scripts
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: ConfigOptions,
    },
}

const REWRAP_HELP: &str = "\
To change the key without a pause:
  1. restart every server with the new key in HOOKSAGA_SECRET_KEY and the former one in HOOKSAGA_SECRET_OLD_KEY
  2. run `hooksaga keys rewrap` with the same two
  3. remove HOOKSAGA_SECRET_OLD_KEY at the next restart
It needs the login that `hooksaga migrate` uses.";

impl KeysCommand {
    pub(super) async fn run(self) -> CliResult {
        match self.command {
            Command::Create { name, scopes, tenant, expires, json, options } => {
                let sha256 = [0; 32];
                create(&options, NewApiKey { name, scopes, sha256, tenant, expires_in: expires }, json).await
            }
            Command::List { json, options } => list(&options, json).await,
            Command::Revoke { id, json, options } => revoke(&options, KeyId(id), json).await,
            Command::Rewrap { json, options } => rewrap(&options, json).await,
        }
    }
}

/// `new` comes without its hash.
async fn create(options: &ConfigOptions, new: NewApiKey, json: bool) -> CliResult {
    let store = wiring::open_keys(&options.load(Vec::new(), false)?.database).await?;
    let key = hooksaga_http::generate_key();
    let stored = store.create(&NewApiKey { sha256: hooksaga_http::hash_key(&key), ..new }).await?;
    record(&*store, "key.create", &stored).await;
    if json {
        let mut shown = shown(&stored);
        shown["key"] = key.into();
        output::line(shown.to_string());
        return Ok(());
    }
    output::line(&key);
    let tenant =
        stored.tenant.as_ref().map(|tenant| format!(", bound to the tenant {tenant}")).unwrap_or_default();
    let expiry = stored.expires_at.map(|at| format!(", valid until {}", rfc3339(at))).unwrap_or_default();
    output::note(format!(
        "key {} ({}) with scopes {}{tenant}{expiry}: keep it now, it is not shown again",
        stored.id, stored.name, stored.scopes
    ));
    Ok(())
}

fn shown(key: &ApiKey) -> serde_json::Value {
    serde_json::json!({
        "id": key.id.0,
        "name": key.name,
        "scopes": key.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>(),
        "tenant": key.tenant.as_ref().map(Tenant::as_str),
        "created_at": rfc3339(key.created_at),
        "expires_at": key.expires_at.map(rfc3339),
        "revoked_at": key.revoked_at.map(rfc3339),
        "last_used_at": key.last_used_at.map(rfc3339),
    })
}

async fn list(options: &ConfigOptions, json: bool) -> CliResult {
    let store = wiring::open_present_keys(&options.load(Vec::new(), false)?.database).await?;
    let keys = store.list().await?;
    if json {
        output::line(serde_json::Value::Array(keys.iter().map(shown).collect()).to_string());
        return Ok(());
    }
    if keys.is_empty() {
        output::line("no keys yet: make one with `hooksaga keys create --name NAME --scopes ingest,read`");
        return Ok(());
    }
    let titles = ["ID", "NAME", "SCOPES", "TENANT", "CREATED", "EXPIRES", "LAST USED", "REVOKED"];
    let time = |at: Option<Timestamp>| Cell::optional(at.map(rfc3339));
    let mut table = Table::new(&titles);
    for key in keys {
        table.row(vec![
            key.id.into(),
            key.name.into(),
            key.scopes.into(),
            Cell::optional(key.tenant),
            rfc3339(key.created_at).into(),
            time(key.expires_at),
            time(key.last_used_at),
            time(key.revoked_at),
        ]);
    }
    table.print();
    Ok(())
}

async fn revoke(options: &ConfigOptions, id: KeyId, json: bool) -> CliResult {
    let store = wiring::open_present_keys(&options.load(Vec::new(), false)?.database).await?;
    match store.revoke(id).await? {
        Some(key) => {
            record(&*store, "key.revoke", &key).await;
            output::line(match json {
                true => shown(&key).to_string(),
                false => format!("key {id} ({}) is revoked", key.name),
            });
        }
        None => {
            return Err(CliError::new(format!("there is no key {id}: `hooksaga keys list` shows them all")));
        }
    }
    Ok(())
}

async fn rewrap(options: &ConfigOptions, json: bool) -> CliResult {
    let config = options.load(Vec::new(), false)?;
    let Some(old) = &config.secrets.old_key else {
        return Err(CliError::new(
            "configuration: secrets.old_key: set it to the former key, and secrets.key to the new one",
        ));
    };
    let key = wiring::secret_key(&config, &[old.key_id().to_owned()])?;
    let (progress, sealed_again) = (ProgressBar::new(None), AtomicU64::new(0));
    let reseal = |id: SubscriptionId, sealed: &SealedSecret| {
        let done = sealed_again.fetch_add(1, Ordering::Relaxed) + 1;
        progress.show(done, &format!("{} encrypted with secrets.key", output::count(done, "secret")));
        key.reseal(id, sealed).map_err(|error| cannot_open(id, &error))
    };
    let moved = wiring::rewrap(&config.database, Rewrap { key_id: key.key_id(), reseal: &reseal }).await;
    progress.clear();
    let moved = moved?;
    output::line(match json {
        true => serde_json::json!({ "moved": moved }).to_string(),
        false => format!(
            "secrets moved: {moved}; everything is encrypted with secrets.key now, and secrets.old_key can go"
        ),
    });
    Ok(())
}

/// Why sealed text stays as it is. It says whose it is: nothing else tells.
fn cannot_open(id: SubscriptionId, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Setup(format!(
        "the secret or the headers of subscription {id} cannot be opened: {error}; \
         set secrets.old_key to the key that they were encrypted with, and run this again"
    ))
}

/// Leaves an audit record. If the record fails, the action is not undone, and the failure is reported.
async fn record(store: &dyn KeyStore, action: &str, key: &ApiKey) {
    let record = NewAuditRecord {
        key_id: None,
        key_name: "command line".to_owned(),
        action: action.to_owned(),
        target: format!("keys/{}", key.id),
        tenant: key.tenant.clone(),
    };
    if let Err(error) = store.record(&record).await {
        output::note(format!("{action} of key {} is done, but was not recorded: {error}", key.id));
    }
}

fn rfc3339(time: Timestamp) -> String {
    output::rfc3339(time.as_micros())
}

fn key_name(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.chars().count() > 100 || text.chars().any(char::is_control) {
        return Err("a name has 1 to 100 characters".to_owned());
    }
    Ok(text.to_owned())
}

/// A bound key could change what only the server's operators may.
fn bindable_tenant(text: &str) -> Result<Tenant, String> {
    match tenant(text)? {
        reserved if reserved.is_reserved() => {
            Err(format!("the tenant {reserved} is the server's own: use a key that is bound to none"))
        }
        tenant => Ok(tenant),
    }
}

fn scopes(text: &str) -> Result<Scopes, String> {
    text.parse()
}

/// A key that is valid for less would never work; one for longer need not expire.
fn validity(text: &str) -> Result<Duration, String> {
    let range = Duration::from_secs(1)..=Duration::from_secs(100 * 366 * 24 * 3600);
    let validity = parse_duration(text)?;
    if range.contains(&validity) {
        Ok(validity)
    } else {
        Err("a key is valid for 1s to 100 years".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_scopes_are_named() {
        assert!(scopes("ingest,wrte").expect_err("no such scope").contains("wrte"));
        assert!(scopes("").is_err());
    }

    #[test]
    fn a_secret_that_does_not_open_is_named() {
        let said = cannot_open(SubscriptionId(17), &"it was changed").to_string();
        for part in ["subscription 17", "it was changed", "secrets.old_key"] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn a_validity_is_one_that_a_clock_can_reach() {
        for good in ["1s", "24h", "36500d"] {
            assert_eq!(validity(good), parse_duration(good));
        }
        for bad in ["0s", "999ms", "36601d", "99999999999d", "soon", "-1s"] {
            assert!(validity(bad).is_err(), "{bad}");
        }
    }
}
