//! `callbacks.*`: which endpoints may be called.

use super::{ConfigError, settings::Settings};
use ipnet::IpNet;
use std::path::PathBuf;

#[derive(Clone, Debug, Default)]
pub(crate) struct CallbacksConfig {
    /// Whether plain http callbacks are accepted.
    pub(crate) allow_http: bool,
    /// Networks that may be called although they are private, loopback or otherwise special.
    pub(crate) allow_networks: Vec<IpNet>,
    /// Extra root certificates (PEM).
    pub(crate) ca_file: Option<PathBuf>,
}

impl CallbacksConfig {
    pub(super) fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let networks = settings.list("callbacks.allow_networks")?.unwrap_or_default();
        let networks = networks.iter().map(|text| {
            text.parse::<IpNet>().map_err(|_| {
                let problem = format!("{text:?} is not a network: write it like 10.0.0.0/8 or fd00::/8");
                settings.complain("callbacks.allow_networks", &problem)
            })
        });
        Ok(Self {
            allow_http: settings.boolean("callbacks.allow_http")?.unwrap_or(false),
            allow_networks: networks.collect::<Result<_, _>>()?,
            ca_file: settings.text("callbacks.ca_file")?.map(PathBuf::from),
        })
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
