//! Hosts that are addresses already, in every form that an operating system takes for one.

use std::net::{IpAddr, Ipv4Addr};

/// The address that this host of a URL is, if it is no name: `192.0.2.1`, `[2001:db8::1]`, and the old forms of
/// IPv4 with fewer parts, in octal or in hexadecimal (`127.1`, `0x7f000001`, `0177.0.0.1`, `2130706433`).
pub(super) fn address(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse().ok().or_else(|| old_form(bare).map(IpAddr::V4))
}

/// Whether this is a name of this very host.
pub(super) fn is_localhost(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or(host);
    last.eq_ignore_ascii_case("localhost")
}

/// One to four numbers; the last one fills the bytes that are left.
fn old_form(host: &str) -> Option<Ipv4Addr> {
    let host = host.strip_suffix('.').unwrap_or(host);
    let mut numbers = [0_u64; 4];
    let mut count = 0;
    for part in host.split('.') {
        *numbers.get_mut(count)? = number(part)?;
        count += 1;
    }
    let (last, leading) = numbers[..count].split_last()?;
    let mut address = *last;
    if address >= 1 << (8 * (5 - count)) {
        return None;
    }
    for (index, byte) in leading.iter().enumerate() {
        if *byte > 255 {
            return None;
        }
        address |= byte << (8 * (3 - index));
    }
    u32::try_from(address).ok().map(Ipv4Addr::from_bits)
}

fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    // The parser would take a sign.
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    if digits.is_empty() && radix == 16 { Some(0) } else { u64::from_str_radix(digits, radix).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_address_is_one() {
        for (host, expected) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.1.", "127.0.0.1"),
            ("127.1", "127.0.0.1"),
            ("127.0.1", "127.0.0.1"),
            ("10.258", "10.0.1.2"),
            ("0", "0.0.0.0"),
            ("0x", "0.0.0.0"),
            ("0x7f000001", "127.0.0.1"),
            ("0X7F.1", "127.0.0.1"),
            ("0177.0.0.01", "127.0.0.1"),
            ("2130706433", "127.0.0.1"),
            ("4294967295", "255.255.255.255"),
            ("[::1]", "::1"),
            ("::1", "::1"),
            ("[::ffff:127.0.0.1]", "::ffff:127.0.0.1"),
        ] {
            assert_eq!(address(host), Some(expected.parse().expect("an address")), "{host}");
        }
    }

    #[test]
    fn names_are_not() {
        for host in [
            "",
            ".",
            "..",
            "example.com",
            "1.example",
            "0xexample",
            "256.0.0.1",
            "1.2.3.256",
            "1.2.3.4.5",
            "4294967296",
            "1..2",
            "+1",
            "-1",
            "0x-1",
            "08",
            "127.0.0.1..",
            "face",
            "1e3",
            "[127",
            "18446744073709551616",
        ] {
            assert_eq!(address(host), None, "{host}");
        }
    }

    #[test]
    fn localhost_is_known_by_its_last_label() {
        for host in ["localhost", "LocalHost.", "a.localhost", "a.b.LOCALHOST."] {
            assert!(is_localhost(host), "{host}");
        }
        for host in ["localhost.example", "notlocalhost", "localhost..", "example.com", ""] {
            assert!(!is_localhost(host), "{host}");
        }
    }
}
