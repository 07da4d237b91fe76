//! Random values from the operating system.

use ring::rand::{SecureRandom, SystemRandom};

/// Fills `buffer` with random bytes.
pub(super) fn fill(buffer: &mut [u8]) {
    SystemRandom::new().fill(buffer).expect("the operating system gives random bytes");
}

/// A random number, for lease tokens.
pub fn random_i64() -> i64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    i64::from_ne_bytes(bytes)
}

/// This many random bytes as lower-case hexadecimal digits.
pub fn random_hex(bytes: usize) -> String {
    let mut buffer = vec![0; bytes];
    fill(&mut buffer);
    to_hex(&buffer)
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_lower_case_and_keeps_leading_zeros() {
        assert_eq!(to_hex(&[0x00, 0x0f, 0xa5, 0xff]), "000fa5ff");
    }

    #[test]
    fn random_values_have_their_length_and_differ() {
        let (first, second) = (random_hex(16), random_hex(16));
        assert_eq!(first.len(), 32);
        assert!(first.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_ne!(first, second);
        assert_ne!(random_i64(), random_i64());
    }
}
