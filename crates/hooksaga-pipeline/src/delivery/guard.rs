//! The egress guard: which addresses may be called.
//!
//! Callback URLs come from outside, and this server usually stands where others cannot reach. Without the
//! guard a subscription could make it call its neighbours, its own ports or the cloud's metadata service.
//! Every address is checked, after the lookup and before the dial; what is not plainly a public unicast
//! address is refused, unless the operator has opened its network.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What callbacks may reach.
#[derive(Clone, Debug, Default)]
pub struct EgressPolicy {
    /// Plain `http://` too: for development.
    pub allow_http: bool,
    /// Networks that may be called though they are not public.
    pub allow_networks: Vec<IpNet>,
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

impl EgressPolicy {
    /// Whether this address may be called. An IPv6 address that leads to an IPv4 address is judged as it.
    pub fn permits(&self, address: IpAddr) -> bool {
        let target = effective_target(address);
        is_public(target)
            || self.allow_networks.iter().any(|net| net.contains(&target) || net.contains(&address))
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
