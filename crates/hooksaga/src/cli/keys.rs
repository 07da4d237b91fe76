//! `hooksaga keys`: API keys, directly on the configured database, also beside a running embedded server.

use super::options::ConfigOptions;
use crate::{
    failure::{Failure, Outcome},
    output, wiring,
};
use clap::{Args, Subcommand};
use hooksaga_saga::{KeyId, Timestamp};
use hooksaga_store::{NewApiKey, Scopes};

const EXAMPLES: &str = "\
Examples:
  hooksaga keys create --name shop --scopes ingest
  hooksaga keys create --name console --scopes ingest,admin,operator,read
  hooksaga keys list
  hooksaga keys revoke 3

A key is shown once, when it is created; only its SHA-256 is stored.";

/// Create, list and revoke API keys
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Keys {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a key and print it, this once
    #[command(after_help = "Example:\n  hooksaga keys create --name shop --scopes ingest,read")]
    Create {
        /// What it is for, 1 to 100 characters
        #[arg(long, value_name = "NAME", value_parser = key_name)]
        name: String,
        /// Comma-separated: ingest, admin, operator, read; none implies another
        #[arg(long, value_name = "SCOPES", value_parser = scopes)]
        scopes: Scopes,
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
        id: i64,
        #[command(flatten)]
        options: ConfigOptions,
    },
}

impl Keys {
    pub(super) async fn run(self) -> Outcome {
        match self.command {
            Command::Create { name, scopes, json, options } => create(&options, name, scopes, json).await,
            Command::List { json, options } => list(&options, json).await,
            Command::Revoke { id, options } => revoke(&options, KeyId(id)).await,
        }
    }
}

async fn create(options: &ConfigOptions, name: String, scopes: Scopes, json: bool) -> Outcome {
    let store = wiring::open_keys(&options.load(Vec::new(), false)?.database).await?;
    let key = hooksaga_http::generate_key();
    let stored = store.create(&NewApiKey { name, scopes, sha256: hooksaga_http::hash_key(&key) }).await?;
    if json {
        let scopes: Vec<&str> = stored.scopes.iter().map(|scope| scope.as_str()).collect();
        output::line(
            serde_json::json!({ "id": stored.id.0, "name": stored.name, "scopes": scopes, "key": key })
                .to_string(),
        );
    } else {
        output::line(&key);
        output::note(format!(
            "key {} ({}) with scopes {}: keep it now, it is not shown again",
            stored.id, stored.name, stored.scopes
        ));
    }
    Ok(())
}

async fn list(options: &ConfigOptions, json: bool) -> Outcome {
    let store = wiring::open_keys(&options.load(Vec::new(), false)?.database).await?;
    let keys = store.list().await?;
    if json {
        let keys: Vec<serde_json::Value> = keys
            .iter()
            .map(|key| {
                serde_json::json!({
                    "id": key.id.0,
                    "name": key.name,
                    "scopes": key.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>(),
                    "created_at": rfc3339(key.created_at),
                    "revoked_at": key.revoked_at.map(rfc3339),
                })
            })
            .collect();
        output::line(serde_json::Value::Array(keys).to_string());
        return Ok(());
    }
    if keys.is_empty() {
        output::line("no keys yet: make one with `hooksaga keys create --name NAME --scopes ingest,read`");
        return Ok(());
    }
    let mut rows = vec![["ID", "NAME", "SCOPES", "CREATED", "REVOKED"].map(str::to_owned).to_vec()];
    rows.extend(keys.into_iter().map(|key| {
        vec![
            key.id.to_string(),
            key.name,
            key.scopes.to_string(),
            rfc3339(key.created_at),
            key.revoked_at.map_or_else(|| "-".to_owned(), rfc3339),
        ]
    }));
    output::table(&rows).iter().for_each(output::line);
    Ok(())
}

async fn revoke(options: &ConfigOptions, id: KeyId) -> Outcome {
    let store = wiring::open_keys(&options.load(Vec::new(), false)?.database).await?;
    match store.revoke(id).await? {
        Some(key) => output::line(format!("key {id} ({}) is revoked", key.name)),
        None => {
            return Err(Failure::new(format!("there is no key {id}: `hooksaga keys list` shows them all")));
        }
    }
    Ok(())
}

fn rfc3339(time: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(time.as_micros())
        .map_or_else(|_| time.as_micros().to_string(), |time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

fn key_name(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.chars().count() > 100 || text.chars().any(char::is_control) {
        return Err("a name has 1 to 100 characters".to_owned());
    }
    Ok(text.to_owned())
}

fn scopes(text: &str) -> Result<Scopes, String> {
    text.parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_utc() {
        assert_eq!(rfc3339(Timestamp::from_micros(1_700_000_000_123_456)), "2023-11-14T22:13:20Z");
    }

    #[test]
    fn unknown_scopes_are_named() {
        assert!(scopes("ingest,wrte").expect_err("no such scope").contains("wrte"));
        assert!(scopes("").is_err());
    }
}
