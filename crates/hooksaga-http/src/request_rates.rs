//! Requests per second of each API key, and of each host that clients have requests sent to: a bucket each that holds one
//! second's worth.
//!
//! In memory and per process. Only keys that are known are counted, and at most [`MAX_KEYS`] of them: a key whose
//! bucket is full needs no entry.

use crate::{
    auth::hash_key,
    problem::{Kind, Problem},
};
use hooksaga_pipeline::one_spelling;
use hooksaga_saga::CallbackUrl;
use http::{HeaderValue, header};
use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

const MAX_KEYS: usize = 10_000;

/// A bucket holds so much time's worth of requests.
const BURST: Duration = Duration::from_secs(1);

/// How often per second somebody may have a request sent to one host: challenges and test events.
const PER_HOST: NonZeroU32 = NonZeroU32::new(5).expect("not zero");

/// The rates of requests that clients have sent to a host of their choice, whichever key asks for them.
pub(crate) struct HostRates(KeyRates);

impl HostRates {
    pub(crate) fn new() -> Self {
        Self(KeyRates::new(PER_HOST))
    }

    /// Counts one request to the host of this URL, or says how long to wait.
    pub(crate) fn count(&self, callback_url: &CallbackUrl) -> Result<(), Problem> {
        let host = one_spelling(callback_url.host());
        self.0.count_at(hash_key(&host), Instant::now()).map_err(|wait| {
            too_many(wait, "requests are sent to this host as often as they may be; try again shortly")
        })
    }
}

pub(crate) struct KeyRates {
    /// The time that one request takes up.
    each: Duration,
    /// When the key's requests so far are used up.
    used_until: Mutex<HashMap<[u8; 32], Instant>>,
}

impl KeyRates {
    pub(crate) fn new(per_second: NonZeroU32) -> Self {
        Self { each: BURST / per_second.get(), used_until: Mutex::default() }
    }

    /// Counts one request of this key, or says how long it has to wait.
    pub(crate) fn count(&self, key: [u8; 32]) -> Result<(), Problem> {
        self.count_at(key, Instant::now())
            .map_err(|wait| too_many(wait, "this key has sent more requests than it may; try again shortly"))
    }

    fn count_at(&self, key: [u8; 32], now: Instant) -> Result<(), Duration> {
        let mut used_until = self.used_until.lock().unwrap_or_else(PoisonError::into_inner);
        let after = used_until.get(&key).map_or(now, |until| (*until).max(now)) + self.each;
        let wait = after.duration_since(now).saturating_sub(BURST);
        if !wait.is_zero() {
            return Err(wait);
        }
        if used_until.len() >= MAX_KEYS && !used_until.contains_key(&key) {
            used_until.retain(|_, until| *until > now);
            if used_until.len() >= MAX_KEYS {
                // Too many keys are busy within one second. Each starts again, which lets some through early.
                used_until.clear();
            }
        }
        used_until.insert(key, after);
        Ok(())
    }
}

fn too_many(wait: Duration, detail: &str) -> Problem {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    Problem::new(Kind::TooManyRequests, detail)
        .with_header(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(per_second: u32) -> KeyRates {
        KeyRates::new(NonZeroU32::new(per_second).expect("not zero"))
    }

    #[test]
    fn a_second_has_as_many_requests_as_it_may_and_each_key_its_own() {
        let (rates, start) = (rates(3), Instant::now());
        for key in [[1; 32], [2; 32]] {
            for _ in 0..3 {
                assert_eq!(rates.count_at(key, start), Ok(()));
            }
            let wait = rates.count_at(key, start).expect_err("the fourth");
            assert!(wait <= Duration::from_millis(334), "{wait:?}");
            assert_eq!(rates.count_at(key, start + wait), Ok(()));
        }
    }

    #[test]
    fn a_host_has_one_bucket_however_it_is_spelled() {
        let count = |hosts: &HostRates, host: &str| {
            let url = CallbackUrl::parse(&format!("https://{host}/hook"), false).expect("a URL");
            hosts.count(&url).is_ok()
        };
        for spellings in [
            ["93.184.216.34", "[::ffff:93.184.216.34]", "[::FFFF:5db8:d822]", "[64:ff9b::5db8:d822]"],
            ["[2001:db8::1]", "[2001:DB8:0::1]", "[2001:db8:0:0:0:0:0:1]", "[2001:0db8::0001]:8443"],
            ["example.com", "EXAMPLE.com", "example.com.", "example.com:8443"],
        ] {
            let hosts = HostRates::new();
            let passed = (0..20).filter(|n| count(&hosts, spellings[n % 4])).count();
            assert!((5..=6).contains(&passed), "{spellings:?}: {passed}");
        }
    }

    #[test]
    fn over_a_long_time_the_rate_holds() {
        let (rates, start) = (rates(10), Instant::now());
        let passed = (0..10_000).filter(|ms| {
            let now = start + Duration::from_millis(*ms);
            rates.count_at([0; 32], now).is_ok()
        });
        let passed = passed.count();
        assert!((100..=110).contains(&passed), "10 s at 10 per second, and one burst: {passed}");
    }

    #[test]
    fn the_number_of_keys_is_bounded() {
        let (rates, start) = (rates(1), Instant::now());
        for number in 0..(2 * MAX_KEYS as u64 + 5) {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            assert_eq!(rates.count_at(key, start), Ok(()));
        }
        assert!(rates.used_until.lock().expect("not poisoned").len() <= MAX_KEYS);
    }
}
