//! The cache of resolved names: addresses until their time to live ends, failures for a shorter time.

use std::{collections::HashMap, io, net::IpAddr, sync::Arc, time::Duration};
use tokio::time::Instant;

/// What a lookup found.
pub(super) type Resolution = Result<Arc<[IpAddr]>, Unresolved>;

/// Why a lookup found nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unresolved {
    /// A name server says that there is no such name, or that it has no address.
    NoAddress,
    /// No name server answered before the deadline.
    Unanswered,
    /// The name servers failed, refused, or cannot be reached.
    Failed(String),
    /// This process has no file descriptor left to ask with: the error of the operating system.
    Shortage(i32),
    /// Nobody was asked: too many lookups are under way.
    Busy,
}

impl From<Unresolved> for io::Error {
    fn from(cause: Unresolved) -> Self {
        match cause {
            Unresolved::NoAddress => Self::new(io::ErrorKind::NotFound, "there is no such name"),
            Unresolved::Unanswered => Self::new(io::ErrorKind::TimedOut, "no name server answered"),
            Unresolved::Failed(text) => Self::other(text),
            Unresolved::Shortage(errno) => Self::from_raw_os_error(errno),
            Unresolved::Busy => Self::new(io::ErrorKind::ResourceBusy, "too many lookups are under way"),
        }
    }
}

/// An answer, and how long the name servers say that it holds (if they do).
#[derive(Clone, Debug)]
pub(super) struct TimedResolution {
    pub(super) answer: Resolution,
    pub(super) ttl: Option<Duration>,
}

impl TimedResolution {
    pub(super) fn failure(cause: Unresolved) -> Self {
        Self { answer: Err(cause), ttl: None }
    }

    /// How long it is remembered: what the servers say, within bounds.
    ///
    /// The lower bounds keep a name with a TTL of 0 from costing a lookup per connection; the upper ones let a
    /// move to another address, or the creation of a name, be noticed soon, whatever the zone's operator set.
    fn lasts(&self) -> Duration {
        const SECOND: Duration = Duration::from_secs(1);
        const LONGEST: Duration = Duration::from_secs(600);
        const LONGEST_NEGATIVE: Duration = Duration::from_secs(60);
        const NEGATIVE: Duration = Duration::from_secs(5);
        const UNANSWERED: Duration = Duration::from_secs(2);
        match &self.answer {
            Ok(_) => self.ttl.unwrap_or(SECOND).clamp(SECOND, LONGEST),
            Err(Unresolved::NoAddress) => self.ttl.unwrap_or(NEGATIVE).clamp(SECOND, LONGEST_NEGATIVE),
            Err(Unresolved::Unanswered) => UNANSWERED,
            Err(Unresolved::Failed(_)) => SECOND,
            // These say nothing about the name.
            Err(Unresolved::Shortage(_) | Unresolved::Busy) => Duration::ZERO,
        }
    }
}

struct Entry {
    answer: Resolution,
    until: Instant,
    /// When a name server last answered.
    answered_at: Option<Instant>,
}

/// A bounded number of names.
pub(super) struct Memory {
    entries: HashMap<Box<str>, Entry>,
    capacity: usize,
}

impl Memory {
    pub(super) fn new(capacity: usize) -> Self {
        Self { entries: HashMap::new(), capacity }
    }

    /// What is known about a name now.
    pub(super) fn get(&self, name: &str, now: Instant) -> Option<Resolution> {
        let entry = self.entries.get(name)?;
        (now < entry.until).then(|| entry.answer.clone())
    }

    /// Whether the name's last lookup was not answered, however long ago, and none was for an hour: after an outage of the name
    /// servers, which leaves every name without an answer, the good ones do not wait for the bad.
    pub(super) fn is_suspect(&self, name: &str, now: Instant) -> bool {
        const GOOD_FOR: Duration = Duration::from_secs(3600);
        self.entries.get(name).is_some_and(|entry| {
            let is_good = entry.answered_at.is_some_and(|at| now.saturating_duration_since(at) < GOOD_FOR);
            entry.answer == Err(Unresolved::Unanswered) && !is_good
        })
    }

    pub(super) fn put(&mut self, name: Box<str>, found: TimedResolution, now: Instant) {
        let lasts = found.lasts();
        if lasts.is_zero() {
            return;
        }
        if self.entries.len() >= self.capacity && !self.entries.contains_key(&name) {
            self.make_room(now);
        }
        let answered_at = match &found.answer {
            Ok(_) | Err(Unresolved::NoAddress) => Some(now),
            Err(_) => self.entries.get(&name).and_then(|entry| entry.answered_at),
        };
        self.entries.insert(name, Entry { answer: found.answer, until: now + lasts, answered_at });
    }

    /// Forgets what has expired, or else what would expire first.
    fn make_room(&mut self, now: Instant) {
        self.entries.retain(|_, entry| now < entry.until);
        if self.entries.len() < self.capacity {
            return;
        }
        let first = self.entries.iter().min_by_key(|(_, entry)| entry.until).map(|(name, _)| name.clone());
        if let Some(name) = first {
            self.entries.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(ttl: u64) -> TimedResolution {
        TimedResolution {
            answer: Ok(Arc::new([IpAddr::from([192, 0, 2, 1])])),
            ttl: Some(Duration::from_secs(ttl)),
        }
    }

    fn no_address(ttl: Option<u64>) -> TimedResolution {
        TimedResolution { answer: Err(Unresolved::NoAddress), ttl: ttl.map(Duration::from_secs) }
    }

    #[test]
    fn an_answer_lasts_as_long_as_it_says_within_bounds() {
        let seconds = |found: TimedResolution| found.lasts().as_secs();
        assert_eq!([0, 1, 30, 600, 86_400].map(|ttl| seconds(address(ttl))), [1, 1, 30, 600, 600]);
        assert_eq!([0, 30, 60, 86_400].map(|ttl| seconds(no_address(Some(ttl)))), [1, 30, 60, 60]);
        assert_eq!(seconds(no_address(None)), 5);
        assert_eq!(seconds(TimedResolution::failure(Unresolved::Unanswered)), 2);
        assert_eq!(seconds(TimedResolution::failure(Unresolved::Failed(String::new()))), 1);
    }

    #[test]
    fn a_name_is_known_until_its_time_ends() {
        let (mut memory, start) = (Memory::new(8), Instant::now());
        memory.put("a".into(), address(30), start);
        let known = |second| memory.get("a", start + Duration::from_millis(second)).is_some();
        assert_eq!([0, 29_999, 30_000].map(known), [true, true, false]);
        assert!(memory.get("b", start).is_none());
    }

    #[test]
    fn a_name_without_an_answer_stays_suspect_until_it_has_one() {
        let (mut memory, start) = (Memory::new(8), Instant::now());
        let unanswered = || TimedResolution::failure(Unresolved::Unanswered);
        assert!(!memory.is_suspect("a", start));
        memory.put("a".into(), unanswered(), start);
        assert!(memory.get("a", start + Duration::from_secs(60)).is_none());
        assert!(memory.is_suspect("a", start));
        memory.put("a".into(), address(1), start);
        assert!(!memory.is_suspect("a", start));
        // An outage of the name servers makes no suspect of a name that they knew a while ago.
        let second = |second| start + Duration::from_secs(second);
        memory.put("a".into(), unanswered(), second(60));
        memory.put("a".into(), unanswered(), second(120));
        assert!(!memory.is_suspect("a", second(3_599)));
        assert!(memory.is_suspect("a", second(3_600)));
    }

    #[test]
    fn a_shortage_here_says_nothing_about_the_name() {
        let (mut memory, now) = (Memory::new(8), Instant::now());
        memory.put("a".into(), TimedResolution::failure(Unresolved::Busy), now);
        memory.put("a".into(), TimedResolution::failure(Unresolved::Shortage(24)), now);
        assert!(memory.get("a", now).is_none());
    }

    #[test]
    fn it_holds_so_many_names_and_forgets_the_expired_ones_first() {
        let (mut memory, start) = (Memory::new(3), Instant::now());
        for (name, ttl) in [("short", 1), ("long", 300), ("middle", 60)] {
            memory.put(name.into(), address(ttl), start);
        }
        memory.put("new".into(), address(60), start + Duration::from_secs(2));
        assert!(memory.get("long", start).is_some() && memory.get("middle", start).is_some());
        memory.put("newer".into(), address(500), start + Duration::from_secs(3));
        let names = ["long", "middle", "new", "newer"].map(|name| memory.get(name, start).is_some());
        assert_eq!((names, memory.entries.len()), ([true, false, true, true], 3));
        // A known name needs no room.
        memory.put("newer".into(), address(500), start + Duration::from_secs(4));
        assert_eq!(memory.entries.len(), 3);
    }
}
