//! `callbacks.*`: which endpoints may be called.

use super::{ConfigError, settings::Settings};
use hooksaga_pipeline::{EgressPolicy, ProxyAddress};
use ipnet::IpNet;
use std::{path::PathBuf, time::Duration};

/// How long every attempt must have failed before a subscription is disabled.
const DISABLE_AFTER: Duration = Duration::from_secs(120 * 3600);

/// How old the events may be that a subscription gets once it is verified.
const CATCH_UP: Duration = Duration::from_secs(24 * 3600);

/// Longer times than ten years are typing errors.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

#[derive(Clone, Debug)]
pub(crate) struct CallbacksConfig {
    /// Whether plain http callbacks are accepted.
    pub(crate) allow_http: bool,
    /// Networks that may be called although they are private, loopback or otherwise special.
    pub(crate) allow_networks: Vec<IpNet>,
    /// Networks that are never called, allowed or not.
    pub(crate) deny_networks: Vec<IpNet>,
    /// The HTTP proxy that callbacks go through.
    pub(crate) proxy: Option<ProxyAddress>,
    /// Extra root certificates (PEM).
    pub(crate) ca_file: Option<PathBuf>,
    /// A subscription whose attempts have all failed for this long is disabled. `None`: never.
    pub(crate) disable_after: Option<Duration>,
    /// Once a subscription is verified, it gets the events that it missed in this time before. `None`: none.
    pub(crate) catch_up: Option<Duration>,
    /// Whether an admin may vouch for an endpoint that cannot echo a challenge.
    pub(crate) allow_trusted: bool,
}

impl CallbacksConfig {
    pub(super) fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let proxy = settings.text("callbacks.proxy")?.map(|text| {
            text.parse().map_err(|error| {
                settings.complain("callbacks.proxy", &format!("this is not the address of a proxy: {error}"))
            })
        });
        let time = |key, least| settings.duration_or_off(key, least, LONGEST);
        Ok(Self {
            disable_after: time("callbacks.disable_after", Duration::from_secs(1))?
                .unwrap_or(Some(DISABLE_AFTER)),
            catch_up: time("callbacks.catch_up", Duration::from_secs(1))?.unwrap_or(Some(CATCH_UP)),
            allow_trusted: settings.boolean("callbacks.allow_trusted")?.unwrap_or(false),
            allow_http: settings.boolean("callbacks.allow_http")?.unwrap_or(false),
            allow_networks: networks(settings, "callbacks.allow_networks")?,
            deny_networks: networks(settings, "callbacks.deny_networks")?,
            proxy: proxy.transpose()?,
            ca_file: settings.text("callbacks.ca_file")?.map(PathBuf::from),
        })
    }

    /// What callbacks may reach, and how.
    pub(crate) fn egress(&self) -> EgressPolicy {
        EgressPolicy {
            allow_http: self.allow_http,
            allow_networks: self.allow_networks.clone(),
            deny_networks: self.deny_networks.clone(),
            proxy: self.proxy.clone(),
        }
    }

    /// What `--dev` opens: http, and the loopback networks.
    pub(super) fn open_for_development(&mut self) {
        self.allow_http = true;
        for network in ["127.0.0.0/8", "::1/128"] {
            let network: IpNet = network.parse().expect("a constant that is a network");
            if !self.allow_networks.contains(&network) {
                self.allow_networks.push(network);
            }
        }
    }
}

fn networks(settings: &Settings, key: &str) -> Result<Vec<IpNet>, ConfigError> {
    let texts = settings.list(key)?.unwrap_or_default();
    let networks = texts.iter().map(|text| {
        text.parse::<IpNet>().map_err(|_| {
            let problem = format!("{text:?} is not a network: write it like 10.0.0.0/8 or fd00::/8");
            settings.complain(key, &problem)
        })
    });
    networks.collect()
}
