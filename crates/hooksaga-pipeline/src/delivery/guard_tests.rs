//! Every forbidden block at its edges: its first and last address, and its neighbours.

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn permitted(text: &str) -> bool {
    EgressPolicy::default().permits(ip(text))
}

fn allowing(networks: &[&str]) -> EgressPolicy {
    let allow_networks = networks.iter().map(|net| net.parse().expect("a network")).collect();
    EgressPolicy { allow_networks, ..EgressPolicy::default() }
}

/// First and last address of a block; the addresses just outside that are public (none where the
/// neighbour is forbidden too).
const BLOCKS: &[(&str, &str, &[&str])] = &[
    ("0.0.0.0", "0.255.255.255", &["1.0.0.0"]),
    ("10.0.0.0", "10.255.255.255", &["9.255.255.255", "11.0.0.0"]),
    ("100.64.0.0", "100.127.255.255", &["100.63.255.255", "100.128.0.0"]),
    ("127.0.0.0", "127.255.255.255", &["126.255.255.255", "128.0.0.0"]),
    ("168.63.129.16", "168.63.129.16", &["168.63.129.15", "168.63.129.17"]),
    ("169.254.0.0", "169.254.255.255", &["169.253.255.255", "169.255.0.0"]),
    ("172.16.0.0", "172.31.255.255", &["172.15.255.255", "172.32.0.0"]),
    ("192.0.0.0", "192.0.0.255", &["191.255.255.255", "192.0.1.0"]),
    ("192.0.2.0", "192.0.2.255", &["192.0.1.255", "192.0.3.0"]),
    ("192.31.196.0", "192.31.196.255", &["192.31.195.255", "192.31.197.0"]),
    ("192.52.193.0", "192.52.193.255", &["192.52.192.255", "192.52.194.0"]),
    ("192.88.99.0", "192.88.99.255", &["192.88.98.255", "192.88.100.0"]),
    ("192.168.0.0", "192.168.255.255", &["192.167.255.255", "192.169.0.0"]),
    ("192.175.48.0", "192.175.48.255", &["192.175.47.255", "192.175.49.0"]),
    ("198.18.0.0", "198.19.255.255", &["198.17.255.255", "198.20.0.0"]),
    ("198.51.100.0", "198.51.100.255", &["198.51.99.255", "198.51.101.0"]),
    ("203.0.113.0", "203.0.113.255", &["203.0.112.255", "203.0.114.0"]),
    ("224.0.0.0", "239.255.255.255", &["223.255.255.255"]),
    ("240.0.0.0", "255.255.255.255", &[]),
    // Everything below 2000::/3, with the blocks that matter most named below.
    ("::", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", &[]),
    ("2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", &["2000:ffff::", "2001:200::"]),
    ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", &["2001:db7:ffff::1", "2001:db9::"]),
    ("2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff", &["2001:ffff::1", "2003::"]),
    ("2620:4f:8000::", "2620:4f:8000:ffff:ffff:ffff:ffff:ffff", &["2620:4f:7fff::1", "2620:4f:8001::"]),
    ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", &["3ffe:ffff::1", "3fff:1000::"]),
    ("4000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", &["3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]),
];

#[test]
fn every_block_is_forbidden_to_its_edges_and_no_further() {
    for (first, last, public) in BLOCKS {
        assert!(!permitted(first), "{first}");
        assert!(!permitted(last), "{last}");
        for outside in *public {
            assert!(permitted(outside), "{outside}");
        }
    }
}

#[test]
fn every_forbidden_network_is_in_the_table_above() {
    let firsts: Vec<IpAddr> = BLOCKS.iter().map(|(first, ..)| ip(first)).collect();
    let lasts: Vec<IpAddr> = BLOCKS.iter().map(|(_, last, _)| ip(last)).collect();
    let v4 = FORBIDDEN_V4.iter().map(|net| IpNet::V4(*net));
    for net in v4.chain(FORBIDDEN_V6.iter().map(|net| IpNet::V6(*net))) {
        assert!(firsts.contains(&net.network()) && lasts.contains(&net.broadcast()), "{net}");
    }
}

#[test]
fn public_addresses_are_permitted() {
    for address in ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700::1111", "2a00:1450:4001::5", "2400::1"]
    {
        assert!(permitted(address), "{address}");
    }
}

#[test]
fn special_ipv6_addresses_are_forbidden() {
    for address in [
        "::",
        "::1",
        "::127.0.0.1",
        "::8.8.8.8",
        "64:ff9b:1::8.8.8.8",
        "64:ff9b:0:1::8.8.8.8",
        "100::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:2::1",
        "2001:10::1",
        "2002:7f00:1::1",
        "2002:808:808::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fdff:ffff::1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
    ] {
        assert!(!permitted(address), "{address}");
    }
}

#[test]
fn metadata_services_are_forbidden() {
    for address in ["169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "168.63.129.16"] {
        assert!(!permitted(address), "{address}");
        assert!(!permitted(&format!("::ffff:{address}")), "{address}");
        assert!(!permitted(&format!("64:ff9b::{address}")), "{address}");
    }
}

#[test]
fn an_ipv6_address_that_leads_to_ipv4_is_judged_as_that() {
    for prefix in ["::ffff:", "64:ff9b::"] {
        for (first, last, public) in BLOCKS.iter().filter(|(first, ..)| first.contains('.')) {
            assert!(!permitted(&format!("{prefix}{first}")), "{prefix}{first}");
            assert!(!permitted(&format!("{prefix}{last}")), "{prefix}{last}");
            for outside in *public {
                assert!(permitted(&format!("{prefix}{outside}")), "{prefix}{outside}");
            }
        }
    }
}

#[test]
fn an_allowed_network_is_open_and_its_neighbours_are_not() {
    let policy = allowing(&["10.1.0.0/16", "fd12::/16"]);
    for address in ["10.1.0.0", "10.1.255.255", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd12::1"] {
        assert!(policy.permits(ip(address)), "{address}");
    }
    for address in ["10.0.255.255", "10.2.0.0", "::ffff:10.2.0.0", "127.0.0.1", "fd13::1", "::1"] {
        assert!(!policy.permits(ip(address)), "{address}");
    }
    // A public address needs no permission.
    assert!(policy.permits(ip("8.8.8.8")));
}

#[test]
fn both_loopbacks_need_their_own_exception() {
    let policy = allowing(&["127.0.0.0/8"]);
    assert!(policy.permits(ip("127.0.0.1")) && policy.permits(ip("::ffff:127.0.0.1")));
    assert!(!policy.permits(ip("::1")));
    assert!(allowing(&["::1/128"]).permits(ip("::1")));
}

#[test]
fn an_allowed_network_opens_addresses_of_its_own_family_only() {
    let everything_v6 = allowing(&["::/0"]);
    assert!(everything_v6.permits(ip("::1")) && everything_v6.permits(ip("fd12::1")));
    for address in ["::ffff:127.0.0.1", "64:ff9b::127.0.0.1", "::ffff:10.0.0.1", "127.0.0.1"] {
        assert!(!everything_v6.permits(ip(address)), "{address}");
    }
    // Not even when the network is written in the mapped form.
    assert!(!allowing(&["::ffff:0:0/96"]).permits(ip("::ffff:10.0.0.1")));
    let everything_v4 = allowing(&["0.0.0.0/0"]);
    assert!(everything_v4.permits(ip("::ffff:127.0.0.1")) && !everything_v4.permits(ip("::1")));
}

#[test]
fn metadata_services_are_refused_whatever_is_allowed() {
    let open = allowing(&["0.0.0.0/0", "::/0", "169.254.169.254/32", "fd00:ec2::254/128"]);
    for address in METADATA_V4 {
        let [a, b, c, d] = address.octets();
        let hex = format!("{a:02x}{b:02x}:{c:02x}{d:02x}");
        for form in [
            address.to_string(),
            format!("::ffff:{address}"),
            format!("64:ff9b::{address}"),
            format!("64:ff9b:1::{address}"),
            format!("::{address}"),
            format!("2002:{hex}::1"),
        ] {
            assert!(!open.permits(ip(&form)), "{form}");
            assert!(open.refuses_literally(&form), "{form}");
        }
    }
    for address in ["fd00:ec2::254", "fd20:ce::254", "fd00:ec2::23", "fd00:c1::a9fe:a9fe", "fd00:42::42"] {
        assert!(!open.permits(ip(address)), "{address}");
    }
    // Their neighbours are ordinary addresses of an open network.
    for address in ["169.254.169.253", "100.100.100.201", "fd00:ec2::253", "2002:a9fe:a9fd::1"] {
        assert!(open.permits(ip(address)), "{address}");
    }
}

#[test]
fn a_denied_network_wins() {
    let deny = |networks: &[&str]| EgressPolicy {
        deny_networks: networks.iter().map(|net| net.parse().expect("a network")).collect(),
        ..allowing(&["10.0.0.0/8", "fd00::/8"])
    };
    let policy = deny(&["10.1.0.0/16", "93.184.216.0/24", "fd00:1::/32", "64:ff9b::/96"]);
    for address in ["10.1.0.1", "::ffff:10.1.0.1", "93.184.216.34", "::ffff:93.184.216.34", "fd00:1::1"] {
        assert!(!policy.permits(ip(address)), "{address}");
    }
    // The form itself can be denied, too.
    assert!(!policy.permits(ip("64:ff9b::8.8.8.8")) && policy.permits(ip("8.8.8.8")));
    for address in ["10.2.0.1", "::ffff:10.2.0.1", "93.184.217.1", "fd00:2::1"] {
        assert!(policy.permits(ip(address)), "{address}");
    }
    assert!(!deny(&["10.0.0.0/8"]).permits(ip("10.2.0.1")), "the same network, allowed and denied");
}

#[test]
fn hosts_that_are_addresses_or_localhost_are_refused_without_a_lookup() {
    let closed = EgressPolicy::default();
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "10.0.0.1",
        "169.254.169.254",
        "[fd00:ec2::254]",
        "localhost",
        "LOCALHOST.",
        "a.localhost",
        "0.0.0.0",
    ] {
        assert!(closed.refuses_literally(host), "{host}");
    }
    for host in ["example.com", "localhost.example.com", "8.8.8.8", "[2606:4700::1111]", "1.2.3.4.5"] {
        assert!(!closed.refuses_literally(host), "{host}");
    }
    let development = allowing(&["127.0.0.0/8", "::1/128"]);
    for host in ["127.0.0.1", "localhost", "a.localhost", "[::1]", "127.1"] {
        assert!(!development.refuses_literally(host), "{host}");
    }
    assert!(!allowing(&["127.0.0.0/8"]).refuses_literally("localhost"));
    assert!(development.refuses_literally("10.0.0.1"));
}
