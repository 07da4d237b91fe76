//! The egress guard: which addresses may be called.
//!
//! Callback URLs come from customers, and this server usually runs in a network that they cannot reach. Without the
//! guard a subscription could make it call its neighbours, its own ports or the cloud's metadata service.
//! Every address of a host is judged, after the lookup and before the dial; what is not plainly a public unicast
//! address is refused, unless the operator has opened its network.
//!
//! An IPv6 address that leads to an IPv4 address (mapped, NAT64) is judged as that IPv4 address, and only an
//! allowed network of IPv4 opens it: `::/0` opens no `::ffff:127.0.0.1`. A denied network matches both the
//! address as it is written and where it leads. The order: metadata services are refused whatever is allowed,
//! then denied networks, then allowed networks and public addresses pass.

use super::{literal, proxy::ProxyAddress};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What callbacks may reach, and how.
#[derive(Clone, Debug, Default)]
pub struct EgressPolicy {
    /// Plain `http://` too: for development.
    pub allow_http: bool,
    /// Networks that may be called though they are not public.
    pub allow_networks: Vec<IpNet>,
    /// Networks that are not called, public or allowed or not.
    pub deny_networks: Vec<IpNet>,
    /// Callbacks go through this proxy, after they were judged here.
    pub proxy: Option<ProxyAddress>,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(a: u16, b: u16, c: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), prefix)
}

/// IPv4 networks that are never called.
const FORBIDDEN_V4: &[Ipv4Net] = &[
    v4(0, 0, 0, 0, 8),        // this network; 0.0.0.0 is this host
    v4(10, 0, 0, 0, 8),       // private
    v4(100, 64, 0, 0, 10),    // carrier-grade NAT; a cloud's metadata at 100.100.100.200
    v4(127, 0, 0, 0, 8),      // loopback
    v4(168, 63, 129, 16, 32), // a cloud's host agent, public only by its number
    v4(169, 254, 0, 0, 16),   // link-local; metadata services at 169.254.169.254
    v4(172, 16, 0, 0, 12),    // private
    v4(192, 0, 0, 0, 24),     // protocol assignments; a cloud's metadata at 192.0.0.192
    v4(192, 0, 2, 0, 24),     // documentation
    v4(192, 31, 196, 0, 24),  // AS112
    v4(192, 52, 193, 0, 24),  // multicast relays
    v4(192, 88, 99, 0, 24),   // 6to4 relays
    v4(192, 168, 0, 0, 16),   // private
    v4(192, 175, 48, 0, 24),  // AS112
    v4(198, 18, 0, 0, 15),    // benchmarking
    v4(198, 51, 100, 0, 24),  // documentation
    v4(203, 0, 113, 0, 24),   // documentation
    v4(224, 0, 0, 0, 4),      // multicast
    v4(240, 0, 0, 0, 4),      // reserved; 255.255.255.255 is broadcast
];

/// The only IPv6 unicast addresses that are routed in public. Outside lie, among others, `::` and `::1`,
/// IPv4-compatible addresses, local NAT64 (64:ff9b:1::/48), discard (100::/64), unique local (fc00::/7, with
/// the metadata services at fd00:ec2::254 and fd20:ce::254), link-local (fe80::/10), site-local (fec0::/10)
/// and multicast (ff00::/8).
const PUBLIC_V6: Ipv6Net = v6(0x2000, 0, 0, 3);

/// IPv6 networks inside [`PUBLIC_V6`] that are never called.
const FORBIDDEN_V6: &[Ipv6Net] = &[
    v6(0x2001, 0, 0, 23),           // protocol assignments: Teredo, benchmarking, ORCHID
    v6(0x2001, 0x0db8, 0, 32),      // documentation
    v6(0x2002, 0, 0, 16),           // 6to4: any IPv4 address inside
    v6(0x2620, 0x004f, 0x8000, 48), // AS112
    v6(0x3fff, 0, 0, 20),           // documentation
];

/// Translated to the IPv4 address in its last 32 bits by the network's NAT64.
const NAT64: Ipv6Net = v6(0x0064, 0xff9b, 0, 96);

/// Services that hand out a machine's credentials to whoever asks from it: no network that the operator opens
/// includes them.
const METADATA_V4: &[Ipv4Addr] = &[
    Ipv4Addr::new(169, 254, 169, 254), // AWS, Azure, Google, Oracle, DigitalOcean, OpenStack and others
    Ipv4Addr::new(169, 254, 170, 2),   // AWS, containers
    Ipv4Addr::new(169, 254, 170, 23),  // AWS, Kubernetes
    Ipv4Addr::new(169, 254, 42, 42),   // Scaleway
    Ipv4Addr::new(100, 100, 100, 200), // Alibaba
    Ipv4Addr::new(192, 0, 0, 192),     // Oracle, classic
    Ipv4Addr::new(168, 63, 129, 16),   // Azure's host agent
];
const METADATA_V6: &[Ipv6Addr] = &[
    Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254), // AWS
    Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x23),  // AWS, Kubernetes
    Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254), // Google
    Ipv6Addr::new(0xfd00, 0x00c1, 0, 0, 0, 0, 0xa9fe, 0xa9fe), // Oracle
    Ipv6Addr::new(0xfd00, 0x0042, 0, 0, 0, 0, 0, 0x42),  // Scaleway
];

impl EgressPolicy {
    /// Whether this address may be called.
    pub fn permits(&self, address: IpAddr) -> bool {
        let target = effective_target(address);
        let denied = |net: &IpNet| net.contains(&target) || net.contains(&address);
        if is_metadata(target) || self.deny_networks.iter().any(denied) {
            return false;
        }
        is_public(target) || self.allow_networks.iter().any(|net| net.contains(&target))
    }

    /// Whether a URL's host can be refused without a lookup: it is an address that may not be called, or a name
    /// of this host itself where neither loopback network is allowed.
    pub fn refuses_literally(&self, host: &str) -> bool {
        match literal::address(host) {
            Some(address) => !self.permits(address),
            None => {
                literal::is_localhost(host)
                    && !self.permits(Ipv4Addr::LOCALHOST.into())
                    && !self.permits(Ipv6Addr::LOCALHOST.into())
            }
        }
    }
}

fn is_metadata(target: IpAddr) -> bool {
    match target {
        IpAddr::V4(v4) => METADATA_V4.contains(&v4),
        IpAddr::V6(v6) => {
            METADATA_V6.contains(&v6) || embedded_v4(v6).is_some_and(|inside| METADATA_V4.contains(&inside))
        }
    }
}

/// The IPv4 address inside an IPv6 address of a form that some network may translate: IPv4-compatible, a local
/// NAT64, or 6to4. None of these is public.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let octets = address.octets();
    let at = match address.segments() {
        [0, 0, 0, 0, 0, 0, ..] | [0x0064, 0xff9b, 1, ..] => 12,
        [0x2002, ..] => 2,
        _ => return None,
    };
    let [a, b, c, d] = [octets[at], octets[at + 1], octets[at + 2], octets[at + 3]];
    Some(Ipv4Addr::new(a, b, c, d))
}

/// One spelling for each host of a URL: of an address, in whichever form, the address where packets to it end up; of a
/// name, lower case without the dot at the end. Limits per host count by it.
pub fn one_spelling(host: &str) -> String {
    match literal::address(host) {
        Some(address) => effective_target(address).to_string(),
        None => host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase(),
    }
}

/// Where packets to this address end up: mapped (::ffff:0:0/96) and NAT64 addresses at an IPv4 address.
fn effective_target(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if NAT64.contains(&v6) => {
            let [.., a, b, c, d] = v6.octets();
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        other => other,
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !FORBIDDEN_V4.iter().any(|net| net.contains(&v4)),
        IpAddr::V6(v6) => PUBLIC_V6.contains(&v6) && !FORBIDDEN_V6.iter().any(|net| net.contains(&v6)),
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
