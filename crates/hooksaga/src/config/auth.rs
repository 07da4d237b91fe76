//! `auth.root_key`, `secrets.key` and `secrets.old_key`: secrets that are never shown.

use super::{ConfigError, settings::Settings};
use hooksaga_pipeline::SecretKey;
use std::{fmt, sync::Arc};

/// A longer key fits into no header.
const LONGEST: usize = 512;

/// A shorter key could be guessed.
const LONG_ENOUGH: usize = 24;

/// Who may call the API besides the keys in the database.
#[derive(Clone, Default)]
pub(crate) struct AuthConfig {
    /// A key with every scope, for automation.
    pub(crate) root_key: Option<String>,
}

impl AuthConfig {
    pub(super) fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let key = "auth.root_key";
        let root_key = settings.text(key)?;
        // It travels in an HTTP header, so it must be something that fits into one unchanged.
        if let Some(root_key) = &root_key
            && !((1..=LONGEST).contains(&root_key.len())
                && root_key.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(settings.complain(
                key,
                "a key has at most 512 visible ASCII characters and no blanks: make one with `openssl rand -hex 24`",
            ));
        }
        Ok(Self { root_key })
    }

    /// Whether the key is so short that it could be guessed.
    pub(super) fn is_guessable(&self) -> bool {
        self.root_key.as_ref().is_some_and(|key| key.len() < LONG_ENOUGH)
    }
}

impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthConfig").field("root_key", &self.root_key.as_ref().map(|_| "…")).finish()
    }
}

/// What signing secrets are encrypted with.
#[derive(Clone, Debug, Default)]
pub(crate) struct SecretsConfig {
    pub(crate) key: Option<Arc<SecretKey>>,
    /// A former key, which still opens what it sealed.
    pub(crate) old_key: Option<Arc<SecretKey>>,
}

impl SecretsConfig {
    pub(super) fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let secret = |name: &str| {
            let key = settings.text(name)?.map(|text| text.trim().parse::<SecretKey>()).transpose();
            let key = key.map_err(|_| {
                settings
                    .complain(name, "this is not 32 bytes in base64: make one with `openssl rand -base64 32`")
            })?;
            Ok::<_, ConfigError>(key.map(Arc::new))
        };
        let (key, old_key) = (secret("secrets.key")?, secret("secrets.old_key")?);
        if let (Some(key), Some(old_key)) = (&key, &old_key)
            && key.key_id() == old_key.key_id()
        {
            return Err(settings.complain(
                "secrets.old_key",
                "it is the same as secrets.key: set it to the former key, or remove it",
            ));
        }
        Ok(Self { key, old_key })
    }
}
