//! Asks whom the operating system would ask: /etc/hosts first, then the name servers of /etc/resolv.conf with
//! its search list, `ndots` and `timeout`.
//!
//! Both files are read again when they change. Other sources of names that a C library may know (mDNS, LDAP and
//! so on by nsswitch.conf) are not asked: a local caching resolver that serves them over DNS can be.

use super::{
    super::failure::is_shortage,
    memory::{TimedResolution, Unresolved},
};
use hickory_resolver::{
    Hosts, TokioResolver,
    config::{LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    net::{DnsError, NetError, runtime::TokioRuntimeProvider},
    proto::{
        op::Query,
        rr::{IntoName, Name, RecordType},
    },
    system_conf::read_system_conf,
};
use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

const HOSTS: &str = "/etc/hosts";
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The shortest time between two looks whether the files have changed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// A query without an answer is given up after this, and made once more: an A that was answered is used
/// before the deadline of the lookup although the AAAA never is.
const MOST_PER_QUERY: Duration = Duration::from_secs(2);
const MOST_RETRIES: usize = 1;
/// How long an entry of /etc/hosts is remembered.
const HOSTS_TTL: Duration = LOOK_AGAIN;

/// Whom to ask.
pub(super) enum NameServers {
    System(Mutex<Option<Loaded>>),
    Only(Option<Arc<NameSources>>),
}

/// The system's configuration as it was read.
pub(super) struct Loaded {
    sources: Option<Arc<NameSources>>,
    files: [Stamp; 2],
    checked: Instant,
}

pub(super) struct NameSources {
    hosts: Hosts,
    resolver: TokioResolver,
}

/// What changes when a file does.
type Stamp = Option<(SystemTime, u64)>;

impl NameServers {
    pub(super) fn of_system() -> Self {
        Self::System(Mutex::new(None))
    }

    pub(super) fn only(address: SocketAddr) -> Self {
        let mut server = NameServerConfig::udp_and_tcp(address.ip());
        for connection in &mut server.connections {
            connection.port = address.port();
        }
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        Self::Only(NameSources::new(Hosts::default(), config, ResolverOpts::default()).map(Arc::new))
    }

    /// The addresses of a name, IPv4 before IPv6.
    pub(super) async fn ask(&self, name: &str) -> TimedResolution {
        match self.sources() {
            Some(sources) => sources.ask(name).await,
            None => TimedResolution::failure(Unresolved::Failed("the resolver cannot be set up".to_owned())),
        }
    }

    fn sources(&self) -> Option<Arc<NameSources>> {
        let loaded = match self {
            Self::Only(sources) => return sources.clone(),
            Self::System(loaded) => loaded,
        };
        let mut loaded = loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match &mut *loaded {
            Some(loaded) if now < loaded.checked + LOOK_AGAIN => {}
            Some(loaded) if loaded.files == stamps() => loaded.checked = now,
            other => {
                *other = Some(Loaded { files: stamps(), sources: NameSources::of_system(), checked: now })
            }
        }
        loaded.as_ref().and_then(|loaded| loaded.sources.clone())
    }
}

/// Two calls of `stat`, every five seconds at most.
fn stamps() -> [Stamp; 2] {
    [HOSTS, RESOLV_CONF].map(|path| {
        let metadata = fs::metadata(Path::new(path)).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    })
}

impl NameSources {
    fn of_system() -> Option<Arc<Self>> {
        let hosts = Hosts::from_system().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read {HOSTS}: names are resolved by the name servers only");
            Hosts::default()
        });
        let (config, options) = read_system_conf().unwrap_or_else(|error| {
            // As the C library does.
            tracing::warn!(%error, "{RESOLV_CONF} names no name server: using 127.0.0.1");
            let local = NameServerConfig::udp_and_tcp(IpAddr::V4(Ipv4Addr::LOCALHOST));
            (ResolverConfig::from_parts(None, Vec::new(), vec![local]), ResolverOpts::default())
        });
        Self::new(hosts, config, options).map(Arc::new)
    }

    fn new(hosts: Hosts, config: ResolverConfig, mut options: ResolverOpts) -> Option<Self> {
        options.timeout = options.timeout.min(MOST_PER_QUERY);
        options.attempts = options.attempts.min(MOST_RETRIES);
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        // Both are done by us: a name in the file must not be asked for in DNS, and memory is per name.
        options.use_hosts_file = ResolveHosts::Never;
        options.cache_size = 0;
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        match builder.build() {
            Ok(resolver) => Some(Self { hosts, resolver }),
            Err(error) => {
                tracing::error!(%error, "the resolver cannot be set up: no host name can be called");
                None
            }
        }
    }

    async fn ask(&self, host: &str) -> TimedResolution {
        let Ok(name) = host.into_name() else { return TimedResolution::failure(Unresolved::NoAddress) };
        let listed = self.listed(&name);
        if !listed.is_empty() {
            return TimedResolution { answer: Ok(listed.into()), ttl: Some(HOSTS_TTL) };
        }
        match self.resolver.lookup_ip(name).await {
            Ok(found) => {
                let ttl = Instant::from_std(found.valid_until()).saturating_duration_since(Instant::now());
                let addresses: Arc<[IpAddr]> = found.iter().collect();
                if addresses.is_empty() {
                    return TimedResolution { answer: Err(Unresolved::NoAddress), ttl: Some(ttl) };
                }
                TimedResolution { answer: Ok(addresses), ttl: Some(ttl) }
            }
            Err(error) => failure(&error),
        }
    }

    /// The addresses in /etc/hosts.
    fn listed(&self, name: &Name) -> Vec<IpAddr> {
        let of_type = |kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind));
        [RecordType::A, RecordType::AAAA]
            .into_iter()
            .filter_map(of_type)
            .flat_map(|found| found.answers().iter().filter_map(|r| r.data.ip_addr()).collect::<Vec<_>>())
            .collect()
    }
}

fn failure(error: &NetError) -> TimedResolution {
    let cause = match error {
        NetError::Dns(DnsError::NoRecordsFound(none)) => {
            let ttl = none.negative_ttl.map(|seconds| Duration::from_secs(u64::from(seconds)));
            return TimedResolution { answer: Err(Unresolved::NoAddress), ttl };
        }
        NetError::Timeout => Unresolved::Unanswered,
        // Its own queue is full: the name was not asked for.
        NetError::Busy => Unresolved::Busy,
        NetError::Io(error) => match error.raw_os_error() {
            Some(errno) if is_shortage(error) => Unresolved::Shortage(errno),
            _ => Unresolved::Failed(error.to_string()),
        },
        other => Unresolved::Failed(other.to_string()),
    };
    TimedResolution::failure(cause)
}
