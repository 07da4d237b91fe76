//! The servers that a URL names: the nodes of a Galera Cluster, any of which can be used.
//!
//! The driver accepts one host per URL. So a URL with several hosts becomes one configuration for each, and a pool that cannot
//! use its host changes to the next one ([`crate::pool`]).

use hooksaga_store::StoreResult;
use mysql_async::{Opts, OptsBuilder};
use std::time::Duration;

/// How long a call waits for a new connection, including its set-up, if there is no other host.
const ONLY_HOST: Duration = Duration::from_secs(10);
/// The same for each of several hosts.
const ONE_OF_SEVERAL: Duration = Duration::from_secs(5);

/// The last statement of the set-up if a URL names several hosts. A node that has lost its group still opens sessions and runs
/// statements that read no table; this one it refuses, with error 1047.
const IN_GROUP: &str = "; SELECT 1 FROM information_schema.CHARACTER_SETS LIMIT 1";

/// A configuration for each server, in the order of the URL. They differ in nothing but the address.
#[derive(Clone)]
pub(crate) struct Hosts {
    first: Opts,
    others: Vec<Opts>,
}

impl Hosts {
    /// `read` makes a configuration from a URL with one host.
    pub(crate) fn read(url: &str, read: impl Fn(&str) -> StoreResult<Opts>) -> StoreResult<Self> {
        let Some((first, others)) = one_by_one(url) else {
            return Ok(Self { first: read(url)?, others: Vec::new() });
        };
        let others = others.iter().map(|url| Ok(with_group(read(url)?))).collect::<StoreResult<_>>()?;
        Ok(Self { first: with_group(read(&first)?), others })
    }

    pub(crate) fn first(&self) -> &Opts {
        &self.first
    }

    pub(crate) fn count(&self) -> usize {
        1 + self.others.len()
    }

    pub(crate) fn are_several(&self) -> bool {
        !self.others.is_empty()
    }

    /// The configuration with this number; numbers beyond the last one start over.
    pub(crate) fn at(&self, index: usize) -> &Opts {
        let index = index % self.count();
        index.checked_sub(1).and_then(|index| self.others.get(index)).unwrap_or(&self.first)
    }

    /// How long a connection to one of them may take.
    pub(crate) fn limit(&self) -> Duration {
        if self.are_several() { ONE_OF_SEVERAL } else { ONLY_HOST }
    }
}

fn with_group(opts: Opts) -> Opts {
    let setup: Vec<String> = opts.setup().iter().map(|text| format!("{text}{IN_GROUP}")).collect();
    OptsBuilder::from_opts(opts).setup(setup).into()
}

/// The URL once for each host that it names, if it names several.
fn one_by_one(url: &str) -> Option<(String, Vec<String>)> {
    let (scheme, rest) = url.split_once("://")?;
    let (address, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (login, hosts) = match address.rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts),
        None => (String::new(), address),
    };
    let mut urls = hosts.split(',').map(|host| format!("{scheme}://{login}{host}{rest}"));
    let first = urls.next()?;
    let others: Vec<String> = urls.collect();
    (!others.is_empty()).then_some((first, others))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_with_several_hosts_is_one_for_each() {
        let urls = |url| one_by_one(url).map(|(first, others)| [vec![first], others].concat());
        assert_eq!(urls("mysql://u:p@h/db"), None);
        assert_eq!(urls("mysql://u:p,q@h:1/db?a=b,c"), None);
        assert_eq!(
            urls("mysql://u:p,q@one,two:3307,[::1]:1/db?a=b,c").unwrap_or_default(),
            [
                "mysql://u:p,q@one/db?a=b,c",
                "mysql://u:p,q@two:3307/db?a=b,c",
                "mysql://u:p,q@[::1]:1/db?a=b,c"
            ]
        );
    }
}
