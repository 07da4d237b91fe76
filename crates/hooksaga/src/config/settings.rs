//! The layers of the configuration: file, environment, flags. The last layer that sets a key
//! wins, and every error about a value says where it came from.

use super::{ConfigError, duration, keys};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt,
    io::Read,
    path::Path,
    time::Duration,
};
use toml::Value;

/// No secret is nearly as long.
const MAX_SECRET_FILE: u64 = 64 << 10;

/// Where a value was set.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    File(String),
    Variable(String),
    /// A file that an environment variable names.
    NamedFile {
        variable: String,
        path: String,
    },
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(name) => write!(f, "in {name}"),
            Self::Variable(name) => write!(f, "from {name}"),
            Self::NamedFile { variable, path } => write!(f, "from {path}, which {variable} names"),
            Self::Flag => write!(f, "from the command line"),
        }
    }
}

/// The values that were set, by key.
#[derive(Default)]
pub(super) struct Settings(BTreeMap<String, (Value, Origin)>);

impl Settings {
    /// Adds the layer of a TOML file.
    pub(super) fn add_file(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let name = path.display().to_string();
        let table: toml::Table = toml::from_str(text).map_err(|error| {
            let line =
                error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            ConfigError::new(format!("{name} line {line} is not valid TOML: {}", error.message()))
        })?;
        self.add_table("", table, &Origin::File(name))
    }

    fn add_table(&mut self, prefix: &str, table: toml::Table, origin: &Origin) -> Result<(), ConfigError> {
        for (name, value) in table {
            let key = format!("{prefix}{name}");
            match value {
                Value::Table(inner) if !keys::exists(&key) => {
                    self.add_table(&format!("{key}."), inner, origin)?
                }
                value => self.add(key, value, origin.clone())?,
            }
        }
        Ok(())
    }

    /// Adds the layer of environment variables.
    pub(super) fn add_environment(
        &mut self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<(), ConfigError> {
        let variables: Vec<_> = variables.into_iter().collect();
        for (name, value) in &variables {
            let (name, value) = (name.clone(), value.clone());
            // A name that is not text cannot be one of ours.
            let Ok(name) = name.into_string() else { continue };
            match keys::variable(&name) {
                keys::Variable::Other => {}
                keys::Variable::Unknown => {
                    return Err(ConfigError::new(format!(
                        "there is no setting {name}: correct the name of this environment variable or unset it"
                    )));
                }
                keys::Variable::Key(key) => {
                    let value = value.into_string().map_err(|_| {
                        ConfigError::new(format!("{key} (from {name}): the value is not UTF-8 text"))
                    })?;
                    self.add(key, Value::String(value), Origin::Variable(name))?;
                }
                keys::Variable::FileOf { direct, .. }
                    if variables.iter().any(|(name, _)| *name == *direct) =>
                {
                    return Err(ConfigError::new(format!(
                        "{direct} and {name} are both set: unset one of them"
                    )));
                }
                keys::Variable::FileOf { key, .. } => {
                    let (value, path) = secret_from_file(&name, &value)?;
                    self.add(key, Value::String(value), Origin::NamedFile { variable: name, path })?;
                }
            }
        }
        Ok(())
    }

    /// Adds the layer of flags.
    pub(super) fn add_flags(&mut self, flags: &[(String, String)]) -> Result<(), ConfigError> {
        flags
            .iter()
            .try_for_each(|(key, value)| self.add(key.clone(), Value::String(value.clone()), Origin::Flag))
    }

    fn add(&mut self, key: String, value: Value, origin: Origin) -> Result<(), ConfigError> {
        let key = keys::meant(key);
        if !keys::exists(&key) {
            return Err(ConfigError::new(format!(
                "unknown key {key} ({origin}): correct or remove it (`hooksaga serve --print-config` shows every key)"
            )));
        }
        self.0.insert(key, (value, origin));
        Ok(())
    }

    /// The value of a key as text, if it is set.
    pub(super) fn text(&self, key: &str) -> Result<Option<String>, ConfigError> {
        self.read(key, |value| match value {
            Value::String(text) => Ok(text.clone()),
            _ => Err("the value must be a text in quotes".to_owned()),
        })
    }

    /// The value of a key that is one of these words.
    pub(super) fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>, ConfigError> {
        self.read(key, |value| {
            let found = value.as_str().and_then(|text| words.iter().find(|(word, _)| *word == text));
            found.map(|(_, meaning)| *meaning).ok_or_else(|| {
                let list: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                format!("{} is not one of {}", plain(value), list.join(", "))
            })
        })
    }

    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        self.read(key, |value| match value {
            Value::Boolean(value) => Ok(*value),
            Value::String(text) if text == "true" => Ok(true),
            Value::String(text) if text == "false" => Ok(false),
            other => Err(format!("{} is neither true nor false", plain(other))),
        })
    }

    /// A whole number from `min` to `max`.
    pub(super) fn number(&self, key: &str, min: u64, max: u64) -> Result<Option<u64>, ConfigError> {
        self.read(key, |value| {
            let number = match value {
                Value::Integer(number) => u64::try_from(*number).ok(),
                Value::String(text) => text.trim().parse().ok(),
                _ => None,
            };
            number
                .filter(|number| (min..=max).contains(number))
                .ok_or_else(|| format!("{} must be a whole number from {min} to {max}", plain(value)))
        })
    }

    /// A number of bytes from `min` to `max`.
    pub(super) fn size(&self, key: &str, min: u64, max: u64) -> Result<Option<u64>, ConfigError> {
        self.read(key, |value| {
            let size = match value {
                Value::String(text) => duration::parse_size(text)?,
                Value::Integer(number) => u64::try_from(*number).unwrap_or(0),
                other => duration::parse_size(&plain(other))?,
            };
            Some(size)
                .filter(|size| (min..=max).contains(size))
                .ok_or_else(|| format!("{} must be from {min} to {max} bytes", plain(value)))
        })
    }

    /// A duration from `min` to `max`.
    pub(super) fn duration(
        &self,
        key: &str,
        min: Duration,
        max: Duration,
    ) -> Result<Option<Duration>, ConfigError> {
        self.read(key, |value| {
            let Value::String(text) = value else {
                return Err(format!(
                    "{} needs a unit, in quotes: \"250ms\", \"30s\", \"5m\", \"1h\" or \"7d\"",
                    plain(value)
                ));
            };
            let read = duration::parse_duration(text)?;
            if read < min || read > max {
                let (min, max) = (duration::show_duration(min), duration::show_duration(max));
                return Err(format!("{text} is out of range: it must be from {min} to {max}"));
            }
            Ok(read)
        })
    }

    /// A duration from `min` to `max`, or `off`, which is nothing.
    pub(super) fn duration_or_off(
        &self,
        key: &str,
        min: Duration,
        max: Duration,
    ) -> Result<Option<Option<Duration>>, ConfigError> {
        if self.is_off(key) {
            return Ok(Some(None));
        }
        Ok(self.duration(key, min, max)?.map(Some))
    }

    /// A whole number from `min` to `max`, or `off`, which is nothing.
    pub(super) fn number_or_off(&self, key: &str, min: u64, max: u64) -> Result<Option<u64>, ConfigError> {
        if self.is_off(key) { Ok(None) } else { self.number(key, min, max) }
    }

    fn is_off(&self, key: &str) -> bool {
        matches!(self.0.get(key), Some((Value::String(text), _)) if text == "off")
    }

    /// A list of texts; in the environment and in flags, comma-separated.
    pub(super) fn list(&self, key: &str) -> Result<Option<Vec<String>>, ConfigError> {
        self.read(key, |value| match value {
            Value::String(text) => Ok(text
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .map(str::to_owned)
                .collect()),
            Value::Array(items) => items
                .iter()
                .map(|item| {
                    item.as_str().map(str::to_owned).ok_or_else(|| format!("{} is not a text", plain(item)))
                })
                .collect(),
            other => Err(format!("{} is not a list", plain(other))),
        })
    }

    /// Whether somebody set this key.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// A complaint about a key's value, saying where it was set.
    pub(super) fn complain(&self, key: &str, problem: &str) -> ConfigError {
        match self.0.get(key) {
            Some((_, origin)) => ConfigError::new(format!("{key} ({origin}): {problem}")),
            None => ConfigError::new(format!("{key}: {problem}")),
        }
    }

    fn read<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        debug_assert!(keys::exists(key), "{key} must be listed in keys.rs");
        let Some((value, _)) = self.0.get(key) else { return Ok(None) };
        parse(value).map(Some).map_err(|problem| self.complain(key, &problem))
    }
}

/// What a file with a secret holds, without the newline at its end; and the file's name.
fn secret_from_file(variable: &str, path: &OsStr) -> Result<(String, String), ConfigError> {
    let shown = Path::new(path).display().to_string();
    let wrong = |why: &dyn fmt::Display| {
        ConfigError::new(format!("{variable}: cannot read a secret from {shown}: {why}"))
    };
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_SECRET_FILE).read_to_string(&mut text))
        .map_err(|error| wrong(&error))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() { Err(wrong(&"it is empty")) } else { Ok((text.to_owned(), shown)) }
}

/// A value as one short word for a message.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(value) => value.to_string(),
        Value::Datetime(time) => time.to_string(),
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a table".to_owned(),
    }
}
